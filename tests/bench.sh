#!/usr/bin/env bash
# `make bench`: the figures of docs/performance.md, in-process benches first, then the API server as a whole.
set -euo pipefail
cd "$(dirname "$0")/.."
uname -sr
grep -m 1 'model name' /proc/cpuinfo || true
git rev-parse --short HEAD
cargo bench --workspace --exclude tests --benches
cargo run --release -p tests --bin load -- "$@"
