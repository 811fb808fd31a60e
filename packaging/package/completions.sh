#!/usr/bin/env bash
# Writes completions for bash, zsh and fish from what PROGRAM --help says.
#   completions.sh PROGRAM NAME SHARE      SHARE is the package's /usr/share
set -euo pipefail
program=$1 name=$2 share=$3
flags() { "$@" --help 2>/dev/null | grep -oE '^ +(-[a-zA-Z], )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+' | sort -u; }
subcommands() { "$@" --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'; }
declare -A words
if [ "$name" = node-agent ]; then
    commands=$({ echo run; "$program" --help | sed -n 's/^  node-agent \([a-z][a-z]*\).*/\1/p'; } | sort -u)
    words[run]=$(flags "$program")
    words[config]="view check reference --this-machine ${words[run]}"
    words[doctor]=${words[run]}
    for command in status pods top checkpoint runtime join; do
        words[$command]="$(subcommands "$program" "$command") $(flags "$program" "$command")"
    done
else
    commands=$(subcommands "$program")
    for command in $commands; do
        words[$command]="$(subcommands "$program" "$command") $(flags "$program" "$command")"
        for below in $(subcommands "$program" "$command"); do
            words[$command]+=" $(flags "$program" "$command" "$below")"
        done
    done
fi
one_line() { tr -s ' \n' ' ' <<<"$1" | sed 's/^ //; s/ $//'; }
function=_${name//-/_}
mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
{
    printf '# bash completion for %s\n%s() {\n    local current=${COMP_WORDS[COMP_CWORD]} words\n' "$name" "$function"
    printf '    if [ "$COMP_CWORD" -le 1 ]; then\n        words="%s --help --version"\n    else\n        case ${COMP_WORDS[1]} in\n' "$(one_line "$commands")"
    for command in $commands; do printf '            %s) words="%s" ;;\n' "$command" "$(one_line "${words[$command]:-}")"; done
    printf '            *) words= ;;\n        esac\n    fi\n'
    printf '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")\n    [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$current")\n}\n'
    printf 'complete -o filenames -F %s %s\n' "$function" "$name"
} >"$share/bash-completion/completions/$name"
{
    printf '#compdef %s\nlocal -a words\nif (( CURRENT == 2 )); then\n    words=(%s --help --version)\nelse\n    case $words[2] in\n' "$name" "$(one_line "$commands")" | sed 's/local -a words/local -a choices/; s/    words=(/    choices=(/'
    for command in $commands; do printf '        %s) choices=(%s) ;;\n' "$command" "$(one_line "${words[$command]:-}")"; done
    printf '    esac\nfi\ncompadd -- $choices\n_files\n'
} >"$share/zsh/vendor-completions/_$name"
{
    printf '# fish completion for %s\n' "$name"
    printf 'complete -c %s -n __fish_use_subcommand -f -a "%s"\n' "$name" "$(one_line "$commands")"
    for command in $commands; do
        for word in ${words[$command]:-}; do
            case $word in
                --*) printf 'complete -c %s -n "__fish_seen_subcommand_from %s" -l %s\n' "$name" "$command" "${word#--}" ;;
                *) printf 'complete -c %s -n "__fish_seen_subcommand_from %s" -a %s\n' "$name" "$command" "$word" ;;
            esac
        done
    done
} >"$share/fish/vendor_completions.d/$name.fish"
