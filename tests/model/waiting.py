"""A guard that notices everything for which the host would wait for a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
import sys
from typing import Any
import warnings

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import trioserve

# Operations for which the host waits on CUDA. A CPU runs the same operations without
# waiting.
_WAITING = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose"),
    *("nonzero", "argwhere", "masked_select", "bincount", "histc"),
    *("_unique2", "unique_dim", "unique_consecutive"),
}
# The size of their output is the sum of a tensor, unless `output_size` is given.
_SIZED = {"aten.repeat_interleave.Tensor", "aten.repeat_interleave.self_Tensor"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_SUSPECTS = {*_WAITING, *_INDEXING, "where", "repeat_interleave"}
# These call no operation that a TorchDispatchMode sees.
_READING = {"tolist", "numpy", "cpu", "__array__"}
_MASKS = {torch.bool, torch.uint8}
# Copies are checked only in this package: transformers makes needless ones.
_PACKAGE = str(Path(trioserve.__file__).parent)


def _find_caller() -> str:
    """Return the file of the innermost frame outside of torch and of this file."""
    folder = str(Path(torch.__file__).parent)
    frame = sys._getframe()
    while frame.f_back and frame.f_code.co_filename.startswith((folder, __file__)):
        frame = frame.f_back
    return frame.f_code.co_filename


class _Refusing:
    def __init__(self, host_modules: Sequence[str]) -> None:
        super().__init__()
        self._host_modules = host_modules

    def refuse(self, name: str) -> None:
        caller = _find_caller()
        if Path(caller).name not in self._host_modules:
            raise AssertionError(f"{name} makes the host wait for the device: {caller}")


class _RefuseOperations(_Refusing, TorchDispatchMode):
    """Refuses operations that happen below Python, too, such as `bool(tensor)`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in _SUSPECTS and self._waits(func, name, args, kwargs):
            self.refuse(name)
        return func(*args, **kwargs)

    @staticmethod
    def _waits(func: Any, name: str, args: Any, kwargs: Any) -> bool:
        if name == "where":
            return len(args) == 1
        if name in _INDEXING:
            leaves = tree_leaves(args[1:2])
            tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
            return any(x.dtype in _MASKS for x in tensors)
        if name == "repeat_interleave":
            return str(func) in _SIZED and kwargs.get("output_size") is None
        return name in _WAITING


class _RefuseCalls(_Refusing, TorchFunctionMode):
    """Refuses calls by their arguments, because on a CPU no copy leaves the device."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # Pinned memory is the host's.
        if name in _READING and not args[0].is_pinned():
            self.refuse(name)
        if name == "__setitem__" and self._sends_number(*args[1:]):
            self.refuse("a number written to places that a tensor names")
        if name in ("to", "tensor", "as_tensor") and _find_caller().startswith(
            _PACKAGE
        ):
            self._check_copy(name, args, kwargs)
        return func(*args, **kwargs)

    @staticmethod
    def _sends_number(index: Any, value: Any) -> bool:
        has_tensors = any(isinstance(x, torch.Tensor) for x in tree_leaves(index))
        return has_tensors and not isinstance(value, torch.Tensor)

    def _check_copy(self, name: str, args: Any, kwargs: Any) -> None:
        if name != "to":
            if kwargs.get("device") is not None:
                self.refuse("a tensor made of numbers elsewhere than on the host")
            return
        places = [*args[1:], kwargs.get("device"), kwargs.get("other")]
        is_moved = any(isinstance(x, torch.device | str | torch.Tensor) for x in places)
        if is_moved and not kwargs.get("non_blocking"):
            self.refuse("a blocking copy")


@contextmanager
def _refuse_waits() -> Iterator[None]:
    """Refuse to wait for CUDA's events and streams."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("synchronize makes the host wait for the device")

    with pytest.MonkeyPatch.context() as patch:
        for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
            patch.setattr(owner, "synchronize", refuse)
        yield


@contextmanager
def _refuse_on_cuda() -> Iterator[None]:
    """With a GPU, torch itself refuses, too."""
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # The first call warns that this feature is a prototype.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def refuse_to_wait(*host_modules: str) -> Iterator[None]:
    """Fail where CUDA would make the host wait for the device.

    On a CPU, tensors that stay on the host by design look like all others.

    Args:
      host_modules: names of the modules ("layout.py") that have such tensors.
    """
    with (
        _refuse_on_cuda(),
        _refuse_waits(),
        _RefuseOperations(host_modules),
        _RefuseCalls(host_modules),
    ):
        yield
