"""The model of a command, which is a word or the value of --model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import InvalidConfig

if TYPE_CHECKING:
    from ..config.flags import CommandLine

# Values that users write behind a switch by mistake; they would be read as a model.
_SWITCH_VALUES: Final = {"true", "false", "on", "off", "yes", "no", "1", "0"}


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
    if word.lower() in _SWITCH_VALUES:
        reason = "is no model; a switch takes no value: write --NAME or --no-NAME"
        raise InvalidConfig("model", f"{word!r} {reason}")
    if word.startswith("-"):
        raise InvalidConfig("model", f"{word!r} is no model")
    return {"model": word}
