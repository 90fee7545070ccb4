"""Explains a word that is not a command: names commands that the user may have meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
import os
import shlex

from ..command import Command

# Words of other programs -> the command that takes their place.
_ELSEWHERE = {
    "run": "chat",
    "start": "serve",
    "list": "models",
    "ls": "models",
    "show": "models check",
    "rm": "models rm",
    "ps": "top",
    "info": "env",
    "collect-env": "env",
}

_FETCHING = ("pull", "download", "fetch")
_STOPPING = ("stop", "kill", "shutdown")


def explain(commands: Sequence[Command], word: str, others: Sequence[str]) -> str:
    """Return one sentence that names the right command.

    Args:
      others: the arguments behind the word.
    """
    rest = shlex.join(others)
    names = [command.name for command in commands]
    if word.startswith("-"):
        meant = get_close_matches(word, ["--help", "--version"], n=1, cutoff=0.8)
        if word == "-v" or meant:
            meant = meant or ["--version"]
            return f"{word}: there is no such option; did you mean {meant[0]}?"
        return f"{word} belongs behind a command: write trioserve serve {word} {rest}".strip()
    unknown = f"{word!r} is not a command"
    if word in ("help", "version"):
        wanted = f"{others[0]} --help" if others and word == "help" else f"--{word}"
        return f"{unknown}: write trioserve {wanted}"
    if word in _FETCHING:
        return (
            f"{unknown}: trioserve serve {rest or 'MODEL'} fetches a model and "
            "serves it, and trioserve models lists those that are here"
        )
    if word in _STOPPING:
        return f"{unknown}: Ctrl-C, or kill with its process id, ends a server"
    seconds = [name for name in names if name.startswith(f"{word} ")]
    if seconds:
        return f"{word!r} needs one more word: write trioserve {' or trioserve '.join(seconds)}"
    if _is_model(word):
        return f"{unknown}: write trioserve serve {shlex.join([word])} {rest}".strip()
    if word in _ELSEWHERE:
        return f"{unknown}: write trioserve {_ELSEWHERE[word]} {rest}".strip()
    two_words = " ".join([word, *others[:1]])
    matches = get_close_matches(two_words, names, n=1) or get_close_matches(
        word, names, n=1
    )
    if matches:
        return f"{unknown}; did you mean trioserve {matches[0]}?"
    return f"{unknown}; trioserve --help lists all"


def _is_model(word: str) -> bool:
    has_form = "/" in word or word.startswith("pypi:") or word.endswith(".gguf")
    return has_form or os.path.isdir(word)
