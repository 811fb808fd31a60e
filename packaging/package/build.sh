#!/usr/bin/env bash
# Builds the packages of both daemons: .deb and .rpm, the same bytes from the same commit and binaries.
#
#   build.sh FOLDER       leaves FOLDER/*.deb and FOLDER/*.rpm
#
# Environment: BIN_DIR (folder of the two binaries, default target/dist), FORMATS ("deb rpm"), PACKAGES
# ("node-agent apiserver-lite"), ARCH (amd64 or arm64, default this machine's), VERSION (default: the workspace's),
# SOURCE_DATE_EPOCH (default: the commit's).
# Needs dpkg-deb for .deb, rpmbuild for .rpm (Debian: apt-get install rpm), cc with a static libc for the
# pause image, and cargo with the sources of the crates for their licences.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
mkdir -p "${1:?where to}"
out=$(cd "$1" && pwd)
bin=${BIN_DIR:-${CARGO_TARGET_DIR:-$top/target}/dist}
formats=${FORMATS:-deb rpm}
packages=${PACKAGES:-node-agent apiserver-lite}
case ${ARCH:-$(uname -m)} in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) arch=${ARCH:-$(uname -m)} ;;
esac
case $arch in
    amd64) rpm_arch=x86_64 ;;
    arm64) rpm_arch=aarch64 ;;
    *) echo "no packages for $arch" >&2; exit 1 ;;
esac
version=${VERSION:-$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$top/Cargo.toml")}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$top" log -1 --format=%ct)}
export TZ=UTC LC_ALL=C.UTF-8
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for package in $packages; do
    [ -x "$bin/$package" ] || { echo "$bin/$package is missing: make build, or set BIN_DIR" >&2; exit 1; }
done
# The program as this machine can run it, to be asked for its help.
runs() {
    local machine=$rpm_arch emulator
    if [ "$machine" = "$(uname -m)" ]; then echo "$bin/$1"; return; fi
    emulator=$(command -v "qemu-$machine-static" || command -v "qemu-$machine") ||
        { echo "qemu-$machine is missing, which runs programs of $arch (Debian: apt-get install qemu-user-static)" >&2; exit 1; }
    # Where the cross compiler keeps the libraries of the other architecture.
    printf '#!/bin/sh\nexec %s -L /usr/%s-linux-gnu "%s" "$@"\n' "$emulator" "$machine" "$bin/$1" >"$work/$1"
    chmod 0755 "$work/$1"
    echo "$work/$1"
}
needs() { command -v "$2" >/dev/null || { echo "$2 is missing; FORMATS='$formats' wants it (Debian: apt-get install $1)" >&2; exit 1; }; }
case " $formats " in *" deb "*) needs dpkg dpkg-deb ;; esac
case " $formats " in *" rpm "*) needs rpm rpmbuild ;; esac

put() { # put MODE SOURCE TARGET
    install -D -m "$1" "$2" "$3"
}

# The oldest glibc that the program runs with: of the machine that built it, whatever that was.
glibc() { grep -aoE 'GLIBC_2\.[0-9.]+' "$bin/$1" | sed 's/GLIBC_//' | sort -Vu | tail -n 1; }

# What both formats have: $1 package, $2 root.
stage() {
    local package=$1 root=$2 unit program
    program=$(runs "$package")
    put 0755 "$bin/$package" "$root/usr/bin/$package"
    for unit in "$package.service" "$package.socket" $([ "$package" != node-agent ] || echo kubepods.slice); do
        put 0644 "$top/systemd/$unit" "$root/usr/lib/systemd/system/$unit"
    done
    cp -rL "$here/$package/files/." "$root/"
    find "$root/etc" "$root/usr/lib" "$root/usr/share" -type f -exec chmod 0644 {} + 2>/dev/null || true
    for unit in "$top/systemd/drop-ins/$package"-*.conf; do
        put 0644 "$unit" "$root/usr/share/doc/$package/examples/${unit##*/"$package"-}"
    done
    "$here/man.sh" "$program" "$package" "$version" >"$work/$package.8"
    install -d "$root/usr/share/man/man8"
    gzip -9n <"$work/$package.8" >"$root/usr/share/man/man8/$package.8.gz"
    "$here/completions.sh" "$program" "$package" "$root/usr/share"
    [ -e "$work/$package.third-party" ] || "$here/notices.sh" "$([ "$package" = node-agent ] && echo agent || echo "$package")" \
        "$rpm_arch-unknown-linux-gnu" >"$work/$package.third-party"
    gzip -9n <"$work/$package.third-party" >"$root/usr/share/doc/$package/third-party.gz"
    if [ "$package" = node-agent ]; then
        [ -e "$work/images/pause.tar" ] || ARCH=$arch ONLY=pause "$top/packaging/images/build.sh" "$work/images" >&2
        put 0644 "$work/images/pause.tar" "$root/usr/share/node-agent/pause.tar"
    fi
    find "$root" -type d -exec chmod 0755 {} +
}

deb() {
    local package=$1 root=$work/deb/$1 doc
    doc=$root/usr/share/doc/$package
    stage "$package" "$root"
    put 0644 "$here/copyright" "$doc/copyright"
    changelog_deb "$package" | gzip -9n >"$doc/changelog.gz"
    install -d "$root/DEBIAN"
    local size
    size=$(du -k --apparent-size -s "$root" | cut -f1)
    sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@SIZE@/$size/; s/@GLIBC@/$(glibc "$package")/" "$here/$package/control" >"$root/DEBIAN/control"
    (cd "$root" && find etc -type f | sort | sed 's|^|/|') >"$root/DEBIAN/conffiles"
    (cd "$root" && find usr -type f | sort | xargs -d '\n' md5sum) >"$root/DEBIAN/md5sums"
    local script
    for script in postinst prerm postrm; do
        { printf '#!/bin/sh\nset -e\n'; cat "$here/common.sh" "$here/$package/scripts.sh" "$here/deb-$script.sh"; } >"$root/DEBIAN/$script"
        chmod 0755 "$root/DEBIAN/$script"
    done
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/${package}_${version}_$arch.deb" >/dev/null
    echo "$out/${package}_${version}_$arch.deb"
}

# The entries of this version in CHANGELOG.md; $1 goes in front of each.
changes() {
    local entry found=
    while read -r entry; do
        found+=$(fold -s -w 72 <<<"$entry" | sed "s/ *\$//; 1s/^/$1/; 2,\$s/^/${1//?/ }/")$'\n'
    done < <(awk -v wanted="## $version" '/^## / {on = $0 == wanted} on && sub(/^- /, "")' "$top/CHANGELOG.md")
    printf '%s' "${found:-${1}Version $version.}"
}
changelog_deb() {
    printf '%s (%s) unstable; urgency=medium\n\n%s\n\n -- orchestrator-lite <packages@orchestrator-lite.invalid>  %s\n' \
        "$1" "$version" "$(changes '  * ')" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

rpm_package() {
    local package=$1 root=$work/rpm/$1 spec=$work/$1.spec name
    stage "$package" "$root"
    put 0644 "$top/LICENSE" "$root/usr/share/licenses/$package/LICENSE"
    # Where the other family looks.
    [ ! -d "$root/usr/share/zsh/vendor-completions" ] || mv "$root/usr/share/zsh/vendor-completions" "$root/usr/share/zsh/site-functions"
    rm -rf "$root/etc/apparmor.d"
    {
        sed -e "s/@VERSION@/$version/; s/@GLIBC@/$(glibc "$package")/" "$here/$package/spec"
        for name in post preun postun; do
            printf '\n%%%s\n' "$name"
            cat "$here/common.sh" "$here/$package/scripts.sh" "$here/rpm-$name.sh" | sed 's/%/%%/g'
        done
        printf '\n%%files\n'
        (cd "$root" && find etc -type f | sort | sed 's|^|%config(noreplace) /|'; find etc usr -type d -path "*orchestrator-lite*" | sort | sed 's|^|%dir /|'
            find usr -type d \( -path "usr/share/$package*" -o -path "usr/share/doc/$package*" -o -path "usr/share/licenses/$package*" \) | sort | sed 's|^|%dir /|'
            find usr -type f ! -path 'usr/share/licenses/*' ! -path 'usr/share/doc/*' | sort | sed 's|^|/|'
            find usr/share/doc -type f | sort | sed 's|^|%doc /|'; find usr/share/licenses -type f | sort | sed 's|^|%license /|')
        printf '\n%%changelog\n* %s orchestrator-lite <packages@orchestrator-lite.invalid> - %s-1\n%s\n' \
            "$(date -u -d "@$SOURCE_DATE_EPOCH" '+%a %b %d %Y')" "$version" "$(changes '- ' | sed 's/%/%%/g')"
    } >"$spec"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    rpmbuild -bb --quiet --target "$rpm_arch" --buildroot "$work/buildroot" \
        --define "_topdir $work/rpmbuild" --define "_rpmdir $work/rpms" --define "staged $root" --define '_buildhost localhost' \
        --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
        --define '_binary_payload w9.xzdio' --define '__os_install_post %{nil}' --define 'debug_package %{nil}' \
        --define '_build_id_links none' --define '_unitdir /usr/lib/systemd/system' "$spec" >"$work/$package.rpm.log" 2>&1 ||
        { cat "$work/$package.rpm.log" >&2; exit 1; }
    mv "$work/rpms/$rpm_arch/"*.rpm "$out/"
    echo "$out/$package-$version-1.$rpm_arch.rpm"
}

for package in $packages; do
    case " $formats " in *" deb "*) deb "$package" ;; esac
    case " $formats " in *" rpm "*) rpm_package "$package" ;; esac
done
