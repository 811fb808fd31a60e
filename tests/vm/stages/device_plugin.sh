# A resource of a device plugin reaches a container: its variable, and a device with the rights that the plugin said.
offered() { [ "$(field "/api/v1/nodes/$node" '.status.allocatable["example.com/disk"]')" = "$1" ]; }
systemctl stop suite-plugin 2>/dev/null || true
systemctl reset-failed suite-plugin 2>/dev/null || true
systemd-run -q --unit suite-plugin python3 /root/device_plugin.py /var/lib/kubelet/device-plugins
until_true 120 'the node offers two devices' offered 2
pod disk '{"resources": {"limits": {"example.com/disk": "1"}}}'
runs disk
before=$(process disk)
same 'the variable of the plugin' 1 "$(inside disk sh -c 'echo $DISKS' | grep -c '^disk[01]$')"
inside disk dd if=/dev/given of=/dev/null bs=512 count=1 || fail 'the device cannot be read'
ok 'the container reads the device'
# Opened for appending and closed again: nothing is written, should it be allowed.
! inside disk sh -c ': >>/dev/given' 2>/dev/null || fail 'the device can be written, and the plugin said r'
ok 'it cannot write it'
pod without
runs without
! inside without test -e /dev/given || fail 'another pod has the device'
restart_agent
until_true 120 'the plugin is back after a restart of the agent' offered 2
same 'the process of the pod' "$before" "$(process disk)"
systemctl stop suite-plugin
until_true 120 'nothing is offered without the plugin' offered 0
same 'the process of the pod without its plugin' "$before" "$(process disk)"
remove disk without
