config=/etc/orchestrator-lite
on_install() {
    if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create node-agent.conf || true; fi
    reload
}
# Pods go on meanwhile: the unit kills nothing but the agent.
on_upgrade() {
    on_install
    restart node-agent.service check_settings
}
check_settings() { arguments node-agent.service run | tr '\n' '\0' | xargs -0 node-agent config check --this-machine; }
# The socket first: it would start the daemon again.
on_remove() {
    stop node-agent.socket
    stop node-agent.service
}
after_remove() { reload; }
# Pods that still run keep their state: volumes may be mounted below it. A kubelet that the node was given back to has its
# state in the same folder.
on_purge() {
    rm -f $config/bootstrap.kubeconfig $config/node-agent.kubeconfig $config/ca.crt $config/node-agent.conf.d/10-join.conf
    rmdir $config/node-agent.conf.d $config 2>/dev/null || true
    if grep -q ' /var/lib/kubelet/' /proc/self/mountinfo; then
        echo "/var/lib/kubelet stays: volumes of pods are mounted in it" >&2
    elif command -v kubelet >/dev/null; then
        echo "/var/lib/kubelet stays: it is the state of the kubelet, which is installed" >&2
    else
        rm -rf --one-file-system /var/lib/kubelet
        # Limits that the agent gave to the slice of all pods: systemd would keep them until the next boot.
        rm -rf /run/systemd/system.control/kubepods.slice.d
        reload
    fi
    # Made by the package; whoever has something in them keeps it.
    rmdir /etc/kubernetes/manifests /etc/kubernetes /var/log/pods /var/log/containers 2>/dev/null || true
    if grep -qs 'Set by node-agent' /etc/systemd/logind.conf.d/99-kubelet.conf; then
        rm -f /etc/systemd/logind.conf.d/99-kubelet.conf
        rmdir /etc/systemd/logind.conf.d 2>/dev/null || true
    fi
}
