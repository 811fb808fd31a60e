# The tree, weights and limits of each QoS class, as docs say: pods and classes by the linear formula from shares,
# containers by the runtime's own (KEP-2254 and KEP-5278's note on the two).
linear() { echo $((1 + (($1 - 2) * 9999) / 262142)); } # linear SHARES
[ "$(systemctl show -P Delegate node-agent)" = yes ] || fail 'the unit does not delegate'
pod guaranteed '{"resources": {"limits": {"cpu": "200m", "memory": "64Mi"}}}'
pod burstable '{"resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"memory": "48Mi"}}}'
pod besteffort
for name in guaranteed burstable besteffort; do runs $name; done

case $(agent /configz | jq -r .kubeletconfig.cgroupDriver) in
    systemd) tier() { echo "/kubepods.slice${1:+/kubepods-$1.slice}"; } ;;
    cgroupfs) tier() { echo "/kubepods${1:+/$1}"; } ;;
esac
slice() { # slice POD: the pod's cgroup
    local class=$1 id
    [ "$class" != guaranteed ] || class=
    id=$(uid "$1")
    case $(tier) in
        *.slice) echo "$(tier $class)/kubepods${class:+-$class}-pod${id//-/_}.slice" ;;
        *) echo "$(tier $class)/pod$id" ;;
    esac
}
for name in guaranteed burstable besteffort; do
    case $(cgroup_of $name) in "$(slice $name)"/*"$(container_id $name)"*) ok "$name is in $(slice $name)" ;; *) fail "$name is in $(cgroup_of $name)" ;; esac
done
cpus=$(nproc)
same 'weight of kubepods' "$(linear $((cpus * 1024)))" "$(cgroup_file "$(tier)" cpu.weight)"
same 'weight of besteffort' 1 "$(cgroup_file "$(tier besteffort)" cpu.weight)"
same 'weight of burstable' "$(linear 102)" "$(cgroup_file "$(tier burstable)" cpu.weight)"
same 'weight of the guaranteed pod' "$(linear 204)" "$(cgroup_file "$(slice guaranteed)" cpu.weight)"
same 'quota of the guaranteed pod' '20000 100000' "$(cgroup_file "$(slice guaranteed)" cpu.max)"
same 'memory of the guaranteed pod' $((64 << 20)) "$(cgroup_file "$(slice guaranteed)" memory.max)"
same 'weight of the burstable pod' "$(linear 102)" "$(cgroup_file "$(slice burstable)" cpu.weight)"
same 'quota of the burstable pod' 'max 100000' "$(cgroup_file "$(slice burstable)" cpu.max)"
same 'memory of the burstable pod' $((48 << 20)) "$(cgroup_file "$(slice burstable)" memory.max)"
same 'weight of the besteffort pod' 1 "$(cgroup_file "$(slice besteffort)" cpu.weight)"
same 'memory of the besteffort pod' max "$(cgroup_file "$(slice besteffort)" memory.max)"
same 'memory of the container' $((48 << 20)) "$(cgroup_file "$(cgroup_of burstable)" memory.max)"
same 'quota of the container' '20000 100000' "$(cgroup_file "$(cgroup_of guaranteed)" cpu.max)"
# A container that passes its memory limit dies as one, and the pod says so.
same 'memory.oom.group of the container' 1 "$(cgroup_file "$(cgroup_of guaranteed)" memory.oom.group)"
# systemd knows the limits too: a reload of its units must not lose them.
systemctl daemon-reload
same 'quota after daemon-reload' '20000 100000' "$(cgroup_file "$(slice guaranteed)" cpu.max)"
same 'weight after daemon-reload' "$(linear 204)" "$(cgroup_file "$(slice guaranteed)" cpu.weight)"
same 'weight of besteffort after daemon-reload' 1 "$(cgroup_file "$(tier besteffort)" cpu.weight)"
gone=$(slice guaranteed)
remove guaranteed burstable besteffort
until_true 30 'the slice of a pod that is gone is gone' [ ! -e "/sys/fs/cgroup$gone" ]
