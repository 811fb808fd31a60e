config=/etc/orchestrator-lite
on_install() {
    if command -v systemd-tmpfiles >/dev/null; then systemd-tmpfiles --create node-agent.conf || true; fi
    reload
}
# Pods go on meanwhile: the unit kills nothing but the agent.
on_upgrade() {
    on_install
    restart node-agent.service node-agent config check --config=$config/node-agent.yaml --config-dir=$config/node-agent.conf.d
}
on_remove() { stop node-agent.service; }
after_remove() { reload; }
# Pods that still run keep their state: volumes may be mounted below it.
on_purge() {
    rm -f $config/bootstrap.kubeconfig $config/node-agent.kubeconfig $config/ca.crt $config/node-agent.conf.d/10-join.conf
    rmdir $config/node-agent.conf.d $config 2>/dev/null || true
    if grep -q ' /var/lib/kubelet/' /proc/self/mountinfo; then
        echo "/var/lib/kubelet stays: volumes of pods are mounted in it" >&2
    else
        rm -rf --one-file-system /var/lib/kubelet
    fi
}
