# A refused configuration leaves the old agent running and says so; an upgrade keeps the pod's process; a backup is whole.
web
before_pod=$(process web)
agent=$(pid node-agent)
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -1\n' >$conf/90-bad.conf
dpkg -i /root/packages/*.deb 2>&1 | tee "$state/upgrade"
grep -q 'NOT restarted' "$state/upgrade" || fail 'nothing is said about a configuration that is refused'
same 'the agent with a refused configuration' "$agent" "$(pid node-agent)"
rm $conf/90-bad.conf
dpkg -i /root/packages/*.deb
other() { [ "$(pid node-agent)" != "$agent" ]; }
until_true 120 'the upgrade restarted the agent' other
until_true 120 'the agent is up' systemctl -q is-active node-agent
ready
same 'the process of the pod' "$before_pod" "$(process web)"
until_true 120 'the API server is ready' api_up
rm -f /root/backup
apiserver-lite backup /root/backup
apiserver-lite check /root/backup || fail 'the backup is damaged'
ok 'the backup is whole'
sync
