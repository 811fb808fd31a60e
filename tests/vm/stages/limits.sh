# What of a node's and a pod's limits needs a whole cgroup v2: processes, swap, memory by class (MemoryQoS), cgroups for what is
# reserved, and resources of pods as a whole.
pod_cgroup() { dirname "$(cgroup_of "$1")"; }
swap=/var/swap.suite
[ -e $swap ] || { fallocate -l 268435456 $swap && chmod 0600 $swap && mkswap -q $swap; }
grep -q "^$swap" /proc/swaps || swapon $swap
# A cgroup of what is reserved is the administrator's to make.
systemctl start suitekube.slice suitesystem.slice
mkdir -p /sys/fs/cgroup/suitekube.slice /sys/fs/cgroup/suitesystem.slice
configure 50-suite-limits 'podPidsLimit: 77
failSwapOn: false
memorySwap: {swapBehavior: LimitedSwap}
memoryReservationPolicy: TieredReservation
featureGates: {MemoryQoS: true}
kubeReserved: {cpu: 100m, memory: 64Mi, pid: "500"}
systemReserved: {cpu: 100m, memory: 96Mi}
kubeReservedCgroup: /suitekube.slice
systemReservedCgroup: /suitesystem.slice
enforceNodeAllocatable: [pods, kube-reserved, system-reserved]'
same 'memory of what is reserved for Kubernetes' $((64 << 20)) "$(cgroup_file /suitekube.slice memory.max)"
same 'its processes' 500 "$(cgroup_file /suitekube.slice pids.max)"
same 'its weight' $((1 + ((102 - 2) * 9999) / 262142)) "$(cgroup_file /suitekube.slice cpu.weight)"
same 'memory of what is reserved for the system' $((96 << 20)) "$(cgroup_file /suitesystem.slice memory.max)"
memory=$(awk '/^MemTotal:/ {print $2 * 1024}' /proc/meminfo)
same 'memory of all pods' $((memory - (160 << 20))) "$(cgroup_file /kubepods.slice memory.max)"

pod kept '{"resources": {"limits": {"cpu": "100m", "memory": "40Mi"}}}'
pod slowed '{"resources": {"requests": {"memory": "16Mi"}, "limits": {"memory": "48Mi"}}}'
pod unasked
pod together '{}' '{"resources": {"requests": {"cpu": "100m", "memory": "32Mi"}, "limits": {"cpu": "200m", "memory": "64Mi"}}}'
for name in kept slowed unasked together; do runs $name; done

same 'processes of a pod' 77 "$(cgroup_file "$(pod_cgroup unasked)" pids.max)"
# Nobody takes their ends, so it is the last that is done in it.
said=$(inside unasked sh -c 'for i in $(seq 100); do sleep 5 & done' 2>&1 || true)
case $said in *'fork'*) ;; *) fail "a pod has more processes than it may; it said: $said" ;; esac
ok 'a pod that forks without end is stopped at its limit'

same 'memory that is kept for a guaranteed container' $((40 << 20)) "$(cgroup_file "$(cgroup_of kept)" memory.min)"
same '... for its pod' $((40 << 20)) "$(cgroup_file "$(pod_cgroup kept)" memory.min)"
same 'memory that is kept for a burstable container' "0 $((16 << 20))" "$(cgroup_file "$(cgroup_of slowed)" memory.min) $(cgroup_file "$(cgroup_of slowed)" memory.low)"
# 16 Mi and nine tenths of the 32 Mi between request and limit, in whole pages.
same 'where a burstable container is slowed down' 46972928 "$(cgroup_file "$(cgroup_of slowed)" memory.high)"
same '... one that asks for nothing' max "$(cgroup_file "$(cgroup_of unasked)" memory.high)"

# Swap of a burstable container is its share of the node's memory; nobody else has any.
total=$(awk '/^SwapTotal:/ {print $2 * 1024}' /proc/meminfo)
share=$(awk -v request=$((16 << 20)) -v memory="$memory" -v swap="$total" 'BEGIN {printf "%d", int(request / memory * swap / 4096) * 4096}')
same 'swap of a burstable container' "$share" "$(cgroup_file "$(cgroup_of slowed)" memory.swap.max)"
same 'swap of a guaranteed one' 0 "$(cgroup_file "$(cgroup_of kept)" memory.swap.max)"
same 'swap of one that asks for nothing' 0 "$(cgroup_file "$(cgroup_of unasked)" memory.swap.max)"
same 'swap of the node' "$total" "$(field "/api/v1/nodes/$node" .status.nodeInfo.swap.capacity)"

same 'memory of a pod as a whole' $((64 << 20)) "$(cgroup_file "$(pod_cgroup together)" memory.max)"
same 'its quota' '20000 100000' "$(cgroup_file "$(pod_cgroup together)" cpu.max)"
same 'its class' Burstable "$(seen together .status.qosClass)"
remove kept slowed unasked together
# With swap the agent does not start unless it is told that it may.
swapoff $swap
rm -f $swap
unconfigure 50-suite-limits
