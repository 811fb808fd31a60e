#!/usr/bin/env bash
# Installs what is missing from the distribution. With `test`, also what only the tests need.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/say.sh"

missing=()
need() { # need PACKAGE TEST...: adds PACKAGE when the test fails
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
static_busybox() { command -v busybox && busybox --list | grep -x httpd && ! ldd "$(command -v busybox)"; }
static_libc() { echo 'int main(void){return 0;}' | cc -static -x c -o /dev/null -; }
venv() { python3 -c 'import venv, ensurepip'; }

need gcc command -v cc
need libc6-dev static_libc
need containerd command -v containerd
need runc command -v runc
need containernetworking-plugins test -x /usr/lib/cni/bridge
need iptables command -v iptables
need busybox-static static_busybox
need iproute2 command -v ip
need curl command -v curl
if [ "${1:-}" = test ]; then
    need python3 command -v python3
    need python3-venv venv
    need dbus-daemon command -v dbus-daemon
    need prometheus command -v promtool
    need rpm command -v rpmbuild
    need lintian command -v lintian
    need rpmlint command -v rpmlint
fi
[ ${#missing[@]} -eq 0 ] && exit 0
[ "$(id -u)" = 0 ] || die "not root, and these packages are missing: ${missing[*]}"
command -v apt-get >/dev/null || die "install these (their Debian names): ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
mkdir -p "${LOGS:-/tmp}"
log=${LOGS:-/tmp}/apt.log
install() {
    apt-get install -y --no-install-recommends "${missing[@]}" || { apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }
}
# The packages start their services where systemd runs; without it there is nothing that could.
step "installing ${missing[*]}" "$log" install
