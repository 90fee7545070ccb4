"""The model of a command, which is a word or the value of --model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InvalidConfig

if TYPE_CHECKING:
    from ...config.flags import CommandLine


def name_model(line: CommandLine) -> dict[str, str]:
    """Return the model among the words, by the name of its option.

    Raises:
      InvalidConfig: there are several, or the word is none.
    """
    models = [*line.words]
    if "model" in line.values:
        models.append(line.values["model"])
    if len(models) > 1:
        raise InvalidConfig("model", f"name one model; here are {' and '.join(models)}")
    if not line.words:
        return {}
    [word] = line.words
    if word.startswith("-"):
        raise InvalidConfig("model", f"{word!r} is no model")
    return {"model": word}
