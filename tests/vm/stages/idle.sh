# What both daemons cost while twenty pods sleep and nobody asks for anything: a table for docs/performance.md. IDLE_SECONDS
# is how long it looks (300), IDLE_PODS how many pods there are (20). Processor time in an emulator is many times that of a
# machine; the other columns are not.
seconds=${IDLE_SECONDS:-300}
number=${IDLE_PODS:-20}
units='node-agent apiserver-lite'
idle=$(seq -f 'idle-%g' "$number")
# A few at a time: see remove.
for name in $idle; do
    pod "$name"
    [ $((${name#idle-} % 4)) -ne 0 ] || runs "$name"
done
for name in $idle; do runs "$name"; done
restarts() { field "$pods" '[.items[] | select(.metadata.name | startswith("idle-")).status.containerStatuses[0].restartCount] | "\(length) \(add)"'; }
same 'pods, and restarts of them' "$number 0" "$(restarts)"

# snapshot PID: hundredths of a second of the processor, voluntary and other switches of all threads, bytes sent to disks
snapshot() {
    local cpu switches written
    cpu=$(sed 's/.*) //' "/proc/$1/stat" | awk -v ticks="$(getconf CLK_TCK)" '{print ($12 + $13) * 100 / ticks}')
    switches=$(cat "/proc/$1"/task/*/status | awk '/^voluntary_ctxt/ {v += $2} /^nonvoluntary_ctxt/ {n += $2} END {print v, n}')
    written=$(awk '/^write_bytes/ {print $2}' "/proc/$1/io")
    echo "$cpu $switches $written"
}
memory() { awk '/^Rss:/ {rss = $2} /^Pss:/ {pss = $2} /^Pss_Anon:/ {own = $2} END {printf "%.1f %.1f %.1f\n", rss / 1024, pss / 1024, own / 1024}' "/proc/$1/smaps_rollup"; }

# Starts leave work behind: logs that are rotated, memory that is given back, leases and events that settle.
sleep 60
declare -A daemon first
for unit in $units; do
    daemon[$unit]=$(pid "$unit")
    first[$unit]=$(snapshot "${daemon[$unit]}")
done
sleep "$seconds"
for unit in $units; do same "$unit is the process of before" "${daemon[$unit]}" "$(pid "$unit")"; done
echo '| | resident | proportional | its own | CPU | wake-ups per second | put aside per second | written to disk per minute |'
echo '|---|---|---|---|---|---|---|---|'
for unit in $units; do
    last=$(snapshot "${daemon[$unit]}")
    read -r rss pss own < <(memory "${daemon[$unit]}")
    awk -v unit="$unit" -v seconds="$seconds" -v rss="$rss" -v pss="$pss" -v own="$own" '
        NR == 1 {split($0, a)}
        NR == 2 {printf "| %s | %s MiB | %s MiB | %s MiB | %.2f %% | %.1f | %.2f | %.1f kB |\n", unit, rss, pss, own,
            ($1 - a[1]) / seconds, ($2 - a[2]) / seconds, ($3 - a[3]) / seconds, ($4 - a[4]) * 60 / seconds / 1000}' <<<"${first[$unit]}
$last" | tee "$state/idle-$unit"
done
same 'pods, and restarts of them' "$number 0" "$(restarts)"
# Far above what they have to be; passed, something leaks, turns in circles or writes for nothing.
within() { # within UNIT TEXT COLUMN LIMIT
    awk -F'|' -v column="$3" -v limit="$4" '{exit !($column + 0 <= limit)}' "$state/idle-$1" && ok "$1: $2 is at most $4" || fail "$1: $2 is above $4"
}
for unit in $units; do
    within "$unit" 'MiB that are its own' 5 48
    within "$unit" 'wake-ups per second' 7 60
    within "$unit" 'kB written per minute' 9 2000
done
remove $idle
