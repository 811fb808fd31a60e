# Three pods that note when they are asked to end, and a shutdown that goes by priority. Followed by a reboot and after_reboot.
for class in low:0 high:1000; do
    post /apis/scheduling.k8s.io/v1/priorityclasses "{\"apiVersion\": \"scheduling.k8s.io/v1\", \"kind\": \"PriorityClass\", \"metadata\": {\"name\": \"suite-${class%:*}\"}, \"value\": ${class#*:}}" || true
done
# The packaged configuration gives one period for all, which excludes periods by priority.
configure 50-suite-shutdown 'shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 90}
- {priority: 1000, shutdownGracePeriodSeconds: 90}
- {priority: 2000000000, shutdownGracePeriodSeconds: 90}'
held() { systemd-inhibit --list --no-pager | grep -i 'shutdown.*delay'; }
until_true 60 'the agent holds a lock of logind' held
rm -rf /var/lib/suite-order
mkdir /var/lib/suite-order
note() { # note NAME CLASS
    pod "$1" "{\"command\": [\"sh\", \"-c\", \"trap 'read up rest </proc/uptime; echo \$up $1 >>/order/asked; sleep 3; read up rest </proc/uptime; echo \$up $1 >>/order/ended; sync; exit 0' TERM; while :; do sleep 1; done\"],
        \"volumeMounts\": [{\"name\": \"o\", \"mountPath\": \"/order\"}]}" \
        "{\"priorityClassName\": \"$2\", \"terminationGracePeriodSeconds\": 15, \"volumes\": [{\"name\": \"o\", \"hostPath\": {\"path\": \"/var/lib/suite-order\"}}]}"
}
note low suite-low
note high suite-high
note critical system-node-critical
for name in low high critical; do runs $name; done
# What the node says of itself until the machine has ended.
api GET /readyz -o /dev/null
systemd-run --quiet --collect --unit=suite-node --property=StandardOutput=file:/var/lib/suite-order/node curl -fsSN --cacert /var/lib/apiserver-lite/pki/ca.crt \
    --cert "$state/crt" --key "$state/key" "$server/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D$node"
until_true 60 'the node is watched' test -s /var/lib/suite-order/node
