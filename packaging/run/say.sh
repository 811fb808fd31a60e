# Output of the scripts: short lines, coloured on a terminal, one progress line for a long step. Sourced.

if [ -t 1 ]; then
    c_ok=$'\e[32m' c_bad=$'\e[31m' c_dim=$'\e[2m' c_bold=$'\e[1m' c_off=$'\e[0m'
else
    c_ok='' c_bad='' c_dim='' c_bold='' c_off=''
fi

say() { printf '%s\n' "$*"; }
ok() { printf '%s✓%s %s\n' "$c_ok" "$c_off" "$*"; }
note() { printf '%s  %s%s\n' "$c_dim" "$*" "$c_off"; }
die() {
    printf '%s✗ %s%s\n' "$c_bad" "$*" "$c_off" >&2
    exit 1
}

# step TEXT LOG COMMAND...: runs a long command with its output in LOG, a spinner meanwhile, the log's end on failure.
step() {
    local text=$1 log=$2 started=$SECONDS pid frames='|/-\' i=0
    shift 2
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    if [ -t 1 ]; then
        while kill -0 "$pid" 2>/dev/null; do
            printf '\r%s %s %s(%ds)%s ' "${frames:i++%4:1}" "$text" "$c_dim" $((SECONDS - started)) "$c_off"
            sleep 0.2
        done
        printf '\r\e[K'
    else
        say "... $text"
    fi
    if wait "$pid"; then
        ok "$text$([ $((SECONDS - started)) -lt 2 ] || echo " ($((SECONDS - started)) s)")"
    else
        tail -n 30 "$log" >&2
        die "$text failed; all of its output is in $log"
    fi
}
