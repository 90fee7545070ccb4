"""The sleep of a model in this process: what it gives back, and how it is loaded again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
import sys
from typing import TypeVar

from ..config import SleepConfig
from ..engine.sleep.rules import IdleRule
from ..executor import Executor, RestingExecutor
from ..processes.threads.fresh_thread import run_in_fresh_thread
from ..processes.threads.heap import trim_heap
from ..processes.threads.stopping import checking_torch_calls
from ..types.sleep import SleepLevel
from .held_memory import measure_present
from .shortage import telling_shortage

PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


def make_idle_rule(config: SleepConfig) -> IdleRule:
    """Return the rule of an engine's sleep."""
    level: SleepLevel = 1 if config.sleep_level == 1 else 2
    return IdleRule(seconds=config.sleep_idle_seconds, level=level)


def rest_between(
    executor: Executor[PlanT, ResultT], load: Callable[[], Executor[PlanT, ResultT]]
) -> RestingExecutor[PlanT, ResultT]:
    """Let the executor of a model in this process rest.

    Args:
      load: loads the model again; blocking.
    """

    def load_again() -> Executor[PlanT, ResultT]:
        with checking_torch_calls():
            return load()

    async def open(stack: AsyncExitStack) -> Executor[PlanT, ResultT]:
        return await run_in_fresh_thread(load_again)

    return RestingExecutor(
        executor,
        AsyncExitStack(),
        open,
        trim=trim_memory,
        telling_shortage=telling_shortage,
    )


def trim_memory() -> int:
    """Give the memory of objects that are gone back to the system and the device.

    Returns:
      the bytes that this process still holds
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim_heap()
    return measure_present()
