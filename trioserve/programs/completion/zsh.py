"""The script for zsh. It needs compinit, as all completion in zsh does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .tables import (
    LIST_MODELS,
    CommandTable,
    Flag,
    ValueKind,
    describe_first,
    split_names,
)

# compinit reads the first line, if the script lies in a folder of fpath.
_HEAD = """\
#compdef trioserve
# Completion of trioserve in zsh; printed by `trioserve completion zsh`.

_trioserve_models() {{
    local -a names
{models}    _alternative \\
        'models:model:{{ (( $#names )) && compadd -a names }}' 'files:file:_files'
}}

"""

_TAIL = """\
# The file is a function of fpath, or it was sourced.
if [[ ${funcstack[1]} == _trioserve ]]; then
    _trioserve "$@"
else
    compdef _trioserve trioserve
fi
"""

_ACTIONS: dict[ValueKind, str] = {
    "text": " ",
    "file": "_files",
    "model": "_trioserve_models",
}


def write(tables: Sequence[CommandTable], layout: str) -> str:
    """Return the script.

    Args:
      layout: the name of the folder with the cache's entries.
    """
    models = LIST_MODELS.format(layout=layout, glob="(N)", add="names+=(", end=")")
    parts = [_HEAD.format(models=models)]
    parts += ["".join(_define(table)) for table in tables]
    parts += _choose_command(tables)
    return "".join([*parts, _TAIL])


def _define(table: CommandTable) -> Iterator[str]:
    """Write the function that completes the arguments of one command."""
    yield f"_trioserve_of_{table.function}() {{\n    _arguments"
    for flag in table.flags:
        yield f" \\\n        {_quote(_write_flag(flag))}"
    if table.word_choices:
        choices = " ".join(table.word_choices)
        yield f" \\\n        {_quote(f'*:argument:({choices})')}"
    elif table.word_kind == "model":
        yield f" \\\n        {_quote('*:model:_trioserve_models')}"
    yield "\n}\n\n"


def _write_flag(flag: Flag) -> str:
    meaning = _escape(flag.meaning).replace("[", r"\[").replace("]", r"\]")
    if not flag.takes_value:
        return f"{flag.name}[{meaning}]"
    action = _ACTIONS[flag.kind]
    if flag.choices:
        action = f"({' '.join(flag.choices)})"
    # The sign means that a value may stand behind = too.
    equals = "=" if flag.name.startswith("--") else ""
    return f"{flag.name}{equals}[{meaning}]:{flag.name.lstrip('-')}:{action}"


def _choose_command(tables: Sequence[CommandTable]) -> Iterator[str]:
    """Write the function that finds the command before the cursor."""
    names = split_names(tables)
    yield "_trioserve() {\n    local -a commands\n"
    yield "    if (( CURRENT == 2 )); then\n        commands=("
    for first, seconds in names.items():
        yield f"\n            {_quote(f'{first}:{_escape(describe_first(seconds))}')}"
    yield "\n        )\n        _describe command commands\n"
    yield "        compadd -- --help --version\n        return\n    fi\n"
    # _arguments counts from the command on.
    yield "    shift words; (( CURRENT-- ))\n    case $words[1] in\n"
    functions = {table.name: f"_trioserve_of_{table.function}" for table in tables}
    for first, seconds in names.items():
        yield f"    {first})\n"
        yield from _choose_second(first, seconds, functions)
        own = functions.get(first)
        yield f"        {own};;\n" if own else "        ;;\n"
    yield "    esac\n}\n\n"


def _choose_second(
    first: str, seconds: dict[str, str], functions: dict[str, str]
) -> Iterator[str]:
    described = {second: text for second, text in seconds.items() if second}
    if not described:
        return
    yield "        if (( CURRENT == 2 )); then\n            commands=("
    for second, text in described.items():
        yield f" {_quote(f'{second}:{_escape(text)}')}"
    yield " )\n            _describe command commands\n        fi\n"
    yield "        case $words[2] in\n"
    for second in described:
        function = functions[f"{first} {second}"]
        yield f"        {second}) shift words; (( CURRENT-- ))"
        yield f"; {function}; return;;\n"
    yield "        esac\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:")


def _quote(text: str) -> str:
    quoted = text.replace("'", "'\\''")
    return f"'{quoted}'"
