"""A line of rates in the log, every ten seconds while there is work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import logging
from typing import Final

import trio

from ..engine.generation.engine import TokenEngine
from ..engine.pooling.engine import TensorEngine

# Returns the engines that run; their names are shown if there may be several.
FindEngines = Callable[[], Mapping[str, TokenEngine | TensorEngine]]

logger = logging.getLogger(__name__)

# As vLLM's.
_SECONDS: Final = 10.0


async def log_rates(find_engines: FindEngines) -> None:
    """Log the rates of each engine, until cancelled; nothing while it is idle."""
    seen: dict[str, tuple[_Totals, float]] = {}
    while True:
        # A busy event loop wakes this task late.
        now = trio.current_time()
        last, seen = seen, {}
        for name, engine in find_engines().items():
            totals = _read(engine)
            if name in last:
                before, began = last[name]
                if totals.has_worked_since(before):
                    start = f"{name}: " if name else ""
                    rates = _describe(before, totals, now - began)
                    logger.info("%s%s", start, rates)
            seen[name] = totals, now
        await trio.sleep(_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """The counts of an engine since its start, and its present load.

    Attributes:
      num_generated: None for an engine that pools.
      kv_usage: None for an engine that pools.
    """

    num_prompt_tokens: int
    num_running: int
    num_waiting: int
    num_generated: int | None = None
    num_queried: int = 0
    num_hits: int = 0
    kv_usage: float | None = None

    def has_worked_since(self, before: _Totals) -> bool:
        """True if there was work, unless the engine has started again: it counts from 0."""
        if self.num_prompt_tokens < before.num_prompt_tokens:
            return False
        return self != before or bool(self.num_running + self.num_waiting)


def _read(engine: TokenEngine | TensorEngine) -> _Totals:
    if isinstance(engine, TensorEngine):
        pooling = engine.statistics().scheduler
        return _Totals(
            num_prompt_tokens=engine.counters().num_input_tokens,
            num_running=pooling.num_running,
            num_waiting=pooling.num_waiting,
        )
    counters, scheduler = engine.counters(), engine.statistics().scheduler
    return _Totals(
        num_prompt_tokens=counters.num_prompt_tokens,
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_generated=counters.num_sampled_tokens,
        num_queried=counters.num_prefix_queried_tokens,
        num_hits=counters.num_prefix_hit_tokens,
        kv_usage=scheduler.kv_usage,
    )


def _describe(before: _Totals, now: _Totals, seconds: float) -> str:
    """Describe the time between two moments."""
    what = "texts" if now.num_generated is None else "prompts"
    read = (now.num_prompt_tokens - before.num_prompt_tokens) / seconds
    parts = [f"{what} {read:.1f} tokens/s"]
    if now.num_generated is not None and before.num_generated is not None:
        generated = (now.num_generated - before.num_generated) / seconds
        parts.append(f"answers {generated:.1f} tokens/s")
    parts += [f"{now.num_running} running", f"{now.num_waiting} waiting"]
    if now.kv_usage is not None:
        parts.append(f"KV cache {now.kv_usage:.1%}")
    if num_queried := now.num_queried - before.num_queried:
        hits = (now.num_hits - before.num_hits) / num_queried
        parts.append(f"prefix cache hits {hits:.1%}")
    return ", ".join(parts)
