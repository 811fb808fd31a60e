#!/usr/bin/env bash
# Prints the crates that are linked into a daemon, with their licences and the texts that these ask to be kept.
#   notices.sh CRATE TARGET      TARGET as cargo names it, x86_64-unknown-linux-gnu say
set -euo pipefail
cd "$(dirname "$0")/../.."
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo tree --quiet --locked --target "$2" --edges normal,no-proc-macro --prefix none --format '{p}|{l}' -p "$1" |
    sed 's/ (\*)$//' | grep -v ' (/' | sort -u >"$work/crates"
printf 'Crates that are linked into this program, and their licences.\n\n'
sed 's/|/  /' "$work/crates"
while IFS='| ' read -r name version licence; do
    folder=$(compgen -G "$registry/*/$name-${version#v}" | head -n 1) || { echo "no source of $name $version below $registry" >&2; exit 1; }
    find "$folder" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | while read -r file; do
        sum=$(sha256sum <"$file" | cut -c 1-64)
        echo "$name ${version#v}" >>"$work/$sum.of"
        cp "$file" "$work/$sum.text"
        echo "$sum"
    done
done <"$work/crates" | awk '!seen[$0]++' >"$work/texts"
while read -r sum; do
    printf '\n%s\n%s\n\n' "$(printf '=%.0s' {1..78})" "$(sort -u "$work/$sum.of" | paste -sd, | sed 's/,/, /g' | fold -s -w 78)"
    tr -d '\r' <"$work/$sum.text"
done <"$work/texts"
