#!/usr/bin/env bash
# The packages on a machine of their own: builds a Debian image with systemd, containerd and CNI plugins from the
# distribution, boots it in QEMU (software emulation will do), installs our .deb files there and runs suite.sh inside.
#
#   run.sh [build|up|suite|down]     without an argument all of them, and the machine is stopped at the end
#
# Environment: VM_DIR (default .vm; image, disk, key, logs), VM_PACKAGES (target/packages), VM_SSH_PORT (2222),
# VM_MEMORY (2048 MiB), VM_MIRROR (this machine's apt mirror), VM_BOOT_SECONDS (300).
# Needs, of Debian: mmdebstrap qemu-system-x86 e2fsprogs openssh-client. Exit code 77 when one of them is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
vm=${VM_DIR:-$top/.vm}
packages=${VM_PACKAGES:-$top/target/packages}
port=${VM_SSH_PORT:-2222}
mirror=${VM_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep -v security | head -n 1)}
mkdir -p "$vm"
vm=$(cd "$vm" && pwd)
say() { echo "vm: $*" >&2; }
die() { say "$*"; exit 1; }
for tool in mmdebstrap qemu-system-x86_64 mke2fs ssh; do
    command -v "$tool" >/dev/null || { say "skipped: $tool is missing"; exit 77; }
done
inside=systemd,systemd-sysv,dbus,udev,kmod,initramfs-tools,linux-image-cloud-amd64,containerd,runc,containernetworking-plugins
inside=$inside,iproute2,iptables,procps,ca-certificates,openssh-server,busybox-static,curl,apparmor
ssh_to=(ssh -F none -i "$vm/key" -p "$port" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
    -o ConnectTimeout=20 -o BatchMode=yes root@127.0.0.1)

# What the image depends on: it is made again only when this changes.
recipe() { { echo "$inside $mirror"; declare -f build customize; } | sha256sum | cut -d' ' -f1; }

customize() { # customize ROOT: what makes it a machine that we can talk to
    local root=$1
    echo node >"$root/etc/hostname"
    printf '127.0.0.1 localhost node\n::1 localhost\n' >"$root/etc/hosts"
    rm -f "$root/etc/resolv.conf"
    echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
    echo 'LABEL=root / ext4 defaults 0 1' >"$root/etc/fstab"
    mkdir -p "$root/etc/systemd/network" "$root/etc/modules-load.d" "$root/etc/sysctl.d" "$root/etc/cni/net.d" "$root/etc/containerd"
    printf '[Match]\nName=e*\n[Network]\nDHCP=ipv4\n' >"$root/etc/systemd/network/10-lan.network"
    printf 'overlay\nbr_netfilter\n' >"$root/etc/modules-load.d/node.conf"
    printf 'net.ipv4.ip_forward=1\n' >"$root/etc/sysctl.d/90-node.conf"
    # Emulated processors are slow: nothing is to be stopped for that.
    mkdir -p "$root/etc/systemd/system.conf.d"
    printf '[Manager]\nDefaultTimeoutStartSec=300s\n' >"$root/etc/systemd/system.conf.d/slow.conf"
    chroot "$root" systemctl -q enable systemd-networkd ssh containerd
    cat >"$root/etc/cni/net.d/10-bridge.conflist" <<'CNI'
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CNI
    chroot "$root" containerd config default |
        sed -e 's/SystemdCgroup = false/SystemdCgroup = true/; s|bin_dir = "/opt/cni/bin"|bin_dir = "/usr/lib/cni"|' \
            -e "s|sandbox\(_image\)\? = '\?\"\?registry.k8s.io/pause:[0-9.]*'\?\"\?|sandbox\1 = \"registry.k8s.io/pause:3.10\"|" >"$root/etc/containerd/config.toml"
    mkdir -p "$root/root/.ssh"
    cp "$vm/key.pub" "$root/root/.ssh/authorized_keys"
    chmod 0700 "$root/root/.ssh"
    cp "$root"/boot/vmlinuz-* "$vm/vmlinuz"
    cp "$root"/boot/initrd.img-* "$vm/initrd"
}

build() {
    [ "$(cat "$vm/stamp" 2>/dev/null)" != "$(recipe)" ] || { say 'the image is up to date'; return; }
    rm -rf "$vm/stamp" "$vm/root"
    [ -e "$vm/key" ] || ssh-keygen -q -t ed25519 -N '' -f "$vm/key"
    say 'installing Debian'
    mmdebstrap --mode=root --variant=minbase --format=directory --skip=check/empty --include="$inside" \
        --dpkgopt=force-unsafe-io --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Check-Valid-Until "false"' \
        trixie "$vm/root" "deb $mirror trixie main" >"$vm/build.log" 2>&1 || { tail -n 20 "$vm/build.log" >&2; die "no image: $vm/build.log"; }
    customize "$vm/root" >>"$vm/build.log" 2>&1 || { tail -n 20 "$vm/build.log" >&2; die "no image: $vm/build.log"; }
    rm -f "$vm/image"
    mke2fs -q -t ext4 -L root -m 0 -d "$vm/root" "$vm/image" 8G
    rm -rf "$vm/root"
    recipe >"$vm/stamp"
}

alive() { [ -e "$vm/pid" ] && tr '\0' ' ' <"/proc/$(cat "$vm/pid")/cmdline" 2>/dev/null | grep -qF "$vm/disk"; }

boot() { # boot: on the disk as it is
    local accelerate=tcg,thread=multi,tb-size=512
    [ ! -w /dev/kvm ] || accelerate=kvm
    rm -f "$vm/console"
    # cx16=off: some versions of QEMU emulate cmpxchg16b wrongly, and the guest's kernel can do without.
    qemu-system-x86_64 -nodefaults -no-user-config -display none -machine q35 -accel "$accelerate" -cpu max,cx16=off,la57=off,svm=off \
        -smp 2 -m "${VM_MEMORY:-2048}" -kernel "$vm/vmlinuz" -initrd "$vm/initrd" \
        -append 'root=LABEL=root rw console=ttyS0 net.ifnames=0 psi=1 mitigations=off panic=-1 random.trust_cpu=on' \
        -drive "file=$vm/disk,if=virtio,format=raw,cache=writeback" -device virtio-rng-pci \
        -netdev "user,id=n0,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=n0,romfile= \
        -serial "file:$vm/console" -daemonize -pidfile "$vm/pid"
    wait_for "${VM_BOOT_SECONDS:-300}" 'the machine answers' "${ssh_to[@]}" true
}

wait_for() { # wait_for SECONDS TEXT COMMAND...
    local limit=$((SECONDS + $1)) text=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        alive || { tail -n 20 "$vm/console" >&2; die 'the machine ended'; }
        [ "$SECONDS" -lt "$limit" ] || { tail -n 20 "$vm/console" >&2; die "never: $text"; }
        sleep 1
    done
    say "$text"
}

up() {
    ! alive || die "it runs already, pid $(cat "$vm/pid")"
    cp --sparse=always "$vm/image" "$vm/disk"
    boot
}

# Power off without a word, and on again.
power_cycle() {
    kill -9 "$(cat "$vm/pid")"
    while alive; do sleep 0.1; done
    boot
}

suite() {
    local stage
    tar -C "$packages" -cf - . | "${ssh_to[@]}" 'rm -rf /root/packages; mkdir /root/packages; tar -C /root/packages -xf -'
    "$top/packaging/images/build.sh" "$vm/images" >/dev/null
    tar -C "$vm/images" -cf - busybox.tar | "${ssh_to[@]}" 'tar -C /root -xf -'
    "${ssh_to[@]}" 'cat >/root/suite.sh' <"$here/suite.sh"
    for stage in install join watchdog upgrade; do
        say "stage $stage"
        "${ssh_to[@]}" "bash /root/suite.sh $stage"
    done
    say 'power off and on'
    power_cycle
    for stage in after_power purge; do
        say "stage $stage"
        "${ssh_to[@]}" "bash /root/suite.sh $stage"
    done
    say 'all stages passed'
}

down() {
    alive || return 0
    kill "$(cat "$vm/pid")"
    while alive; do sleep 0.1; done
    rm -f "$vm/pid"
}

case ${1:-all} in
    build | up | suite | down) "$1" ;;
    all)
        build
        trap down EXIT
        up
        suite
        ;;
    *) die "what is $1?" ;;
esac
