# The packages install; units verify; the API server is no root process and starts.
dpkg -i /root/packages/*.deb || fail 'dpkg -i'
systemd-analyze verify --man=no /usr/lib/systemd/system/{{node-agent,apiserver-lite}.{service,socket},kubepods.slice} || fail 'systemd-analyze verify'
systemd-analyze security --no-pager --threshold=15 apiserver-lite.service >/dev/null || fail 'apiserver-lite.service is too open'
driver_is systemd
ctr -n k8s.io images import /usr/share/node-agent/pause.tar >/dev/null
ctr -n k8s.io images import /root/busybox.tar >/dev/null
# Refused: settings that are wrong, before anything runs on them.
! apiserver-lite serve --check --secure-port=0 2>/dev/null || fail 'wrong settings pass'
systemctl enable --now apiserver-lite || fail 'apiserver-lite does not start'
[ "$(ps -o user= -p "$(pid apiserver-lite)")" != root ] || fail 'apiserver-lite runs as root'
until_true 120 'the API server is ready' api_up
