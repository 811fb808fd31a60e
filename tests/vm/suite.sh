#!/usr/bin/env bash
# Runs inside the machine, one stage at a time: suite.sh STAGE. A stage that fails says what it saw and ends with 1.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib.sh"
stage=${1:?which stage}
[ -e "$here/stages/$stage.sh" ] || { echo "there is no stage $stage" >&2; exit 1; }
. "$here/stages/$stage.sh"
