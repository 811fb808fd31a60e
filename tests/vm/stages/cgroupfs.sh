# The same tree under the cgroupfs driver: the runtime says which one it has, and the agent follows it; an older one does not.
driver() { # driver true|false: with systemd's driver or without
    systemctl stop node-agent
    node-agent pods stop
    sed -i "s/SystemdCgroup = .*/SystemdCgroup = $1/" /etc/containerd/config.toml
    systemctl restart containerd
    if [ "$1" = true ]; then driver_is systemd; else driver_is cgroupfs; fi
    systemctl start node-agent || fail 'the agent does not start again'
    ready
    runs web
}
driver false
same 'the driver' cgroupfs "$(agent /configz | jq -r .kubeletconfig.cgroupDriver)"
case $(cgroup_of web) in /kubepods/*) ok "the pod is in $(cgroup_of web)" ;; *) fail "the pod is in $(cgroup_of web)" ;; esac
. "$here/stages/cgroups.sh"
driver true
same 'the driver' systemd "$(agent /configz | jq -r .kubeletconfig.cgroupDriver)"
case $(cgroup_of web) in /kubepods.slice/*) ok "the pod is in $(cgroup_of web)" ;; *) fail "the pod is in $(cgroup_of web)" ;; esac
