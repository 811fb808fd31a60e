# The pods were ended the lowest priority first, each group after the one before; the node is Ready again.
until_true 300 'the API server is ready' api_up
same 'the order of asking' 'low high critical' "$(sort -n /var/lib/suite-order/asked | awk '{print $2}' | xargs)"
same 'the order of ending' 'low high critical' "$(sort -n /var/lib/suite-order/ended | awk '{print $2}' | xargs)"
before() { # before WHEN1 NAME1 WHEN2 NAME2: NAME1's note was written first
    local first second
    first=$(awk -v name="$2" '$2 == name {print $1}' "/var/lib/suite-order/$1")
    second=$(awk -v name="$4" '$2 == name {print $1}' "/var/lib/suite-order/$3")
    awk -v a="$first" -v b="$second" 'BEGIN {exit !(a <= b)}' && ok "$2 had ended before $4 was asked" || fail "$2 ended at $first, $4 was asked at $second"
}
before ended low asked high
before ended high asked critical
# The last line may be half of one.
same 'Ready of the node as the machine went down' 'False KubeletNotReady node is shutting down' "$(jq -r '.object.status.conditions[]? |
    select(.type == "Ready" and .status != "True") | "\(.status) \(.reason) \(.message)"' /var/lib/suite-order/node 2>/dev/null | sort | uniq | xargs)"
ready
for name in low high critical; do
    look $name
    same "phase and reason of $name" 'Failed Terminated' "$(seen $name '.status | "\(.phase) \(.reason)"')"
done
journalctl -q -b -1 --no-pager -o cat -u node-agent 2>/dev/null | tail -n 5 || true
remove low high critical
rm -f $conf/50-suite-shutdown.conf
restart_agent
# The pod of the other stages ended with the machine, as pods without a controller do.
if phase_is web Failed; then same 'the reason of the pod without a class' Terminated "$(seen web .status.reason)"; fi
web
