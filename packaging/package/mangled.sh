#!/usr/bin/env bash
# Reads symbols, one a line, and writes each behind its name without what differs from build to build: the hash at the end of
# the older way of mangling, those of crates in the newer (in which the standard library is), and the compiler's own numbers.
set -euo pipefail
exec awk '{
    name = $1
    sub(/\.(llvm\.)?[0-9]+$/, "", name)
    if (name ~ /^_ZN/) sub(/17h[0-9a-f]+E$/, "", name)
    else if (name ~ /^_R/) gsub(/Cs[0-9A-Za-z]+_/, "C", name)
    print name, $1
}'
