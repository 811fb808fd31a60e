# Both daemons are started again after SIGSTOP, within the period that their packages set, and the pod keeps its process.
web
before_pod=$(process web)
period=30
# The image gives both more time, for stages that leave an emulator no processor to spare.
slow() { echo "/etc/systemd/system/$1.service.d/slow.conf"; }
slow_again() {
    local unit
    for unit in node-agent apiserver-lite; do [ ! -e "$state/$unit.slow" ] || mv "$state/$unit.slow" "$(slow $unit)"; done
    systemctl daemon-reload
}
slow_again
trap slow_again EXIT
for unit in node-agent apiserver-lite; do
    mv "$(slow $unit)" "$state/$unit.slow"
    systemctl daemon-reload
    systemctl restart $unit || fail "$unit does not start with the watchdog of its package"
    until_true 180 "$unit is active" systemctl -q is-active $unit
    same "the watchdog of $unit" "${period}s" "$(systemctl show -P WatchdogUSec $unit)"
    until_true 120 'the API server is ready' api_up
    ready
    before=$(pid $unit)
    since=$(date +%s)
    kill -STOP "$before"
    noticed() { journalctl -q -o cat -u $unit --since "@$since" | grep -q "Watchdog timeout (limit ${period}s)"; }
    until_true 60 "systemd sees that $unit hangs" noticed
    # When it was said, not when we saw it. The last keep-alive came before the stop, so the period has begun by then.
    said=$(journalctl -q -o short-unix -u $unit --since "@$since" | sed -n 's/^\([0-9]*\)\..*Watchdog timeout.*/\1/p' | head -n 1)
    [ $((said - since)) -le $((period + 2)) ] || fail "$unit was noticed $((said - since)) s after it hung, with a period of $period s"
    ok "$unit was noticed $((said - since)) s after it hung, with a period of $period s"
    other() { [ "$(pid $unit)" != "$before" ] && [ "$(pid $unit)" != 0 ]; }
    until_true 240 "$unit is started again after it hung" other
    until_true 180 "$unit is active" systemctl -q is-active $unit
done
slow_again
systemctl restart apiserver-lite node-agent
until_true 120 'the API server is ready' api_up
ready
same 'the process of the pod' "$before_pod" "$(process web)"
