#!/usr/bin/env bash
# Prints the man page of a daemon: what PROGRAM --help says, and NAME/man.roff around it.
#   man.sh PROGRAM NAME VERSION
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
program=$1 name=$2 version=$3
day=$(date -u -d "@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%d)
# Text as it is: no line may begin with a control character.
verbatim() { sed -e 's/\\/\\e/g; s/-/\\-/g; s/^\([.'"'"']\)/\\\&\1/'; }
subcommands() { # words under "Commands:" of a program's help
    "$@" --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'
}
helped() { # helped TITLE COMMAND...
    printf '.SS "%s"\n.nf\n' "$1"
    shift
    "$@" --help | verbatim
    printf '.fi\n'
}
sed -e "s/@VERSION@/$version/; s/@DAY@/$day/; /^@OPTIONS@/,\$d" "$here/$name/man.roff"
printf '.SH OPTIONS\n'
helped "$name" "$program"
if [ "$name" = node-agent ]; then commands='join status pods top checkpoint runtime'; else commands=$(subcommands "$program"); fi
for command in $commands; do
    helped "$name $command" "$program" "$command"
    for below in $(subcommands "$program" "$command"); do
        helped "$name $command $below" "$program" "$command" "$below"
    done
done
sed -e '1,/^@OPTIONS@/d' "$here/$name/man.roff"
