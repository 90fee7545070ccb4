"""Sampling options that change within a conversation."""

from __future__ import annotations

from dataclasses import replace
import shlex
from typing import Any

from ...config import list_options
from ...errors import InvalidConfig
from .config import SamplingConfig


def change_sampling(sampling: SamplingConfig, name: str, text: str) -> SamplingConfig:
    """Return sampling with another value of an option.

    Raises:
      InvalidConfig: there is no such option, or the value is wrong.
    """
    options = {option.name: option for option in list_options(SamplingConfig)}
    option = options.get(name.removeprefix("--").replace("-", "_"))
    if option is None:
        names = ", ".join(options)
        raise InvalidConfig(name, f"there is no such option; there are {names}")
    if not text:
        raise InvalidConfig(option.name, "name a value, or none")
    is_unset = text.lower() == "none"
    value: Any = option.default if is_unset else _read_value(option.name, text)
    if not is_unset:
        value = option.read(value)
    changed: dict[str, Any] = {option.name: value}
    return replace(sampling, **changed)


def _read_value(name: str, text: str) -> str | list[str]:
    if name != "stop":
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidConfig(name, str(error)) from None
