#!/usr/bin/env bash
# `make test`: formatting, lints, licences, unit tests, then black-box tests against the release binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
export LOGS=$PWD/.test/logs
mkdir -p "$LOGS"
rm -f .test/skipped
. packaging/run/say.sh
bin=${CARGO_TARGET_DIR:-target}/release

packaging/run/prerequisites.sh test
note "free: $(df -h --output=avail . | tail -n 1 | tr -d ' ') of disk, $(free -h | awk '/^Mem/ { print $7 }') of memory"
step 'formatting' "$LOGS/fmt.log" cargo fmt --all --check
step 'clippy' "$LOGS/clippy.log" cargo clippy --workspace --all-targets --locked -- -D warnings
step 'release binaries' "$LOGS/build.log" env BUILD_PROFILE=release packaging/package/compile.sh
# Always the whole workspace, of which a part is run: of a part alone the crates would have other features, and all of them be
# built once more.
if cargo nextest --version >/dev/null 2>&1; then
    run_tests=(cargo nextest run --locked --workspace)
    unit_tests=(-E 'not package(tests)')
    black_box=(-E 'package(tests)')
    only_fuzz=(--test-threads=1 -E 'not package(tests) & test(fuzz::)')
else
    run_tests=(cargo test --locked --no-fail-fast)
    unit_tests=(--workspace --exclude tests)
    black_box=(-p tests)
    only_fuzz=(--workspace --exclude tests --lib 'fuzz::' -- --test-threads=1)
fi
venv() {
    [ -x .test/venv/bin/python ] || python3 -m venv .test/venv
    .test/venv/bin/python -m pip install -q -r tests/python/requirements.txt
}
step 'the Python client' "$LOGS/venv.log" venv
say '... unit tests'
"${run_tests[@]}" "${unit_tests[@]}"
# Broken input for every parser, a minute each: it needs one core and no clock, so it goes on beside the black-box tests,
# which mostly wait, and has what time they leave. A process group of its own, so that no parser outlives this script.
gives_way=(nice -n 19)
if chrt --idle 0 true 2>/dev/null; then gives_way=(chrt --idle 0); fi
set -m
FUZZ_SECONDS=60 "${gives_way[@]}" "${run_tests[@]}" "${only_fuzz[@]}" >"$LOGS/fuzz.log" 2>&1 &
fuzz=$!
set +m
trap 'kill -- -"$fuzz" 2>/dev/null || true' EXIT
say '... black-box tests'
"${run_tests[@]}" "${black_box[@]}"
say '... the end of the fuzzing'
wait "$fuzz" || { tail -n 40 "$LOGS/fuzz.log"; exit 1; }
# The packages: what the distributions' checks say, and their life in a folder of their own.
packages() {
    command -v rpmbuild >/dev/null || { echo 'packages: rpmbuild is missing' >>.test/skipped; return 0; }
    step 'packages' "$LOGS/packages.log" env BIN_DIR="$bin" packaging/package/build.sh target/packages
    step "the distributions' checks of them" "$LOGS/lint.log" packaging/package/lint.sh target/packages
    sed -n 's/^skipped: \(.*\) is not installed/the check of packages by \1/p' "$LOGS/lint.log" >>.test/skipped
    if [ "$(id -u)" != 0 ]; then
        echo 'installation of the packages: not root' >>.test/skipped
    else
        step 'their installation, upgrade and removal' "$LOGS/check-packages.log" packaging/package/check.sh target/packages
    fi
}
packages
# The packages on a machine of their own (tests/vm), in its short form: where there is an emulator, and the time allows. All
# of this is to be done in TEST_MINUTES (45), of which the machine takes some twenty where nothing else runs.
machine() {
    local tool left=$((${TEST_MINUTES:-45} - SECONDS / 60))
    for tool in mmdebstrap qemu-system-x86_64 cpio rpmbuild; do
        command -v "$tool" >/dev/null || { echo "the machine of tests/vm: $tool is missing" >>.test/skipped; return 0; }
    done
    [ "$left" -ge 20 ] || { echo "the machine of tests/vm: $left minutes are left, and it takes 20" >>.test/skipped; return 0; }
    # Without a mirror of Debian there is no image.
    tests/vm/run.sh image >"$LOGS/vm-image.log" 2>&1 || { echo 'the machine of tests/vm: its image cannot be made' >>.test/skipped; return 0; }
    step 'a machine of their own' "$LOGS/vm.log" tests/vm/run.sh short
}
machine
if [ -s .test/skipped ]; then
    say 'skipped, for want of something on this machine:'
    sed 's/^/    /' .test/skipped
fi
ok 'everything passed'
