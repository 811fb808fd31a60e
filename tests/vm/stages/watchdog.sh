# Both daemons are started again after SIGSTOP, and the pod keeps its process.
web
before_pod=$(process web)
for unit in node-agent apiserver-lite; do
    before=$(pid $unit)
    kill -STOP "$before"
    other() { [ "$(pid $unit)" != "$before" ] && [ "$(pid $unit)" != 0 ]; }
    until_true 240 "$unit is started again after it hung" other
    until_true 180 "$unit is active" systemctl -q is-active $unit
done
until_true 120 'the API server is ready' api_up
ready
same 'the process of the pod' "$before_pod" "$(process web)"
