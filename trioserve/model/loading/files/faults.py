"""Finds the numbers in a configuration that make a model impossible.

A number is at fault if the model works with another one in its place: the default of its
class, or 1. So no list says which fields must be positive, or divide each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import copy
from typing import Any

from transformers import AutoConfig, PreTrainedConfig


def name_faults(
    config: PreTrainedConfig,
    works: Callable[[PreTrainedConfig], bool],
    *,
    may_be_positive: bool,
) -> str | None:
    """Return a sentence that names the numbers at fault; None if no single one is.

    Args:
      config: with which the model does not work.
      works: returns whether the model works with another configuration, or raises any error.
      may_be_positive: numbers may be at fault that only do not fit the others.
    """
    text_config = config.get_text_config(decoder=True)
    try:
        defaults = type(text_config)().to_dict()
    except Exception:
        # Some classes need arguments.
        defaults = {}

    def works_with(name: str, number: int) -> bool:
        changed = copy.deepcopy(config)
        setattr(changed.get_text_config(decoder=True), name, number)
        return works(changed)

    fields = text_config.to_dict()
    return _name(fields, defaults, works_with, is_positive=False) or (
        _name(fields, defaults, works_with, is_positive=True)
        if may_be_positive
        else None
    )


def name_unreadable(described: Mapping[str, Any]) -> str | None:
    """Return a sentence that names the numbers because of which config.json cannot be read.

    Args:
      described: its content.
    """

    def works_with(name: str, number: int) -> bool:
        fields = {**described, name: number}
        AutoConfig.for_model(fields.pop("model_type"), **fields)
        return True

    return _name(described, {}, works_with, is_positive=False)


def _name(
    fields: Mapping[str, Any],
    defaults: Mapping[str, Any],
    works_with: Callable[[str, int], bool],
    *,
    is_positive: bool,
) -> str | None:
    def cures(name: str, number: int) -> bool:
        try:
            return works_with(name, number)
        except Exception:
            return False

    faults = [
        f"{name} {number}"
        for name, number in _list_numbers(fields, is_positive=is_positive)
        if any(cures(name, other) for other in _list_others(defaults, name))
    ]
    if not faults:
        return None
    return f"{' or '.join(faults)} in its configuration cannot be right"


def _list_numbers(
    fields: Mapping[str, Any], *, is_positive: bool
) -> Iterator[tuple[str, int]]:
    for name, number in fields.items():
        # Truth values are integers, too.
        if type(number) is int and (number > 0) == is_positive:
            if not name.endswith("_id"):
                yield name, number


def _list_others(defaults: Mapping[str, Any], name: str) -> list[int]:
    default = defaults.get(name)
    return [default, 1] if type(default) is int and default > 1 else [1]
