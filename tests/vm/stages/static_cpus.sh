# The static policy pins a guaranteed pod's whole processor, and keeps the others off it.
[ "$(nproc)" -ge 2 ] || { ok 'skipped: one processor only'; exit 0; }
systemctl stop node-agent
rm -f /var/lib/kubelet/cpu_manager_state
configure 50-suite-cpus 'cpuManagerPolicy: static
reservedSystemCPUs: "0"'
pod pinned '{"resources": {"limits": {"cpu": "1", "memory": "32Mi"}}}'
pod shared
runs pinned
runs shared
same 'processors of the pinned pod' 1 "$(cgroup_file "$(cgroup_of pinned)" cpuset.cpus.effective)"
until_true 30 'the other pod is off them' eval '[ "$(cgroup_file "$(cgroup_of shared)" cpuset.cpus.effective)" = 0 ]'
before=$(process pinned)
restart_agent
same 'the process after a restart of the agent' "$before" "$(process pinned)"
same 'its processors' 1 "$(cgroup_file "$(cgroup_of pinned)" cpuset.cpus.effective)"
remove pinned
until_true 60 'the other pod has both again' eval '[ "$(cgroup_file "$(cgroup_of shared)" cpuset.cpus.effective)" = 0-1 ]'
remove shared
systemctl stop node-agent
rm -f /var/lib/kubelet/cpu_manager_state
unconfigure 50-suite-cpus
