#!/usr/bin/env bash
# Builds OCI image archives from local static binaries, for runtimes with no registry in reach.
#
#   build.sh FOLDER [PAUSE_NAME]
#
# Leaves FOLDER/pause.tar (named PAUSE_NAME, default registry.k8s.io/pause:3.10) and FOLDER/busybox.tar (named
# localhost/busybox:1). The same input gives the same bytes. Needs cc with a static libc, busybox-static (but with ONLY=pause), tar.
# Environment: ARCH (amd64, arm64 or riscv64, default this machine's; another one has no busybox.tar), ONLY (pause: no busybox.tar), CC (the compiler for
# this machine's; the others have the cross compilers of Debian's names).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
pause_name=${2:-registry.k8s.io/pause:3.10}
case $(uname -m) in
    x86_64) here_arch=amd64 ;;
    aarch64) here_arch=arm64 ;;
    *) here_arch=$(uname -m) ;;
esac
arch=${ARCH:-$here_arch}
compiler=${CC:-cc}
if [ "$arch" != "$here_arch" ]; then
    case $arch in
        amd64) compiler=x86_64-linux-gnu-gcc ;;
        arm64) compiler=aarch64-linux-gnu-gcc ;;
        *) compiler=$arch-linux-gnu-gcc ;;
    esac
fi
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# archive ROOT NAME RUNS FILE: one layer with all of ROOT, as an OCI layout in a tar file. RUNS is the member of the
# image's config that says what it runs, as JSON.
archive() {
    local root=$1 name=$2 runs=$3 file=$4 layout=$work/layout
    rm -rf "$layout"
    mkdir -p "$layout/blobs/sha256"
    tar -C "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/layer.tar" .
    put() { # puts a file among the blobs; sets $digest and $size
        digest=$(sha256sum "$1" | cut -d' ' -f1)
        size=$(stat -c %s "$1")
        cp "$1" "$layout/blobs/sha256/$digest"
    }
    put "$work/layer.tar"
    local layer=$digest layer_size=$size
    printf '{"architecture":"%s","os":"linux","config":{%s,"Env":["PATH=/bin:/usr/bin:/sbin:/usr/sbin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$arch" "$runs" "$layer" >"$work/config.json"
    put "$work/config.json"
    printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' \
        "$digest" "$size" "$layer" "$layer_size" >"$work/manifest.json"
    put "$work/manifest.json"
    printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"%s","org.opencontainers.image.ref.name":"%s"}}]}' \
        "$digest" "$size" "$name" "${name##*:}" >"$layout/index.json"
    printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
    tar -C "$layout" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$file" .
}

mkdir -p "$work/pause"
"$compiler" -Os -static -s -o "$work/pause/pause" "$here/pause.c"
archive "$work/pause" "$pause_name" '"Entrypoint":["/pause"]' "$out/pause.tar"

[ "$arch" = "$here_arch" ] && [ "${ONLY:-}" != pause ] || exit 0
busybox=$(command -v busybox) || { echo 'busybox is missing (Debian: apt-get install busybox-static)' >&2; exit 1; }
mkdir -p "$work/busybox"/{bin,etc,tmp,root,home,var}
chmod 1777 "$work/busybox/tmp"
cp "$busybox" "$work/busybox/bin/busybox"
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$work/busybox/bin/$applet"
done
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n' >"$work/busybox/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$work/busybox/etc/group"
archive "$work/busybox" localhost/busybox:1 '"Cmd":["sh"]' "$out/busybox.tar"
