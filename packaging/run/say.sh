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

# spin TEXT: one frame of a progress line, on a terminal. unspin: takes the line away again.
spin_frame=0
spin() {
    [ -t 1 ] || return 0
    local frames='|/-\'
    printf '\r\e[K%s %s' "${frames:spin_frame++%4:1}" "$1"
}
unspin() { [ ! -t 1 ] || printf '\r\e[K'; }

# The process group of the step that runs; `end_step` ends it. A command in the background of a script does not hear Ctrl-C.
step_pid=
end_step() { [ -z "$step_pid" ] || kill -TERM -- "-$step_pid" 2>/dev/null || true; }

# step TEXT LOG COMMAND...: runs a long command with its output in LOG, a spinner meanwhile, the log's end on failure.
step() {
    local text=$1 log=$2 started=$SECONDS pid
    shift 2
    set -m
    "$@" >"$log" 2>&1 </dev/null 8>&- &
    pid=$!
    set +m
    step_pid=$pid
    [ -n "$(trap -p INT)" ] || trap 'end_step; exit 130' INT TERM
    if [ -t 1 ]; then
        while kill -0 "$pid" 2>/dev/null; do
            spin "$text $c_dim($((SECONDS - started)) s)$c_off"
            sleep 0.2
        done
        unspin
    else
        say "... $text"
    fi
    if wait "$pid"; then
        step_pid=
        ok "$text$([ $((SECONDS - started)) -lt 2 ] || echo " ($((SECONDS - started)) s)")"
    else
        step_pid=
        tail -n 30 "$log" >&2
        die "$text failed; all of its output is in $log"
    fi
}
