# Purged with pods stopped first, nothing of ours is left but what systemd keeps of transient units until the next boot.
systemctl stop node-agent
node-agent pods stop
dpkg --purge node-agent apiserver-lite || fail 'dpkg --purge'
for left in /etc/orchestrator-lite /etc/apparmor.d/apiserver-lite /var/lib/apiserver-lite /var/lib/kubelet /usr/bin/node-agent \
    /usr/bin/apiserver-lite /usr/lib/systemd/system/node-agent.service; do
    [ ! -e "$left" ] || fail "$left is left: $(find "$left" | head)"
done
! systemctl -q is-active node-agent apiserver-lite || fail 'a daemon still runs'
left=$(systemctl list-units --failed --no-legend 'node-agent*' 'apiserver-lite*')
[ -z "$left" ] || fail "systemd remembers $left"
ok 'nothing is left'
