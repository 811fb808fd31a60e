#!/usr/bin/env bash
# Release binaries of both daemons, the same bytes whatever folders the sources and the crates are in: what the compiler
# writes into a program of where a line stood begins with /src, /cargo or /target.
#
#   compile.sh [OPTION OF CARGO...]
#
# Environment: BUILD_PROFILE (dist, which is optimised as a whole and is the default; or release, which builds in a third
# less time), CARGO_HOME, CARGO_TARGET_DIR, RUSTFLAGS, CARGO_ENCODED_RUSTFLAGS (as cargo has them). As with both of the
# last two, flags in cargo's own configuration do not count.
set -euo pipefail
profile=${BUILD_PROFILE:-dist}
case $profile in
    dist | release) ;;
    *) echo "BUILD_PROFILE is dist or release, and not $profile" >&2; exit 1 ;;
esac
top=$(cd "$(dirname "$0")/../.." && pwd)
crates=${CARGO_HOME:-$HOME/.cargo}
target=${CARGO_TARGET_DIR:-$top/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
# Of two that fit, the last counts. The list of cargo's own, for RUSTFLAGS cannot hold a folder with a blank in its name.
flags=()
if [ -n "${CARGO_ENCODED_RUSTFLAGS:-}" ]; then
    IFS=$'\x1f' read -ra flags <<<"$CARGO_ENCODED_RUSTFLAGS"
else
    read -ra flags <<<"${RUSTFLAGS:-}"
fi
flags+=("--remap-path-prefix=$top=/src" "--remap-path-prefix=$crates=/cargo" "--remap-path-prefix=$target=/target")
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS CARGO_TARGET_DIR=$target
# Which functions lie first: see there. Whoever names a linker has his own.
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
linker=CARGO_TARGET_${host}_LINKER
export "$linker=${!linker:-$top/packaging/package/linker.sh}"
cd "$top"
exec cargo build --profile "$profile" --locked -p apiserver-lite -p agent "$@"
