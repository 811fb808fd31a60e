#!/usr/bin/env bash
# Makes what QEMU boots: Debian with systemd as PID 1, cgroup v2, containerd 2, runc, crun, criu and CNI plugins from the
# distribution, and a kernel with an initrd of a few kilobytes.
#
#   image.sh FOLDER      leaves FOLDER/{image,vmlinuz,initrd,key,key.pub}; does nothing when they are as the recipe wants them
#
# Environment: VM_MIRROR (default this machine's apt mirror), VM_EXTRA (more packages, with commas between them), VM_CONTAINERD
# (2, or 1.7 for the one of Debian 13).
set -euo pipefail
mkdir -p "${1:?where to}"
out=$(cd "$1" && pwd)
mirror=${VM_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null | grep -v security | head -n 1)}
containerd=${VM_CONTAINERD:-2}
case $containerd in
    2 | 1.7) ;;
    *) echo "VM_CONTAINERD is 2 or 1.7, and not $containerd" >&2; exit 1 ;;
esac
base=systemd,systemd-sysv,dbus,udev,kmod,containerd,runc,crun,criu,containernetworking-plugins,iproute2,iptables,procps
base=$base,ca-certificates,openssh-server,busybox-static,curl,apparmor,e2fsprogs,jq,python3-grpcio${VM_EXTRA:+,$VM_EXTRA}
say() { echo "vm: $*" >&2; }

# containerd of trixie is 1.7; these three come from sid, and nothing else does.
pins() { # pins ROOT
    [ "$containerd" = 2 ] || return 0
    mkdir -p "$1/etc/apt/preferences.d"
    printf 'Package: *\nPin: release n=sid\nPin-Priority: 50\n\nPackage: containerd runc containernetworking-plugins\nPin: release n=sid\nPin-Priority: 900\n' \
        >"$1/etc/apt/preferences.d/containerd"
}

# Unpacked rather than installed, which spares us an initramfs with everything in it, and with plain modules: each xz
# costs seconds in an emulator. mmdebstrap calls this while apt can still fetch.
kernel() { # kernel ROOT
    local root=$1 package version module file work=$out/kernel
    package=$(chroot "$root" apt-cache depends linux-image-cloud-amd64/trixie | awk '/Depends: linux-image-[0-9]/ {print $2; exit}')
    chroot "$root" sh -c "cd /tmp && apt-get -qq -o APT::Sandbox::User=root download $package/trixie"
    rm -rf "$work"
    mkdir -p "$work/deb" "$work/initrd"/{bin,dev,proc,new,modules}
    dpkg-deb -x "$root"/tmp/linux-image-*.deb "$work/deb"
    rm "$root"/tmp/linux-image-*.deb
    version=${package#linux-image-}
    mkdir -p "$root/usr/lib/modules"
    cp -a "$work/deb"/*/lib/modules/"$version" "$root/usr/lib/modules/" 2>/dev/null || cp -a "$work/deb/lib/modules/$version" "$root/usr/lib/modules/"
    find "$root/usr/lib/modules" -name '*.ko.xz' -print0 | xargs -0 -r unxz
    chroot "$root" depmod "$version"
    cp "$work/deb/boot/vmlinuz-$version" "$out/vmlinuz"
    # The initrd: busybox, and the modules that the root disk needs, in the order of their loading.
    cp "$root/usr/bin/busybox" "$work/initrd/bin/"
    : >"$work/initrd/modules/order"
    for module in virtio_blk ext4; do
        while read -r file; do
            cp "$root$file" "$work/initrd/modules/"
            echo "${file##*/}" >>"$work/initrd/modules/order"
        done < <(chroot "$root" modprobe -S "$version" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p')
    done
    cat >"$work/initrd/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "/modules/$module" 2>/dev/null; done </modules/order
until [ -b /dev/vda ]; do /bin/busybox usleep 50000; done
/bin/busybox mount -t ext4 /dev/vda /new || exec /bin/busybox sh
/bin/busybox umount /dev
exec /bin/busybox switch_root /new /sbin/init
INIT
    chmod 0755 "$work/initrd/init"
    (cd "$work/initrd" && find . | cpio -o -H newc --quiet -R 0:0) | gzip -1 >"$out/initrd"
    rm -rf "$work"
}

customize() { # customize ROOT: what makes it a machine that we can talk to
    local root=$1 unit version cri pinned folder
    echo node >"$root/etc/hostname"
    printf '127.0.0.1 localhost\n10.0.2.15 node\n::1 localhost\n' >"$root/etc/hosts"
    rm -f "$root/etc/resolv.conf"
    echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
    : >"$root/etc/fstab"
    mkdir -p "$root"/etc/{systemd/system.conf.d,modules-load.d,sysctl.d,cni/net.d,containerd} "$root/etc/systemd/system"
    # The journal outlives the machine's ends, which are what some stages are about.
    mkdir -p "$root/var/log/journal"
    # Emulated processors are slow: nothing is to be given up for that, and what no node needs stays asleep.
    printf '[Manager]\nDefaultTimeoutStartSec=300s\nShowStatus=no\n' >"$root/etc/systemd/system.conf.d/slow.conf"
    for unit in node-agent apiserver-lite; do
        mkdir -p "$root/etc/systemd/system/$unit.service.d"
        printf '[Service]\nWatchdogSec=90\n' >"$root/etc/systemd/system/$unit.service.d/slow.conf"
    done
    for unit in getty@tty1.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
        e2scrub_reap.service ldconfig.service systemd-hwdb-update.service systemd-journal-catalog-update.service \
        systemd-networkd-wait-online.service systemd-firstboot.service systemd-pstore.service systemd-udev-settle.service; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done
    printf 'virtio_net\nvirtio_rng\noverlay\nbr_netfilter\nveth\ntcp_diag\nudp_diag\nunix_diag\ninet_diag\nnetlink_diag\naf_packet_diag\n' \
        >"$root/etc/modules-load.d/node.conf"
    printf 'net.ipv4.ip_forward=1\nnet.bridge.bridge-nf-call-iptables=1\nvm.overcommit_memory=1\nkernel.panic=10\nkernel.panic_on_oops=1\n' >"$root/etc/sysctl.d/90-node.conf"
    cat >"$root/etc/systemd/system/user-network.service" <<'UNIT'
[Unit]
Description=The fixed address of QEMU's user network
After=systemd-modules-load.service systemd-udev-trigger.service
Before=network-online.target network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'until [ -e /sys/class/net/eth0 ]; do sleep 0.2; done; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2'
[Install]
WantedBy=multi-user.target network-online.target
UNIT
    chroot "$root" systemctl -q enable user-network ssh containerd
    cat >"$root/etc/cni/net.d/10-bridge.conflist" <<'CNI'
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CNI
    # Version 3 has the CRI plugin in two parts. Pods of the runtime class crun are crun's.
    if [ "$containerd" = 2 ]; then
        version=3 cri=io.containerd.cri.v1.runtime
        pinned="[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'registry.k8s.io/pause:3.10'"
        folder="bin_dirs = ['/usr/lib/cni']"
    else
        version=2 cri=io.containerd.grpc.v1.cri
        pinned="[plugins.'$cri']
  sandbox_image = 'registry.k8s.io/pause:3.10'"
        folder="bin_dir = '/usr/lib/cni'"
    fi
    cat >"$root/etc/containerd/config.toml" <<TOML
version = $version
$pinned
[plugins.'$cri'.cni]
  $folder
[plugins.'$cri'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'$cri'.containerd.runtimes.runc.options]
    SystemdCgroup = true
[plugins.'$cri'.containerd.runtimes.crun]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'$cri'.containerd.runtimes.crun.options]
    BinaryName = 'crun'
    SystemdCgroup = true
TOML
    install -d -m 0700 "$root/root/.ssh"
    install -m 0600 "$out/key.pub" "$root/root/.ssh/authorized_keys"
    printf 'HostKey /etc/ssh/ssh_host_ed25519_key\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\nUseDNS no\nMaxSessions 50\n' >"$root/etc/ssh/sshd_config"
    rm -f "$root"/etc/ssh/ssh_host_{rsa,ecdsa}_key*
}

case ${2:-} in
    # Hooks of mmdebstrap: image.sh FOLDER HOOK ROOT.
    pins | kernel | customize) "$2" "$3"; exit ;;
esac
recipe() { { echo "$base $mirror $containerd"; cat "$0"; } | sha256sum | cut -d' ' -f1; }
[ "$(cat "$out/stamp" 2>/dev/null)" != "$(recipe)" ] || { say 'the image is up to date'; exit 0; }
rm -rf "$out/stamp" "$out/root"
[ -e "$out/key" ] || ssh-keygen -q -t ed25519 -N '' -C node-vm -f "$out/key"
say 'installing Debian'
sources=("deb $mirror trixie main")
[ "$containerd" = 1.7 ] || sources+=("deb $mirror sid main")
self=$(readlink -f "$0")
mmdebstrap --mode=root --variant=minbase --format=directory --skip=check/empty --include="$base" \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Check-Valid-Until "false"' \
    --setup-hook="'$self' '$out' pins \"\$1\"" --customize-hook="'$self' '$out' kernel \"\$1\"" --customize-hook="'$self' '$out' customize \"\$1\"" \
    trixie "$out/root" "${sources[@]}" >"$out/build.log" 2>&1 || {
    tail -n 20 "$out/build.log" >&2
    say "no image: $out/build.log"
    exit 1
}
rm -f "$out/image"
mke2fs -q -t ext4 -L root -m 0 -E lazy_itable_init=1,root_owner=0:0 -d "$out/root" "$out/image" 8G
rm -rf "$out/root"
recipe >"$out/stamp"
say "the image is made: $(du -h "$out/image" | cut -f1)"
