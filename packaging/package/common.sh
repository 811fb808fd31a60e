# Shared by the maintainer scripts of both packages and formats. A machine without systemd has nothing to be told.
booted() { [ -d /run/systemd/system ]; }
reload() { if booted; then systemctl daemon-reload || true; fi; }
# Also one that waits for something before it says that it is ready, or for its next start.
running() {
    booted || return 1
    case $(systemctl show --property=ActiveState --value "$1") in
        active | reloading | activating | refreshing) ;;
        *) return 1 ;;
    esac
}
# arguments UNIT PROGRAM: of the process that runs, one in a line and without the command's name, as a drop-in may have
# others than the unit.
arguments() {
    pid=$(systemctl show --property=MainPID --value "$1")
    [ ! -r "/proc/$pid/cmdline" ] || tr '\0' '\n' <"/proc/$pid/cmdline" | sed -e 1d -e "2{/^$2\$/d}"
}
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
# Without a systemd that runs, as in a chroot, only the links are taken away.
stop() {
    if booted; then
        systemctl --no-reload disable --now "$1" >/dev/null 2>&1 || true
    elif command -v systemctl >/dev/null; then
        systemctl --no-reload disable "$1" >/dev/null 2>&1 || true
    fi
}
