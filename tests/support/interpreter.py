"""Triton's interpreter, which runs kernels for GPUs on a CPU, without its repeated work."""

from __future__ import annotations

from collections.abc import Callable
import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def require_triton() -> None:
    """Skip a test, or a module of tests, without triton; its interpreter becomes quick."""
    pytest.importorskip("triton", reason="needs the extra triton")
    _make_quick()


@functools.cache
def _make_quick() -> None:
    """Let the interpreter replace the functions of triton.language once.

    It would search and replace all of them at each launch of a kernel, and at each call of one
    of its functions. This takes most of its time for small grids.
    """
    from triton.runtime import interpreter

    interpreter._patch_lang = _patch_once(interpreter._patch_lang)
    interpreter._get_np_dtype = _remember(interpreter._get_np_dtype)


def _patch_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    done: set[frozenset[str]] = set()
    # The functions stay replaced when a launch ends.
    kept = SimpleNamespace(restore=lambda: None)

    def patch_once(function: Any) -> Any:
        values = function.__globals__.values()
        names = (each.__name__ for each in values if isinstance(each, ModuleType))
        known = frozenset(each for each in names if each.startswith("triton.language"))
        if known not in done:
            done.add(known)
            patch(function)
        return kept

    return patch_once


def _remember(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Remember types of numpy by the names of Triton's types."""
    known: dict[str, Any] = {}

    def find_known(triton_type: Any) -> Any:
        name = str(triton_type)
        if name not in known:
            known[name] = find(triton_type)
        return known[name]

    return find_known
