#!/usr/bin/env bash
# `make bench`: the figures of docs/performance.md, the codecs by themselves first, then the API server as a whole,
# then the agent with a runtime of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
uname -sr
grep -m 1 'model name' /proc/cpuinfo || true
git rev-parse --short HEAD
# The programs that are measured are the ones that are packed.
export BIN_DIR=${CARGO_TARGET_DIR:-target}/dist
packaging/package/compile.sh -p tests --bins
"$BIN_DIR"/codecs
"$BIN_DIR"/load "$@"
"$BIN_DIR"/agent-load
