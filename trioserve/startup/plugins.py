"""Plug-ins that change logits: named by an option, or installed.

To load a plug-in is to run its module, so its code must be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
import inspect
import re

from ..errors import InvalidConfig, PluginBroken
from ..types.logits import LogitsProcessor

ENTRY_POINT_GROUP = "trioserve.logits_processors"

_FIELD = "logits_processor"

_SPELLING = re.compile(r"(?P<module>[\w.]+):(?P<attribute>[\w.]+)")

# Requests name plug-ins, and errors repeat the names: visible ASCII, as in request ids.
_NAME = re.compile(r"[!-~]{1,64}")

Found = type[LogitsProcessor]


def load_logits_processors(names: Iterable[str]) -> tuple[Found, ...]:
    """Import plug-ins; blocks while their modules are imported.

    Args:
      names: module:Class each, as for --logits-processor.

    Returns:
      Each class once, in the order in which they change logits: first the classes in
      `names`, then the classes of installed distributions by their names.

    Raises:
      InvalidConfig: one of `names` is not a plug-in, or two plug-ins have the same name.
      PluginBroken: an entry point of an installed distribution is not a plug-in.
    """
    named = [_load_named(name) for name in names]
    installed = [_load_installed(point) for point in _list_entry_points()]
    by_name: dict[str, Found] = {}
    for found in (*named, *sorted(installed, key=lambda each: each.name)):
        other = by_name.setdefault(found.name, found)
        if other is not found:
            raise InvalidConfig(
                _FIELD,
                f"{_describe(other)} and {_describe(found)} are both called "
                f"{found.name!r}",
            )
    return tuple(by_name.values())


def _load_named(name: str) -> Found:
    spelled = _SPELLING.fullmatch(name)
    if spelled is None:
        raise InvalidConfig(_FIELD, f"{name!r} is not of the form module:Class")
    try:
        found: object = import_module(spelled["module"])
        for attribute in spelled["attribute"].split("."):
            found = getattr(found, attribute)
    # The code of a module may raise any error.
    except Exception as error:
        raise InvalidConfig(
            _FIELD, f"{name} cannot be imported: {_explain(error)}"
        ) from error
    try:
        return _check(found)
    except ValueError as error:
        raise InvalidConfig(_FIELD, f"{name} {error}") from None


def _list_entry_points() -> Iterable[EntryPoint]:
    return entry_points(group=ENTRY_POINT_GROUP)


def _load_installed(point: EntryPoint) -> Found:
    distribution = "an unknown distribution" if point.dist is None else point.dist.name
    try:
        found: object = point.load()
    # As above.
    except Exception as error:
        reason = f"cannot be imported: {_explain(error)}"
        raise PluginBroken(distribution, point.value, reason) from error
    try:
        return _check(found)
    except ValueError as error:
        raise PluginBroken(distribution, point.value, str(error)) from None


def _check(found: object) -> Found:
    """Return a plug-in that requests can name.

    Raises:
      ValueError: it is not a plug-in; the message continues a sentence that begins with
        its name.
    """
    if not (isinstance(found, type) and issubclass(found, LogitsProcessor)):
        raise ValueError("is not a subclass of trioserve.LogitsProcessor")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ValueError(f"does not say how to {missing}")
    name = getattr(found, "name", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ValueError(
            "needs a `name` of 1 to 64 visible ASCII characters, by which requests "
            "call it"
        )
    return found


def _describe(found: Found) -> str:
    return f"{found.__module__}:{found.__qualname__}"


def _explain(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
