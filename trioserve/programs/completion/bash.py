"""The script for bash. It needs bash 4, and no other package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from .tables import LIST_MODELS, CommandTable, split_names

_HEAD = """\
# Completion of trioserve in bash; printed by `trioserve completion bash`.

_trioserve_models() {{
{models}}}

# Sets the words of a command. Arguments: the command, and a flag before the cursor.
_trioserve_describe() {{
    flags=() switches='' files='' models='' takes='' choices=() words=()
    case $1 in
"""

# The line is split at blanks, because bash itself splits it at = and : too. Of a match, bash
# then wants only the part behind the last of these.
_TAIL = """\
    esac
}

_trioserve() {
    local IFS=$' \\t\\n' line=${COMP_LINE:0:COMP_POINT}
    local -a typed flags choices words names seconds
    local switches files models takes current flag= prefix= command first=2
    read -ra typed <<< "$line"
    [[ $line == *[[:space:]] ]] && typed+=('')
    current=${typed[-1]}
    COMPREPLY=()
    if (( ${#typed[@]} == 2 )); then
        _trioserve_offer @FIRST_WORDS@
        return
    fi
    command=${typed[1]}
    case $command in
@SECOND_WORDS@
    esac
    if (( ${#typed[@]} == 3 )); then
        _trioserve_offer "${seconds[@]}"
    elif [[ " ${seconds[*]} " == *" ${typed[2]} "* ]]; then
        command+=" ${typed[2]}" first=3
    fi
    if [[ $current == --*=* ]]; then
        flag=${current%%=*} prefix=${current%%=*}=
    elif (( ${#typed[@]} - 2 >= first )); then
        flag=${typed[-2]}
    fi
    flag=${flag//_/-}
    _trioserve_describe "$command" "$flag"
    if [[ $current == -* && -z $prefix ]]; then
        _trioserve_offer "${flags[@]}"
    elif [[ $flag == -* && $switches != *" $flag "* ]]; then
        if (( ${#choices[@]} )); then
            _trioserve_offer "${choices[@]}"
        elif [[ $models == *" $flag "* ]]; then
            _trioserve_offer_models
        elif [[ $files == *" $flag "* ]]; then
            compopt -o default
        fi
    elif [[ $takes == model ]]; then
        _trioserve_offer_models
    else
        _trioserve_offer "${words[@]}"
    fi
}

# Offers the arguments that continue the typed text.
_trioserve_offer() {
    local text cut=0 breaks=${COMP_WORDBREAKS//[^:=]}
    if [[ $breaks && $current == *[$breaks]* ]]; then
        text=${current##*[$breaks]}
        cut=$(( ${#current} - ${#text} ))
    fi
    for text; do
        text=$prefix$text
        [[ $text == "$current"* ]] && COMPREPLY+=("${text:cut}")
    done
}

# Offers models of the caches, or files. Anybody may have named a folder of a cache, so that
# Enter must not run a command in its name.
_trioserve_offer_models() {
    local i
    mapfile -t names < <(_trioserve_models)
    _trioserve_offer "${names[@]}"
    (( ${#COMPREPLY[@]} )) || compopt -o default
    for i in "${!COMPREPLY[@]}"; do
        printf -v "COMPREPLY[i]" %q "${COMPREPLY[i]}"
    done
}

complete -F _trioserve trioserve
"""


def write(tables: Sequence[CommandTable], layout: str) -> str:
    """Return the script.

    Args:
      layout: the name of the folder with the cache's entries.
    """
    names = split_names(tables)
    models = LIST_MODELS.format(layout=layout, glob="", add="printf '%s\\n'", end="")
    parts = [_HEAD.format(models=models)]
    parts += ["".join(_describe(table)) for table in tables]
    first_words = " ".join([*names, "--help", "--version"])
    tail = _TAIL.replace("@FIRST_WORDS@", first_words)
    parts += [tail.replace("@SECOND_WORDS@", "\n".join(_list_second_words(names)))]
    return "".join(parts)


def _list_second_words(names: dict[str, dict[str, str]]) -> Iterator[str]:
    for first, seconds in names.items():
        if words := " ".join(filter(None, seconds)):
            yield f"    {first}) seconds=({words});;"


def _describe(table: CommandTable) -> Iterator[str]:
    flags = table.flags
    yield f"    {quote(table.name)})\n"
    yield f"        flags=({' '.join(flag.name for flag in flags)})\n"
    yield _name_flags("switches", [f.name for f in flags if not f.takes_value])
    yield _name_flags("files", [f.name for f in flags if f.kind == "file"])
    yield _name_flags("models", [f.name for f in flags if f.kind == "model"])
    if table.word_choices:
        yield f"        words=({' '.join(table.word_choices)})\n"
    if table.word_kind == "model":
        yield "        takes=model\n"
    yield "        case $2 in\n"
    for flag in flags:
        if flag.choices:
            yield f"        {flag.name}) choices=({' '.join(map(quote, flag.choices))});;\n"
    yield "        esac;;\n"


def _name_flags(variable: str, names: list[str]) -> str:
    # With a blank on both sides of each name, to be found by a pattern.
    return f"        {variable}=' {' '.join(names)} '\n" if names else ""
