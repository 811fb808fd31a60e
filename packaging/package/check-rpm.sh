#!/usr/bin/env bash
# Installs our .rpm files in a folder of their own, upgrades, refuses, downgrades and removes them there.
#
#   check-rpm.sh FOLDER      FOLDER/*.rpm, of any version above 0.0.1; an older one is made of stand-ins
#
# The folder has busybox for a shell, what the daemons are linked with, and a systemctl that notes what it is asked; our
# scripts see a system that runs. Needs root, rpm and rpmbuild, busybox-static.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
new=$(cd "${1:?which folder}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
asked=$root/run/asked
fail() { echo "FAILED: $*" >&2; [ ! -e "$work/said" ] || cat "$work/said" >&2; exit 1; }
ok() { echo "  ok: $*"; }

mkdir -p "$root"/{bin,sbin,dev,etc,lib,lib64,usr/bin,usr/lib,run/systemd/system,var/lib/rpm,var/tmp,tmp}
cp "$(command -v busybox)" "$root/bin/busybox"
chroot "$root" /bin/busybox --install -s /bin
: >"$root/dev/null"
cat >"$root/usr/bin/systemctl" <<'SH'
#!/bin/sh
echo "$@" >>/run/asked
case "$*" in *is-active*) [ -e /run/active ] ;; esac
SH
chmod 0755 "$root/usr/bin/systemctl"

# A version before this one, of scripts that print a help.
mkdir "$work/bin"
for name in node-agent apiserver-lite; do
    printf '#!/bin/sh\nprintf "Usage: %s\\n\\n      --help  this\\n"\n' "$name" >"$work/bin/$name"
    chmod 0755 "$work/bin/$name"
done
VERSION=0.0.1 FORMATS=rpm BIN_DIR=$work/bin "$here/build.sh" "$work/old" >/dev/null

rpm_() { rpm --root "$root" --nodeps --nosignature "$@" >"$work/said" 2>&1; }
binary=$(rpm -qp --nosignature --qf '%{VERSION}\n' "$new"/node-agent-*.rpm)
rpm -K --nosignature "$new"/*.rpm >"$work/said" 2>&1 || fail 'digests'
rpm_ -i "$work"/old/*.rpm || fail 'installation'
[ ! -e "$asked" ] || ! grep -qE 'restart|enable|start' "$asked" || fail "an installation starts something: $(cat "$asked")"
ok 'installed; nothing was started'

echo 'maxPods: 7' >>"$root/etc/orchestrator-lite/node-agent.yaml"
# The new version has to be able to say what it thinks of the configuration.
rpm2cpio "$new"/node-agent-*.rpm >"$work/cpio"
(cd "$work" && cpio -id --quiet ./usr/bin/node-agent <cpio)
ldd "$work/usr/bin/node-agent" | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$root$library"; done
touch "$root/run/active"
rm -f "$asked"
rpm_ -U "$new"/*.rpm || fail 'upgrade'
grep -q 'restart node-agent.service' "$asked" || fail "the agent is not restarted: $(cat "$asked" "$work/said")"
grep -q 'restart apiserver-lite.service' "$asked" || fail "the API server is not restarted: $(cat "$asked" "$work/said")"
grep -qx 'maxPods: 7' "$root/etc/orchestrator-lite/node-agent.yaml" || fail 'the configuration of the administrator is gone'
ok "upgraded to $binary; both are restarted, the configuration is kept"
rpm --root "$root" -V --nodeps node-agent apiserver-lite >"$work/verified" 2>&1 || true
[ "$(cat "$work/verified")" = "$(printf 'S.5....T.  c /etc/orchestrator-lite/node-agent.yaml')" ] || fail "rpm -V: $(cat "$work/verified")"
ok 'rpm -V finds the changed configuration and nothing else'

echo 'maxPods: -1' >"$root/etc/orchestrator-lite/node-agent.conf.d/90-bad.conf"
rm -f "$asked"
rpm_ -U --force "$new"/*.rpm || fail 'upgrade with a configuration that is refused'
! grep -q 'restart node-agent.service' "$asked" || fail 'the agent is restarted on a configuration that it refuses'
grep -q 'NOT restarted' "$work/said" || fail 'nothing is said about it'
ok 'a configuration that is refused blocks the restart'
rm "$root/etc/orchestrator-lite/node-agent.conf.d/90-bad.conf"

rm -f "$asked"
rpm_ -U --oldpackage "$work"/old/*.rpm || fail 'downgrade'
grep -q 'restart node-agent.service' "$asked" || fail 'a downgrade does not restart the agent'
! grep -q disable "$asked" || fail 'an upgrade or downgrade disables the units'
ok 'downgraded'

rm -f "$asked"
rpm_ -e node-agent apiserver-lite || fail 'removal'
for name in node-agent apiserver-lite; do
    grep -q "disable --now $name.service" "$asked" || fail "$name is not stopped"
    left=$(find "$root/usr" -path "*$name*" | head -n 3)
    [ -z "$left" ] || fail "left: $left"
done
[ -e "$root/etc/orchestrator-lite/node-agent.yaml.rpmsave" ] || fail 'the changed configuration is not saved'
ok 'removed; the daemons are stopped, the changed configuration is kept'
