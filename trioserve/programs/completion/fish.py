"""The script for fish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .tables import CommandTable, Flag, describe_first, split_names

_HEAD = """\
# Completion of trioserve in fish; printed by `trioserve completion fish`.

function __trioserve_models
    set -l caches ~/.cache
    set -q XDG_CACHE_HOME; and set caches $XDG_CACHE_HOME
    set -l hub $caches/huggingface/hub
    set -q HF_HOME; and set hub $HF_HOME/hub
    set -q HF_HUB_CACHE; and set hub $HF_HUB_CACHE
    for entry in $caches/trioserve/@LAYOUT@/wheels/*/*/
        string match -rq '/(?<name>[^/]+)/(?<release>[^/]+)/$' $entry
        string match -q '*.part' $release; or echo pypi:$name==$release
    end
    for entry in $hub/models--*/
        string match -rq '/models--(?<name>[^/]+)/$' $entry
        string replace -- -- / $name
    end
    __fish_complete_path (commandline -ct)
end

# Whether the words behind trioserve begin with the arguments.
function __trioserve_in
    set -l words (commandline -opc)[2..]
    test (count $words) -ge (count $argv); or return
    set -l first $words[1..(count $argv)]
    test "$first" = "$argv"
end

# Whether nothing but the arguments stands between trioserve and the cursor.
function __trioserve_behind
    test (count (commandline -opc)) -eq (math 1 + (count $argv)); and __trioserve_in $argv
end

complete -c trioserve -f
complete -c trioserve -n 'test (count (commandline -opc)) -eq 1' -l help -d 'List the commands'
complete -c trioserve -n 'test (count (commandline -opc)) -eq 1' -l version -d 'Print the version'
"""


def write(tables: Sequence[CommandTable], layout: str) -> str:
    """Return the script.

    Args:
      layout: the name of the folder with the cache's entries.
    """
    parts = [_HEAD.replace("@LAYOUT@", layout), *_list_names(tables)]
    names = {table.name for table in tables}
    for table in tables:
        longer = [name for name in names if name.startswith(f"{table.name} ")]
        condition = f"__trioserve_in {table.name}"
        for name in longer:
            condition += f"; and not __trioserve_in {name}"
        parts += _list_arguments(table, condition)
    return "".join(parts)


def _list_names(tables: Sequence[CommandTable]) -> Iterator[str]:
    start = "test (count (commandline -opc)) -eq 1"
    for first, seconds in split_names(tables).items():
        yield _offer(start, f"-a {first}", describe_first(seconds))
        for second, meaning in seconds.items():
            if second:
                yield _offer(f"__trioserve_behind {first}", f"-a {second}", meaning)


def _list_arguments(table: CommandTable, condition: str) -> Iterator[str]:
    if table.word_choices:
        yield _offer(condition, f"-a {_quote(' '.join(table.word_choices))}", "")
    if table.word_kind == "model":
        yield _offer(condition, "-k -a '(__trioserve_models)'", "")
    for flag in table.flags:
        yield _offer(condition, _write_flag(flag), flag.meaning)


def _write_flag(flag: Flag) -> str:
    name = flag.name.lstrip("-")
    spelled = f"-l {name}" if flag.name.startswith("--") else f"-s {name}"
    if not flag.takes_value:
        return spelled
    if flag.choices:
        return f"{spelled} -x -a {_quote(' '.join(flag.choices))}"
    if flag.kind == "model":
        return f"{spelled} -x -k -a '(__trioserve_models)'"
    # -r asks for a value; -x does so without completing files.
    return f"{spelled} -r -F" if flag.kind == "file" else f"{spelled} -x"


def _offer(condition: str, what: str, meaning: str) -> str:
    described = f" -d {_quote(meaning)}" if meaning else ""
    return f"complete -c trioserve -n {_quote(condition)} {what}{described}\n"


def _quote(text: str) -> str:
    """Quote as fish reads it: in single quotes, a backslash escapes them and itself."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
