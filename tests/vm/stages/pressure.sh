# Stalls show in /stats/summary and /metrics/cadvisor; a container over its limit is OOM-killed; pressure on the node's
# memory evicts the pod that uses more than it asked for, and no other.
pod thrash '{"resources": {"limits": {"memory": "24Mi"}}, "command": ["sh", "-c", "dd if=/dev/zero of=/data/f bs=1M count=80; while :; do cat /data/f >/dev/null; done"],
    "volumeMounts": [{"name": "d", "mountPath": "/data"}]}' '{"volumes": [{"name": "d", "emptyDir": {}}]}'
# A runtime that the emulator keeps waiting loses the event of an OOM kill at times, and has only the exit code to tell: the
# pod is run again then, up to three times.
for try in 1 2 3; do
    pod oom '{"resources": {"limits": {"memory": "24Mi"}}, "command": ["tail", "/dev/zero"]}' '{"restartPolicy": "Never"}'
    until_true 180 'a container over its limit dies' phase_is oom Failed
    said=$(seen oom '.status.containerStatuses[0].state.terminated | "\(.reason) \(.exitCode)"')
    [ "$said" = 'Error 137' ] && [ "$try" -lt 3 ] || break
    remove oom
done
same 'what its status says' 'OOMKilled 137' "$said"
runs thrash
stalled() { [ "$(agent /stats/summary | jq '[.pods[] | select(.podRef.name == "thrash").containers[0].memory.psi.some.total] | first // 0')" -gt 100000 ]; }
until_true 180 'its stalls are in /stats/summary' stalled
node_psi() { agent /stats/summary | jq -e '.node | .memory.psi.some.avg10 >= 0 and .cpu.psi.some.total > 0 and .io.psi.full.total >= 0'; }
until_true 30 'so are those of the node' node_psi
in_metrics() { agent /metrics/cadvisor | grep 'container_pressure_memory_waiting_seconds_total{.*pod="thrash"' | awk '$2 > 0.1 {found = 1} END {exit !found}'; }
until_true 60 'and in /metrics/cadvisor' in_metrics
remove thrash oom

available=$(($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) / 1024))
configure 50-suite-pressure "evictionHard: {memory.available: $((available - 500))Mi}
evictionPressureTransitionPeriod: 10s"
pod meek '{"resources": {"requests": {"memory": "100Mi"}}, "command": ["sh", "-c", "dd if=/dev/zero of=/m/f bs=1M count=60; exec sleep 86399"], "volumeMounts": [{"name": "m", "mountPath": "/m"}]}' \
    '{"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]}'
runs meek
pod hog '{"command": ["sh", "-c", "dd if=/dev/zero of=/m/f bs=1M count=600; exec sleep 86399"], "volumeMounts": [{"name": "m", "mountPath": "/m"}]}' \
    '{"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]}'
until_true 180 'the hog is evicted' phase_is hog Failed
same 'the reason' Evicted "$(seen hog .status.reason)"
message=$(seen hog .status.message)
case $message in 'The node was low on resource: memory.'*) ok "$message" ;; *) fail "the message is $message" ;; esac
same 'the other pod' Running "$(look meek; seen meek .status.phase)"
pressed() { [ "$(node_condition MemoryPressure)" = "$1" ]; }
until_true 120 'the pressure is over' pressed False
same 'its first cause in the events' 1 "$(field '/api/v1/namespaces/default/events' '[.items[] | select(.reason == "Evicted" and .involvedObject.name == "hog")] | length')"
remove meek hog
unconfigure 50-suite-pressure
# Where the end of a pod takes longer than half a minute the next one follows, which may be the one of all stages.
web
