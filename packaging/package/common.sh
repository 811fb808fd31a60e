# Shared by the maintainer scripts of both packages and formats. A machine without systemd has nothing to be told.
booted() { [ -d /run/systemd/system ]; }
reload() { if booted; then systemctl daemon-reload || true; fi; }
running() { booted && systemctl --quiet is-active "$1"; }
# restart UNIT COMMAND...: starts the new version of a running daemon, when COMMAND finds its configuration good. Else the
# old one goes on, which is better than none.
restart() {
    unit=$1
    shift
    running "$unit" || return 0
    if said=$("$@" 2>&1); then
        # Not waited for: it is up only when the cluster has answered, which may be away.
        systemctl --no-block restart "$unit" || echo "$unit does not start again; see: systemctl status $unit" >&2
    else
        echo "$unit is NOT restarted: the new version refuses its configuration, and the old one runs on." >&2
        echo "$said" | sed 's/^/  /' >&2
        echo "Correct it, then: systemctl restart $unit" >&2
    fi
}
stop() { if booted; then systemctl --no-reload disable --now "$1" >/dev/null 2>&1 || true; fi; }
