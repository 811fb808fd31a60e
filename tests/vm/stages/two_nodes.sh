# A second node with a network stack, a containerd and an agent of its own on the same kernel, joined by a cable: pods of
# the two reach each other, and the API server reaches the pods' logs.
ip netns list | grep -q '^two' || {
    ip netns add two
    ip link add cable type veth peer name eth0 netns two
    ip addr add 10.99.0.1/24 dev cable
    ip link set cable up
    ip -n two addr add 10.99.0.2/24 dev eth0
    ip -n two link set eth0 up
    ip -n two link set lo up
    ip -n two route add default via 10.99.0.1
    ip route add 10.244.1.0/24 via 10.99.0.2
    ip netns exec two sysctl -qw net.ipv4.ip_forward=1
}
mkdir -p /etc/two/cni /run/two /var/lib/two/containerd
sed 's|10\.244\.0\.0|10.244.1.0|; s|"type": "host-local",|"type": "host-local", "dataDir": "/run/two/ipam",|' /etc/cni/net.d/10-bridge.conflist >/etc/two/cni/10-bridge.conflist
{
    sed "s|^version = .*|&\nroot = '/var/lib/two/containerd'\nstate = '/run/two/state'\n[grpc]\n  address = '/run/two/containerd.sock'|" /etc/containerd/config.toml |
        sed "s|  bin_dirs\? = .*|&\n  conf_dir = '/etc/two/cni'|"
} >/etc/two/containerd.toml
for unit in $(systemctl list-units --all --plain --no-legend 'two-*.service' | awk '{print $1}'); do systemctl stop "$unit" || true; done
# In the network of the second node. A unit whose containers go on keeps its name, so each attempt has names of its own.
service() { # service NAME COMMAND...
    local name=$1
    shift
    systemd-run -q --unit "two-$name-$$" -p NetworkNamespacePath=/run/netns/two -p KillMode=process -p Delegate=yes -p LimitNOFILE=1048576 "$@"
}
service containerd containerd -c /etc/two/containerd.toml
ctr2() { ctr -a /run/two/containerd.sock -n k8s.io "$@"; }
until_true 60 'the second containerd answers' ctr2 version
ctr2 images import /usr/share/node-agent/pause.tar >/dev/null
ctr2 images import /root/busybox.tar >/dev/null
if [ ! -e /etc/two/node/node-agent.kubeconfig ]; then
    command=$(apiserver-lite token create --print-join-command --server "$server")
    nsenter --net=/run/netns/two $command --config-dir /etc/two/node --container-runtime-endpoint unix:///run/two/containerd.sock --no-start || fail "$command"
fi
# The cgroup that a node's lie in is the administrator's to make; its name goes by the runtime's driver.
mkdir -p /sys/fs/cgroup/two /sys/fs/cgroup/two.slice
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/two/containerd.sock\ncgroupRoot: /two\n' >/etc/two/node/node-agent.conf.d/90-two.conf
service agent node-agent run --config=/etc/two/node/node-agent.yaml --config-dir=/etc/two/node/node-agent.conf.d \
    --kubeconfig=/etc/two/node/node-agent.kubeconfig --bootstrap-kubeconfig=/etc/two/node/bootstrap.kubeconfig \
    --root-dir=/var/lib/two/kubelet --cert-dir=/var/lib/two/kubelet/pki --hostname-override=two
until_true 240 'the second node is Ready' node_is True two

serve='{"command": ["sh", "-c", "echo I am $(hostname) >/tmp/index.html; exec httpd -f -v -p 8080 -h /tmp"]}'
pod near "$serve" '{"nodeName": "node"}'
pod far "$serve" '{"nodeName": "two"}'
runs near
runs far
ip_of() { field "$pods/$1" .status.podIP; }
same 'the address of the far pod' 10.244.1 "$(ip_of far | cut -d. -f1-3)"
same 'from the near pod to the far one' 'I am far' "$(inside near wget -qO- "http://$(ip_of far):8080/")"
far_inside() { ctr2 tasks exec --exec-id "suite-$RANDOM" "$(container_id far)" "$@"; }
same 'from the far pod to the near one' 'I am near' "$(far_inside wget -qO- "http://$(ip_of near):8080/")"
logged() { api GET "$pods/far/log" | grep -q 'response:200'; }
until_true 30 'the far pod has its log at the API server' logged
remove near far
systemctl stop "two-agent-$$"
node-agent pods stop --container-runtime-endpoint unix:///run/two/containerd.sock --root-dir /var/lib/two/kubelet || true
systemctl stop "two-containerd-$$"
api DELETE /api/v1/nodes/two -o /dev/null
ip netns delete two
# The device plugins' folder has one path for all agents of a machine, and the second took it.
restart_agent
