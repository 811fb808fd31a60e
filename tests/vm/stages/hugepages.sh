# Huge pages: what the node offers, a pod's limit on them, and a volume of them that can be filled to the limit.
free() { awk '/^HugePages_Free/ {print $2}' /proc/meminfo; }
total=$(awk '/^HugePages_Total/ {print $2}' /proc/meminfo)
[ "$total" -ge 4 ] || { ok 'skipped: this machine has no huge pages'; exit 0; }
same 'huge pages of the node' "$((total * 2))Mi" "$(field "/api/v1/nodes/$node" '.status.capacity["hugepages-2Mi"]')"
pod huge '{"resources": {"limits": {"cpu": "100m", "memory": "32Mi", "hugepages-2Mi": "4Mi"}},
    "volumeMounts": [{"name": "h", "mountPath": "/huge"}]}' '{"volumes": [{"name": "h", "emptyDir": {"medium": "HugePages"}}]}'
runs huge
# Of the container containerd leaves it out (disable_hugetlb_controller is true by default); the pod's cgroup is the agent's.
same 'huge pages of a pod' $((4 << 20)) "$(cgroup_file "$(dirname "$(cgroup_of huge)")" hugetlb.2MB.max)"
before=$(free)
inside huge fallocate -l $((4 << 20)) /huge/two || fail 'the pod cannot use its huge pages'
same 'huge pages that are free' $((before - 2)) "$(free)"
! inside huge fallocate -l $((2 << 20)) /huge/third 2>/dev/null || fail 'the pod has more huge pages than its limit'
ok 'it gets no more than its limit'
remove huge
same 'huge pages that are free after the pod' "$before" "$(free)"
