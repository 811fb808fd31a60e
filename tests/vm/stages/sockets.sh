# With its socket unit a port or a socket is systemd's: a client that comes while the daemon is stopped starts it, and waits.
handed() { tr '\0' '\n' <"/proc/$(pid "$1")/environ" | grep -qx LISTEN_FDS=1; }
systemctl stop apiserver-lite
systemctl enable --now apiserver-lite.socket || fail 'the socket does not start'
! systemctl -q is-active apiserver-lite || fail 'the server runs before anybody asked'
api_up || fail 'a client is refused while the server starts'
same 'the server that a client started' active "$(systemctl is-active apiserver-lite)"
handed apiserver-lite || fail 'its port was not handed over'
ready
systemctl disable --now apiserver-lite.socket
systemctl restart apiserver-lite
until_true 120 'the API server is ready with a port of its own' api_up
! handed apiserver-lite || fail 'its port is still handed over'
ready
# The same with the agent and the socket of pod resources: a client is answered with HTTP/2 settings by who serves gRPC.
resources=/var/lib/kubelet/pod-resources/kubelet.sock
asks() {
    python3 - "$resources" <<'CLIENT'
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(300)
client.connect(sys.argv[1])
client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
answer = client.recv(9)
sys.exit(0 if len(answer) == 9 and answer[3] == 4 else f"no settings: {answer!r}")
CLIENT
}
asks || fail 'nobody serves pod resources'
systemctl stop node-agent
systemctl enable --now node-agent.socket || fail 'the socket of pod resources does not start'
! systemctl -q is-active node-agent || fail 'the agent runs before anybody asked'
asks || fail 'a client of pod resources is refused while the agent starts'
until_true 180 'the agent that a client started is active' systemctl -q is-active node-agent
handed node-agent || fail 'its socket was not handed over'
ready
systemctl disable --now node-agent.socket
systemctl restart node-agent
until_true 180 'the agent is active with a socket of its own' systemctl -q is-active node-agent
! handed node-agent || fail 'its socket is still handed over'
asks || fail 'nobody serves pod resources after the socket unit is gone'
ready
