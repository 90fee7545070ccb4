"""Kernels that begin before the one in front of them has ended.

A kernel of a decode takes microseconds, and to begin it takes about one. From compute capability
9.0 on, a kernel may get its multiprocessors while the last programs of the one before it still
run; it reads nothing that others write until all of them are done.

Source: CUDA Programming Guide, Programmatic Dependent Launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

IS_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def let_next_begin():
    """Let the programs of the next kernel begin, once all of this one have begun."""
    if not IS_INTERPRETED:
        if cuda_capability_geq(9, 0):
            gdc_launch_dependents()


@triton.jit
def wait():
    """Wait until the kernels before this one are done, and all see what they have written.

    Each program of a kernel that may follow calls it before it writes or returns: the next kernel
    relies on it. Before, it may read weights, and what was written before a step's first norm,
    which follows nothing (`normalize` in steps.py): slots, positions, tables and tiles.
    """
    if not IS_INTERPRETED:
        if cuda_capability_geq(9, 0):
            gdc_wait()


@triton.jit
def follow():
    """Let the next kernel begin, and wait for those before this one; see `wait`."""
    let_next_begin()
    wait()


class may_follow:
    """A kernel that is launched before those in front of it are done; it calls `wait`."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        launch: Callable[..., Any] = self.kernel[grid]
        return partial(launch, launch_pdl=True) if can_follow() else launch


def can_follow() -> bool:
    """Say whether kernels of the current device may follow."""
    return find_capability() >= 90


def find_capability() -> int:
    """Return the compute capability of the current device, times ten; 0 if it has none."""
    if IS_INTERPRETED.value:
        return 0
    return _find_capability(triton.runtime.driver.active.get_current_device())


@cache
def _find_capability(device: int) -> int:
    target = triton.runtime.driver.active.get_current_target()
    return int(target.arch) if target.backend == "cuda" else 0
