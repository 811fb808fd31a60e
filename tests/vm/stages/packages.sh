# Remove keeps pods, state and configuration; installed again the node goes on; a downgrade is an upgrade backwards.
web
before_pod=$(process web)
dpkg --remove node-agent
! systemctl -q is-active node-agent || fail 'the agent runs after its removal'
[ -d /var/lib/kubelet/pods ] && [ -e /etc/orchestrator-lite/node-agent.kubeconfig ] || fail 'a removal took the state along'
same 'the process of the pod after a removal' "$before_pod" "$(process web)"
dpkg -i /root/packages/node-agent_*.deb
systemctl enable --now node-agent || fail 'the agent does not start again'
ready
same 'the process of the pod when installed again' "$before_pod" "$(process web)"

rm -rf /root/older
mkdir /root/older
for file in /root/packages/*.deb; do
    dpkg-deb -R "$file" /root/older/root
    sed -i 's/^Version: .*/Version: 0.0.1/' /root/older/root/DEBIAN/control
    dpkg-deb -Znone --root-owner-group -b /root/older/root "/root/older/${file##*/}" >/dev/null
    rm -rf /root/older/root
done
for folder in older packages; do
    agent=$(pid node-agent)
    dpkg -i /root/$folder/*.deb
    other() { [ "$(pid node-agent)" != "$agent" ]; }
    until_true 120 "the agent of $folder is another process" other
    until_true 120 'it is up' systemctl -q is-active node-agent
    until_true 120 'the API server is ready' api_up
    ready
    same "the process of the pod with $folder" "$before_pod" "$(process web)"
done
rm -rf /root/older
same 'AppArmor of the API server' 'apiserver-lite (enforce)' "$(cat "/proc/$(pid apiserver-lite)/attr/current")"
