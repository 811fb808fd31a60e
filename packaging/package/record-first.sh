#!/usr/bin/env bash
# Writes the list of functions that linker.sh lays first, from what callgrind saw:
#
#   record-first.sh PROGRAM IDLE[,IDLE...] [BUSY[,BUSY...]] >packaging/package/DAEMON/first.txt
#
# PROGRAM has its symbols (compile.sh --config 'profile.dist.package.agent.strip="none"') and ran below
# `valgrind --tool=callgrind --demangle=no`. IDLE are files that `callgrind_control --dump` wrote when nothing had been asked of
# the daemon for minutes, BUSY those of its common work; `callgrind_control --zero` is to come before each. The functions of
# IDLE come first. Those that are one symbol come before those of many types, of which only some run, and otherwise they
# stay in the order in which they lay.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1
IFS=, read -ra idle <<<"$2"
IFS=, read -ra busy <<<"${3:-}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# NAME SYMBOL, in the order of addresses.
nm --defined-only --numeric-sort "$program" | awk '$2 ~ /[tTwW]/ { print $3 }' | "$here/mangled.sh" >"$work/all"
# Names are told where they come first, with a number in brackets; a second level of recursion has an apostrophe.
ran() {
    cat "$@" | sed -n "s/^c\\?fn=([0-9]*) \\([^' ]*\\).*/\\1/p" | sort -u
}
listed() {
    awk 'FILENAME == ARGV[1] { ran[$1]; next }
        FILENAME == ARGV[2] { many[$1]++; if ($2 in ran) wanted[$1]; next }
        $1 in wanted && !told[$1]++ { print (many[$1] > 1), $1 }' "$1" "$work/all" - <"$work/all" |
        sort -s -k1,1n | cut -d" " -f2
}
ran "${idle[@]}" >"$work/idle"
listed "$work/idle" | tee "$work/first"
if [ ${#busy[@]} -gt 0 ]; then
    ran "${busy[@]}" >"$work/busy"
    listed "$work/busy" | grep -vxFf "$work/first"
fi
