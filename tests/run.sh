#!/usr/bin/env bash
# `make test`: formatting, lints, licences, unit tests, then black-box tests against the release binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
export LOGS=$PWD/.test/logs
mkdir -p "$LOGS"
rm -f .test/skipped
. packaging/run/say.sh

packaging/run/prerequisites.sh test
step 'formatting' "$LOGS/fmt.log" cargo fmt --all --check
step 'clippy' "$LOGS/clippy.log" cargo clippy --workspace --all-targets --locked -- -D warnings
step 'release binaries' "$LOGS/build.log" cargo build --release --locked -p apiserver-lite -p agent
if cargo nextest --version >/dev/null 2>&1; then
    run_tests=(cargo nextest run --locked --no-fail-fast)
else
    run_tests=(cargo test --locked --no-fail-fast)
fi
venv() {
    [ -x .test/venv/bin/python ] || python3 -m venv .test/venv
    .test/venv/bin/python -m pip install -q -r tests/python/requirements.txt
}
step 'the Python client' "$LOGS/venv.log" venv
say '... unit tests'
"${run_tests[@]}" --workspace --exclude tests
say '... black-box tests'
"${run_tests[@]}" -p tests
if [ -s .test/skipped ]; then
    say 'skipped, for want of something on this machine:'
    sed 's/^/    /' .test/skipped
fi
ok 'everything passed'
