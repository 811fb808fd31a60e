#!/usr/bin/env bash
# The packages on a machine of their own: a Debian image (image.sh) is booted in QEMU, our .deb files are installed there
# and the stages of suite.sh run inside, with a power cut and a reboot between them.
#
#   run.sh                   image, machine, all stages, and the machine is stopped at the end
#   run.sh short             the stages that show most in the least time
#   run.sh only NAME...      image, machine, install, join and these stages
#   run.sh image|up|down     one part; the machine of `up` goes on until `down`
#   run.sh boot              on again, with the disk of before
#   run.sh push              brings the packages, images and stages of today into the machine that runs
#   run.sh stage NAME...     these stages, in this order, on the machine that runs (cut, cuts, reboot and outside may be among them)
#   run.sh ssh COMMAND       a shell line in the machine
#
# Environment: VM_DIR (default .vm; image, disk, key, logs), VM_PACKAGES (target/packages), VM_SSH_PORT (2222, or the next
# that is free), VM_API_PORT (16443, or the next that is free; on 127.0.0.1 it leads to the machine's 6443), VM_MEMORY (2560
# MiB), VM_CPUS (2), VM_ACCEL (tcg; kvm
# where it works), VM_BOOT_SECONDS (300), VM_CUTS (10), VM_PATIENCE (1; every wait is as many times as long, for a busy
# machine), and those of image.sh.
# Needs, of Debian: mmdebstrap qemu-system-x86 cpio e2fsprogs openssh-client busybox-static. Exit code 77 when one is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
vm=${VM_DIR:-$top/.vm}
packages=${VM_PACKAGES:-$top/target/packages}
patience=${VM_PATIENCE:-1}
suite="PATIENCE=$patience bash /root/suite.sh"
mkdir -p "$vm"
vm=$(cd "$vm" && pwd)
say() { echo "vm: $*" >&2; }
die() { say "$*"; exit 1; }

# free PORT: the first from PORT on that nobody listens on.
free() {
    local port=$1
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo "$port"
}
alive() { [ -e "$vm/pid" ] && tr '\0' ' ' <"/proc/$(cat "$vm/pid")/cmdline" 2>/dev/null | grep -qF "$vm/disk"; }
# A machine that runs keeps its ports: `ssh` and `stage` find them beside its disk.
if alive && [ -e "$vm/ports" ]; then
    read -r port api <"$vm/ports"
else
    port=${VM_SSH_PORT:-$(free 2222)}
    api=${VM_API_PORT:-$(free 16443)}
fi

for tool in mmdebstrap qemu-system-x86_64 mke2fs cpio ssh busybox; do
    command -v "$tool" >/dev/null || { say "skipped: $tool is missing"; exit 77; }
done
ssh_to=(ssh -F none -i "$vm/key" -p "$port" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
    -o ConnectTimeout=20 -o ServerAliveInterval=15 -o BatchMode=yes root@127.0.0.1)

image() { "$here/image.sh" "$vm"; }

boot() { # boot: on the disk as it is
    local accelerate=tcg,thread=multi,tb-size=512
    [ "${VM_ACCEL:-tcg}" = tcg ] || accelerate=$VM_ACCEL
    rm -f "$vm/console"
    # cx16=off: some versions of QEMU emulate cmpxchg16b wrongly, and the guest's kernel can do without.
    qemu-system-x86_64 -nodefaults -no-user-config -display none -machine q35,sata=off,smbus=off,vmport=off -accel "$accelerate" \
        -cpu max,cx16=off,la57=off,svm=off -smp "${VM_CPUS:-2}" -m "${VM_MEMORY:-2560}" -kernel "$vm/vmlinuz" -initrd "$vm/initrd" \
        -append 'console=ttyS0 net.ifnames=0 psi=1 mitigations=off quiet panic=-1 random.trust_cpu=on hugepages=8' \
        -drive "file=$vm/disk,if=virtio,format=raw,cache=writeback" -device virtio-rng-pci -rtc base=utc,clock=host \
        -netdev "user,id=n0,hostfwd=tcp:127.0.0.1:$port-:22,hostfwd=tcp:127.0.0.1:$api-:6443" -device virtio-net-pci,netdev=n0,romfile= \
        -serial "file:$vm/console" -daemonize -pidfile "$vm/pid"
    echo "$port $api" >"$vm/ports"
    wait_for "${VM_BOOT_SECONDS:-300}" 'the machine answers' "${ssh_to[@]}" true
}

wait_for() { # wait_for SECONDS TEXT COMMAND...
    local limit=$((SECONDS + $1 * patience)) text=$2
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
    [ -e "$vm/stamp" ] || image
    cp --sparse=always "$vm/image" "$vm/disk"
    boot
}

# Power off without a word, and on again.
cut() {
    end KILL
    boot
}

# end SIGNAL: until nothing of the process is left. One that is ending has no command line any more, and holds the locks of
# its disk and of its pid file a little longer.
end() {
    local pid turn
    pid=$(cat "$vm/pid")
    kill -s "$1" "$pid"
    for turn in {1..600}; do
        [ -e "/proc/$pid" ] || break
        sleep 0.1
    done
    rm -f "$vm/pid"
}

reboot() {
    local before
    before=$("${ssh_to[@]}" cat /proc/sys/kernel/random/boot_id)
    "${ssh_to[@]}" systemctl --no-block reboot || true
    wait_for "${VM_BOOT_SECONDS:-300}" 'the machine is back' other_boot "$before"
}
other_boot() {
    local now
    now=$("${ssh_to[@]}" cat /proc/sys/kernel/random/boot_id) && [ "$now" != "$1" ]
}

push() {
    [ -e "$vm/images/busybox.tar" ] || "$top/packaging/images/build.sh" "$vm/images" >/dev/null
    tar -C "$packages" -cf - . | "${ssh_to[@]}" 'rm -rf /root/packages; mkdir /root/packages; tar -C /root/packages --no-same-owner -xf -'
    tar -C "$vm/images" -cf - busybox.tar | "${ssh_to[@]}" 'tar -C /root --no-same-owner -xf -'
    stages
}
stages() { tar -C "$here" -cf - suite.sh lib.sh device_plugin.py stages | "${ssh_to[@]}" 'rm -rf /root/stages; tar -C /root --no-same-owner -xf -'; }

stage() {
    local name began
    stages
    for name; do
        began=$SECONDS
        say "stage $name"
        case $name in
            cut | reboot | outside | cuts) "$name" ;;
            *) inside "$name" ;;
        esac
        passed+="$(printf '\n%6d s  %s' $((SECONDS - began)) "$name")"
        say "stage $name passed in $((SECONDS - began)) s"
    done
}
passed=

# inside STAGE: what it says is kept beside the disk, and when it fails what the machine's journal says of that time too.
inside() {
    local since log=$vm/log/$1
    mkdir -p "$vm/log"
    since=$("${ssh_to[@]}" date +%s </dev/null)
    "${ssh_to[@]}" "$suite $1" 2>&1 | tee "$log" >&2 && return
    "${ssh_to[@]}" "journalctl -q --no-pager -o short-precise --since=@$since" >"$log.journal" 2>&1 || true
    die "stage $1 failed; what it said is in $log, the machine's journal of that time in $log.journal, its console in $vm/console${passed:+; passed before:$passed}"
}

# kubectl on this side of the forwarded port: the certificate holds, the node is there, and a stream goes all the way into
# a container.
outside() {
    local asks=(kubectl --kubeconfig "$vm/admin.conf" --request-timeout=60s) limit=$((SECONDS + 240 * patience)) said=
    command -v kubectl >/dev/null || { say 'skipped: there is no kubectl here'; return 0; }
    (umask 077; "${ssh_to[@]}" cat /var/lib/apiserver-lite/admin.conf | sed "s|server: .*|server: https://127.0.0.1:$api|" >"$vm/admin.conf")
    until [ "$said" = 'True web' ]; do
        [ "$SECONDS" -lt "$limit" ] || die "never: kubectl from outside; it said: $said"
        said=$({ "${asks[@]}" get node node -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status} ' && "${asks[@]}" exec web -- hostname; } 2>&1) || sleep 1
    done
    say 'kubectl from outside sees the node, and what a container says'
}

# Ten power cuts (VM_CUTS) while objects are written: what was acknowledged has to be there each time.
cuts() {
    local round writer
    for round in $(seq "${VM_CUTS:-10}"); do
        : >"$vm/acknowledged"
        "${ssh_to[@]}" "$suite write_load" >"$vm/acknowledged" 2>/dev/null &
        writer=$!
        wait_for 180 "round $round: objects are written" some_acknowledged
        sleep $((RANDOM % 8))
        cut
        wait "$writer" || true
        inside after_cut <"$vm/acknowledged"
        say "power cut $round passed"
    done
}
some_acknowledged() { [ "$(wc -l <"$vm/acknowledged")" -ge 30 ]; }

# What a machine of a few minutes shows: packages, a node, its cgroups, an upgrade under a pod, the watchdog, a power cut.
short=(outside cgroups upgrade watchdog cut after_power)
whole=(outside cgroups limits runtimes isolation checkpoint watchdog upgrade restore sockets hugepages device_plugin pressure cut after_power before_reboot reboot after_reboot
    cuts static_cpus cgroupfs two_nodes idle packages purge)

# suite STAGE...: on a machine of their own, from the packages on
suite() {
    image
    trap down EXIT
    up
    push
    stage install join "$@"
    say "all stages passed:$passed"
}

down() {
    ! alive || end TERM
}

case ${1:-all} in
    image | up | push | boot | down) "$1" ;;
    stage) shift; stage "$@" ;;
    ssh) shift; "${ssh_to[@]}" "$@" ;;
    all) suite "${whole[@]}" ;;
    short) suite "${short[@]}" ;;
    only) shift; suite "$@" ;;
    *) die "what is $1?" ;;
esac
