#!/usr/bin/env bash
# The linker of release builds: cc, told to lay side by side what a daemon runs again and again.
#
# The kernel maps sixteen pages of a program around each one that is touched, and the linker lays functions as the compiler
# made them, so that the megabyte or two that an idle daemon runs kept nearly all of its text in memory. Which functions those
# are says packaging/package/DAEMON/first.txt, one a line, in the order in which they are to lie: names as the compiler mangles
# them, without the hashes that differ from build to build. What stands there and is gone is passed over; what is not there
# lies behind, as all did before. record-first.sh writes such a list.
#
# Only lld can do it, which rustc takes by itself on x86-64; elsewhere, and for other programs, this is cc.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
output='' previous='' lld=false objects=()
for argument in "$@"; do
    [ "$previous" = -o ] && output=$argument
    previous=$argument
    case $argument in
        -fuse-ld=lld) lld=true ;;
        -fuse-ld=*) lld=false ;;
        *.o | *.rlib) objects+=("$argument") ;;
    esac
done
# cargo's name of a program is NAME-HASH.
daemon=$(basename "$output" | sed 's/-[0-9a-f]*$//; s/_/-/g')
first=$here/$daemon/first.txt
if [ "$lld" = true ] && [ -f "$first" ]; then
    order=$output.order
    # A function of many types is one name and many symbols, which all come. Without an order the program is the same, only
    # larger in memory, so what goes wrong here keeps nobody from it.
    if nm -P --defined-only "${objects[@]}" 2>/dev/null | sort -u | "$here/mangled.sh" |
        awk 'NR == FNR { place[$1] = NR; next } $1 in place { print place[$1], $2 }' "$first" - |
        sort -k1,1n -k2,2 | cut -d" " -f2 >"$order" && [ -s "$order" ]; then
        set -- "$@" -Xlinker --symbol-ordering-file -Xlinker "$order" -Wl,--no-warn-symbol-ordering
    else
        echo "linker.sh: nm did not tell the functions of $daemon; they lie as the compiler made them" >&2
    fi
fi
exec cc "$@"
