#!/usr/bin/env bash
# Installs our packages in a folder of their own, upgrades, refuses, downgrades and removes them there.
#
#   check.sh FOLDER      FOLDER/*.deb and FOLDER/*.rpm, of any version above 0.0.1; an older one is made of stand-ins
#
# The folder has a shell and busybox, what the daemons are linked with, and a systemctl that notes what it is asked; our
# scripts see a system that runs. Needs root and busybox-static; dpkg for .deb, rpm and rpmbuild for .rpm. Packages of
# another architecture than this machine's are not for it. Exit code 77 when something is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
new=$(cd "${1:?which folder}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
asked=$root/run/asked
conf=$root/etc/orchestrator-lite
fail() { echo "FAILED: $*" >&2; [ ! -e "$work/said" ] || cat "$work/said" >&2; exit 1; }
ok() { echo "  ok: $*"; }
[ "$(id -u)" = 0 ] || { echo 'skipped: not root' >&2; exit 77; }
for tool in busybox setpriv; do command -v "$tool" >/dev/null || { echo "skipped: $tool is missing" >&2; exit 77; }; done

# with_libraries FILE: what it is linked with, in the folder
with_libraries() { { ldd "$1" || true; } | grep -o '/[^ ]*' | while read -r library; do [ -e "$root$library" ] || install -D "$library" "$root$library"; done; }

# A machine without anything but a shell, on which both daemons run as processes that were started long ago.
machine() {
    local name
    rm -rf "$root"
    mkdir -p "$root"/{bin,sbin,dev,etc,lib,lib64,usr/bin,usr/lib,run/systemd/system,var/lib/rpm,var/lib/dpkg/{info,updates},var/tmp,tmp}
    : >"$root/var/lib/dpkg/status"
    cp "$(command -v busybox)" "$root/bin/busybox"
    chroot "$root" /bin/busybox --install -s /bin
    # Of these busybox has less than our scripts ask for; its shell would take its own all the same.
    for name in sh setpriv rm; do
        rm "$root/bin/$name"
        install "$(command -v $name)" "$root/bin/$name"
        with_libraries "$root/bin/$name"
    done
    : >"$root/dev/null"
    chmod 0666 "$root/dev/null"
    printf 'root:x:0:0::/:/bin/sh\napiserver-lite:x:990:990::/:/bin/false\n' >"$root/etc/passwd"
    printf 'root:x:0:\napiserver-lite:x:990:\nkeys:x:991:\n' >"$root/etc/group"
    : >"$root/run/groups"
    cat >"$root/usr/bin/systemctl" <<'SH'
#!/bin/sh
echo "$@" >>/run/asked
case "$*" in
    *ActiveState*) cat /run/state ;;
    *MainPID*node-agent*) echo 4001 ;;
    *MainPID*) echo 4002 ;;
    *User*) echo apiserver-lite ;;
    *SupplementaryGroups*) cat /run/groups ;;
    *Group*) echo apiserver-lite ;;
esac
SH
    chmod 0755 "$root/usr/bin/systemctl"
    mkdir -p "$root"/proc/400{1,2} "$root/sys/fs/cgroup"
    : >"$root/sys/fs/cgroup/cgroup.controllers"
    printf '%s\0' /usr/bin/node-agent run --config-dir=/etc/orchestrator-lite/node-agent.conf.d >"$root/proc/4001/cmdline"
    printf '%s\0' /usr/bin/apiserver-lite serve --data-dir=/var/lib/apiserver-lite >"$root/proc/4002/cmdline"
    state inactive
}
state() { echo "$1" >"$root/run/state"; }
# What a format does: install, upgrade (also to the same version), downgrade, remove.
rpm_() {
    local verb=$1
    shift
    case $verb in
        install) set -- -i "$@" ;;
        upgrade) set -- -U --force "$@" ;;
        downgrade) set -- -U --oldpackage "$@" ;;
        remove) set -- -e node-agent apiserver-lite ;;
    esac
    rpm --root "$root" --nodeps --nosignature "$@"
}
deb_() {
    local verb=$1
    shift
    case $verb in
        remove) set -- --remove node-agent apiserver-lite ;;
        purge) set -- --purge node-agent apiserver-lite ;;
        *) set -- -i "$@" ;;
    esac
    dpkg --root="$root" --log=/dev/null --force-depends --force-confold --force-unsafe-io "$@" </dev/null
}
does() { rm -f "$asked"; : >"$asked"; "${format}_" "$@" >"$work/said" 2>&1 || fail "$1"; }
restarted() { grep -q "restart $1.service" "$asked"; }
refused() { # refused NAME TEXT: an upgrade that leaves NAME alone
    does upgrade "$new"/*."$format"
    ! restarted "$1" || fail "$1 is restarted with $2"
    grep -q "$1.service is NOT restarted" "$work/said" || fail "nothing is said about $2"
    ok "$2 blocks the restart of $1"
}

# What the documentation names is in the packages: files and units after an installation, and commands of the programs.
documented() {
    local path word pages=("$here"/../../docs/*.md) of
    while read -r path; do
        case $path in
            /etc/apparmor.d/*) [ "$format" = deb ] || continue ;;
            # Made by join, by an administrator, or by somebody else.
            */ca.crt | *.kubeconfig | *.conf | *.toml | /usr/libexec/*) path=$(dirname "$path") ;;
        esac
        [ "$path" = /usr/libexec/kubernetes/kubelet-plugins/volume ] || compgen -G "$root$path" >/dev/null || fail "documented, and not there: $path"
    done < <(grep -ohE '(/etc/orchestrator-lite|/usr|/etc/apparmor\.d)/[A-Za-z0-9_./*@-]*[A-Za-z0-9_*@-]' "${pages[@]}" | sort -u)
    while read -r word; do
        [ -e "$root/usr/lib/systemd/system/$word" ] || fail "documented, and not there: $word"
    done < <(grep -ohE '\b(node-agent|apiserver-lite|kubepods)\.(service|slice|socket|timer)\b' "${pages[@]}" | sort -u)
    while read -r of word; do
        # The first list of words are the commands.
        grep -m 1 'words="' "$root/usr/share/bash-completion/completions/$of" | grep -qE "[ \"]$word[ \"]" || fail "documented, and no command: $of $word"
    done < <(grep -ohE '(`|^    (# )?)(node-agent|apiserver-lite) [a-z]+\b' "${pages[@]}" | sed 's/^[`# ]*//' | sort -u)
    ok 'files, units and commands of the documentation are there'
}

life() {
    local name left
    machine
    does install "$work/old-$format"/*
    ! grep -qE 'restart|enable|start' "$asked" || fail "an installation starts something: $(cat "$asked")"
    ok 'installed; nothing was started'

    echo 'maxPods: 7' >>"$conf/node-agent.yaml"
    for name in node-agent apiserver-lite; do with_libraries "$work/new/usr/bin/$name"; done
    for name in active activating; do
        state $name
        does upgrade "$new"/*."$format"
        restarted node-agent || fail "the agent that is $name is not restarted: $(cat "$asked" "$work/said")"
        restarted apiserver-lite || fail "the API server that is $name is not restarted: $(cat "$asked" "$work/said")"
    done
    grep -qx 'maxPods: 7' "$conf/node-agent.yaml" || fail 'the configuration of the administrator is gone'
    ok 'upgraded; both are restarted, also while they wait for something; the configuration is kept'
    if [ "$format" = rpm ]; then
        rpm --root "$root" -V --nodeps node-agent apiserver-lite >"$work/verified" 2>&1 || true
        [ "$(cat "$work/verified")" = 'S.5....T.  c /etc/orchestrator-lite/node-agent.yaml' ] || fail "rpm -V: $(cat "$work/verified")"
    else
        dpkg --root="$root" -V node-agent apiserver-lite >"$work/verified" 2>&1 || true
        [ "$(cat "$work/verified")" = '??5?????? c /etc/orchestrator-lite/node-agent.yaml' ] || fail "dpkg -V: $(cat "$work/verified")"
    fi
    ok 'verified: the changed configuration differs, and nothing else'
    documented
    for name in failed inactive; do
        state $name
        does upgrade "$new"/*."$format"
        ! restarted node-agent && ! restarted apiserver-lite || fail "what was $name is started"
    done
    ok 'what did not run is not started'

    state active
    echo 'maxPods: -1' >"$conf/node-agent.conf.d/90-bad.conf"
    refused node-agent 'a configuration that is refused'
    restarted apiserver-lite || fail 'and the API server with it'
    rm "$conf/node-agent.conf.d/90-bad.conf"
    echo 'securePort = 0' >"$conf/apiserver-lite.toml.d/90-bad.toml"
    refused apiserver-lite 'a setting that is refused'
    echo 'securePort = 7443' >"$conf/apiserver-lite.toml.d/90-bad.toml"
    chmod 0600 "$conf/apiserver-lite.toml.d/90-bad.toml"
    refused apiserver-lite 'a file that only root reads'
    chmod 0640 "$conf/apiserver-lite.toml.d/90-bad.toml"
    chgrp 991 "$conf/apiserver-lite.toml.d/90-bad.toml"
    refused apiserver-lite 'a file of a group that is not its own'
    echo keys >"$root/run/groups"
    does upgrade "$new"/*."$format"
    restarted apiserver-lite || fail "the groups of the unit are not those of the check: $(cat "$work/said")"
    ok 'the groups that the unit has are those of the check'
    : >"$root/run/groups"
    rm "$conf/apiserver-lite.toml.d/90-bad.toml"
    printf '%s\0' /usr/bin/apiserver-lite serve --secure-port=0 >"$root/proc/4002/cmdline"
    refused apiserver-lite "a drop-in's flag"
    printf '%s\0' /usr/bin/node-agent --max-pods=-1 >"$root/proc/4001/cmdline"
    refused node-agent "a drop-in's flag"
    printf '%s\0' /usr/bin/node-agent --max-pods=9 >"$root/proc/4001/cmdline"

    does downgrade "$work/old-$format"/*
    restarted node-agent || fail 'a downgrade does not restart the agent'
    ! grep -q disable "$asked" || fail 'an upgrade or downgrade disables the units'
    ok 'downgraded'

    does remove
    for name in node-agent apiserver-lite; do
        grep -q "disable --now $name.service" "$asked" || fail "$name is not stopped"
        left=$(find "$root/usr" -path "*$name*" | head -n 3)
        [ -z "$left" ] || fail "left: $left"
    done
    [ -e "$conf/node-agent.yaml" ] || [ -e "$conf/node-agent.yaml.rpmsave" ] || fail 'the changed configuration is not kept'
    ok 'removed; the daemons are stopped, the changed configuration is kept'
    [ "$format" = deb ] || return 0
    mkdir -p "$root/var/lib/apiserver-lite/store" "$root/var/lib/kubelet/pods" "$root/etc/kubernetes/manifests"
    echo 'pods' >"$root/etc/kubernetes/manifests/mine.yaml"
    : >"$conf/node-agent.kubeconfig"
    mkdir -p "$root/proc/self"
    : >"$root/proc/self/mountinfo"
    does purge
    for left in "$conf" "$root/etc/apparmor.d/apiserver-lite" "$root/var/lib/apiserver-lite" "$root/var/lib/kubelet"; do
        [ ! -e "$left" ] || fail "left: $(find "$left")"
    done
    [ -e "$root/etc/kubernetes/manifests/mine.yaml" ] || fail "somebody's static pods are gone"
    ok 'purged; nothing is left'

    # An image of a machine is made without a systemd that runs.
    machine
    rm -r "$root/run/systemd"
    does install "$new"/*.deb
    ! grep -qE 'start|reload' "$asked" || fail "in an image: $(cat "$asked")"
    does remove
    grep -q 'disable node-agent.service' "$asked" || fail 'the link of an enabled unit stays in an image'
    ok 'installed in an image, and removed from it'
}

# A version before this one, of scripts that print a help.
mkdir "$work/bin" "$work/new"
for name in node-agent apiserver-lite; do
    printf '#!/bin/sh\nprintf "Usage: %s\\n\\n      --help  this\\n" # GLIBC_2.34\n' "$name" >"$work/bin/$name"
    chmod 0755 "$work/bin/$name"
done
ran=
for format in deb rpm; do
    compgen -G "$new/*.$format" >/dev/null || continue
    [ "$format" = deb ] && tools=dpkg || tools='rpm rpmbuild'
    for tool in $tools; do command -v "$tool" >/dev/null || { echo "skipped: $tool is missing" >&2; continue 2; }; done
    echo "$format:"
    VERSION=0.0.1 FORMATS=$format BIN_DIR=$work/bin "$here/build.sh" "$work/old-$format" >/dev/null
    # The new version has to be able to say what it thinks of the configuration.
    for file in "$new"/*."$format"; do
        if [ "$format" = rpm ]; then rpm2cpio "$file" >"$work/cpio" && (cd "$work/new" && cpio -idu --quiet './usr/bin/*' <"$work/cpio"); else dpkg-deb -x "$file" "$work/new"; fi
    done
    [ "$format" = deb ] || rpm -K --nosignature "$new"/*.rpm >"$work/said" 2>&1 || fail 'digests'
    life
    ran=1
done
[ -n "$ran" ] || exit 77
