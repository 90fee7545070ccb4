"""`trioserve models`, and `trioserve models rm`."""

from __future__ import annotations

from dataclasses import dataclass
import json
import sys
import time
from typing import TYPE_CHECKING, Final

from ...errors import StartupError, escape
from ..command import Command, write_output

if TYPE_CHECKING:
    from ...config.flags import CommandLine
    from ...weights import CachedModel

_DESCRIPTION = """\
List the models in trioserve's cache and in the Hugging Face cache: the name that
`trioserve serve` takes, the size on disk, and the last use. `trioserve models rm`
removes one. Names that begin with gguf/ or converted/ were made of .gguf files,
and are made again when such a file is served.
"""

_RM_DESCRIPTION = """\
Remove models from the caches, by the names that `trioserve models` lists. A running
server goes on with its model; the disk is free when it ends, and its next start
fetches the model again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsConfig:
    """The list.

    Args:
      json: Print JSON, with sizes in bytes and times in seconds since 1970.
    """

    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveConfig:
    """The removal.

    Args:
      yes: Remove without asking.
    """

    yes: bool = False


def _list(line: CommandLine) -> int:
    from ...weights import list_cached_models

    # `models list` is what users of other programs write.
    if line.words not in ([], ["list"], ["ls"]):
        raise StartupError(
            f"models: {line.words[0]!r} is not a command: trioserve models lists models, "
            "trioserve models check MODEL and trioserve models rm MODEL take one, and "
            "trioserve serve MODEL fetches one"
        )
    models = list_cached_models()
    if line.values.get("json"):
        rows = [
            {
                "name": model.name,
                "kind": model.kind,
                "folder": str(model.folder),
                "size_bytes": model.size_bytes,
                "used_at": model.used_at,
            }
            for model in models
        ]
        return write_output(json.dumps(rows, indent=2) + "\n")
    if not models:
        return write_output("no models are cached; `trioserve serve` fetches one\n")
    return write_output("".join(_write_rows(models)))


def _write_rows(models: list[CachedModel]) -> list[str]:
    width = max(len(model.name) for model in models)
    rows = [f"{'MODEL'.ljust(width)}  {'SIZE':>9}  LAST USE\n"]
    for model in models:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.used_at))
        # Names of folders may control the terminal.
        name = escape(model.name)
        rows.append(f"{name.ljust(width)}  {_write_size(model.size_bytes)}  {used}\n")
    total = _write_size(sum(model.size_bytes for model in models)).strip()
    plural = "" if len(models) == 1 else "s"
    return [*rows, f"{len(models)} model{plural}, {total}\n"]


def _write_size(num_bytes: int) -> str:
    mebibytes = num_bytes / 2**20
    if mebibytes >= 1024:
        return f"{mebibytes / 1024:5.2f} GiB"
    return f"{mebibytes:5.1f} MiB"


def _remove(line: CommandLine) -> int:
    from ...weights import find_users, list_cached_models, remove_cached_model

    if not line.words:
        raise StartupError("models rm: name a model; `trioserve models` lists them")
    cached = {model.name: model for model in list_cached_models()}
    for name in line.words:
        if name not in cached:
            raise StartupError(
                f"models rm: {name!r} is in no cache; `trioserve models` lists all"
            )
    chosen = [cached[name] for name in dict.fromkeys(line.words)]
    if not line.values.get("yes") and not _ask(chosen):
        return 1
    for model in chosen:
        users = find_users(model)
        remove_cached_model(model)
        write_output(
            f"removed {escape(model.name)} ({_write_size(model.size_bytes).strip()})\n"
        )
        if users:
            processes = ", ".join(map(str, users))
            write_output(
                f"in use by process {processes}, which goes on; the disk is free when "
                "it ends\n"
            )
    return 0


def _ask(models: list[CachedModel]) -> bool:
    """Ask on the terminal.

    Raises:
      StartupError: there is none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise StartupError("models rm: there is no terminal to ask on; write --yes")
    for model in models:
        row = f"{model.name}  {_write_size(model.size_bytes).strip()}  {model.folder}"
        write_output(f"{escape(row)}\n")
    write_output("Remove? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


MODELS: Final = Command(
    name="models",
    synopsis="[--json]",
    usage="[--json]",
    summary="list the models of the caches",
    description=_DESCRIPTION,
    load_config=lambda: ModelsConfig,
    run=_list,
    max_words=sys.maxsize,
)

MODELS_RM: Final = Command(
    name="models rm",
    synopsis="MODEL ... [--yes]",
    usage="MODEL ...",
    summary="remove models from the caches",
    description=_RM_DESCRIPTION,
    load_config=lambda: RemoveConfig,
    run=_remove,
    max_words=sys.maxsize,
)
