#!/usr/bin/env bash
# What the distributions' own checks say of our packages: an error of lintian or rpmlint ends it with 1.
#
#   lint.sh FOLDER        FOLDER/*.deb and FOLDER/*.rpm
#
# A check that is not installed is named as skipped (Debian: apt-get install lintian rpmlint).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:?which folder}"
failed=0
# check TOOL PATTERN COMMAND...: COMMAND with the packages that match.
check() {
    local tool=$1 pattern=$2 found
    shift 2
    mapfile -t found < <(compgen -G "$pattern")
    [ "${#found[@]}" -gt 0 ] || return 0
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: $tool is not installed" >&2
    elif ! "$@" "${found[@]}"; then
        echo "$tool finds errors" >&2
        failed=1
    fi
}
# Warnings are shown, and do not count.
check lintian '*.deb' lintian --allow-root --fail-on error
check rpmlint '*.rpm' rpmlint --config "$here/rpmlint.toml"
exit "$failed"
