# With its socket unit the port is systemd's: a client that comes while the server is stopped starts it, and waits.
systemctl stop apiserver-lite
systemctl enable --now apiserver-lite.socket || fail 'the socket does not start'
! systemctl -q is-active apiserver-lite || fail 'the server runs before anybody asked'
api_up || fail 'a client is refused while the server starts'
same 'the server that a client started' active "$(systemctl is-active apiserver-lite)"
handed() { tr '\0' '\n' <"/proc/$(pid apiserver-lite)/environ" | grep -qx LISTEN_FDS=1; }
handed || fail 'its port was not handed over'
ready
systemctl disable --now apiserver-lite.socket
systemctl restart apiserver-lite
until_true 120 'the API server is ready with a port of its own' api_up
! handed || fail 'its port is still handed over'
ready
