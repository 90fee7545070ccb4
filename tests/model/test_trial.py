"""The largest step is tried, and the KV cache takes the rest."""

from __future__ import annotations

from collections.abc import Callable
import logging
from typing import Any

from hypothesis import given, strategies as st
import pytest
import torch

from trioserve.config import CacheConfig
from trioserve.errors import InvalidConfig, NotEnoughMemory
from trioserve.model.attention import cache_memory
from trioserve.model.attention.cache_memory import count_fitting_blocks
from trioserve.model.trial import (
    MemoryReading,
    StepLimits,
    measure_steps,
    plan_largest_step,
)

from .planning import Planner, make_prompt

GIB = 2**30


def make_limits(**changes: int) -> StepLimits:
    fields = {"max_num_seqs": 3, "max_num_tokens": 40, "max_model_len": 64}
    return StepLimits(**{**fields, "max_logprobs": 5, "block_size": 8, **changes})


class Memory:
    """Stands in for a GPU's memory: a model with its cache and graphs takes some of it.

    Args:
      readings: before and after the trial.
    """

    def __init__(self, *readings: MemoryReading) -> None:
        self.readings = list(readings)
        self.calls: list[str] = []

    def clear(self) -> None:
        self.calls.append("clear")

    def read(self) -> MemoryReading:
        self.calls.append("read")
        return self.readings.pop(0)


@given(
    num_seqs=st.integers(1, 20),
    more=st.integers(0, 300),
    max_model_len=st.integers(1, 50),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_the_largest_step_has_all_that_fits(
    num_seqs: int, more: int, max_model_len: int, block_size: int
) -> None:
    limits = make_limits(
        max_num_seqs=num_seqs,
        max_num_tokens=num_seqs + more,
        max_model_len=max_model_len,
        block_size=block_size,
    )
    plan = plan_largest_step(limits)
    assert plan.num_sampled == num_seqs == len({row.slot for row in plan.rows})
    assert plan.num_tokens == min(num_seqs + more, num_seqs * max_model_len)
    assert all(1 <= row.num_tokens <= max_model_len for row in plan.rows)
    blocks = [block for row in plan.rows for block in row.new_block_ids]
    assert blocks == list(range(len(blocks)))
    for row, start in zip(plan.rows, plan.starts):
        room = len(row.new_block_ids) * block_size
        assert room - block_size < row.num_tokens <= room
        assert len(start.prompt_token_ids) == row.num_tokens


@pytest.mark.parametrize(
    "free, reserved, peak, expected",
    [
        # torch has taken 4 more at its peak, one of them for the cache.
        (84, 14, 14, 3),
        # It has given 2 of them back.
        (86, 12, 14, 3),
        # Other libraries have taken 5.
        (79, 14, 14, 8),
        # Another process has ended meanwhile.
        (95, 14, 14, 3),
        (88, 10, 10, 0),
    ],
)
def test_what_a_trial_needs(free: int, reserved: int, peak: int, expected: int) -> None:
    before = MemoryReading(free=88, reserved=10, peak=10)
    after = MemoryReading(free=free, reserved=reserved, peak=peak)
    assert after.count_since(before, 1) == expected


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_model_runs_the_largest_step_and_runs_as_before_afterwards(
    tiny: Callable[..., Any], caplog: pytest.LogCaptureFixture, model_type: str
) -> None:
    caplog.set_level(logging.INFO)
    model = tiny(model_type)
    caplog.clear()
    # 14, 13 and 13 tokens take two blocks each.
    cache_bytes = 6 * 8 * model.loaded.info.kv_bytes_per_token
    memory = Memory(
        MemoryReading(free=90 * GIB, reserved=GIB, peak=GIB),
        MemoryReading(free=85 * GIB, reserved=3 * GIB, peak=4 * GIB + cache_bytes),
    )
    # 3 by torch and 3 by others.
    assert measure_steps(model.loaded, make_limits(), memory) == 6 * GIB
    assert memory.calls == ["clear", "read", "read", "clear"]
    assert caplog.messages == []
    planner = Planner(model.loaded)
    assert caplog.messages != []
    sequence = planner.begin(make_prompt(9))
    planner.run(sequence, num_tokens=4)
    model.check(sequence)


def test_a_cpu_tries_nothing(tiny: Callable[..., Any]) -> None:
    assert measure_steps(tiny("llama").loaded, make_limits()) == 0


def test_a_step_that_does_not_fit_is_refused(tiny: Callable[..., Any]) -> None:
    class Full(Memory):
        def read(self) -> MemoryReading:
            if "read" in self.calls:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().read()

    memory = Full(MemoryReading(free=GIB, reserved=0, peak=0))
    with pytest.raises(NotEnoughMemory, match="40 tokens and 3 sequences does not fit"):
        measure_steps(tiny("llama").loaded, make_limits(), memory)


def count(free: int, step_bytes: int, **fields: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_memory, "find_free_memory", lambda device: free)
        return count_fitting_blocks(
            1000,
            CacheConfig(block_size=16, **fields),
            max_num_seqs=10**6,
            max_model_len=10**6,
            device=torch.device("cpu"),
            step_bytes=step_bytes,
        ).num_blocks


def test_the_cache_takes_what_steps_leave_of_its_fraction() -> None:
    fraction = {"kv_cache_fraction": 0.5}
    assert count(64_000_000, 0, **fraction) == 2000
    assert count(64_000_000, 16_000_000, **fraction) == 1000
    # A size that the operator names is taken as it is.
    assert count(64_000_000, 16_000_000, kv_cache_memory="32000000") == 2000
    with pytest.raises(
        InvalidConfig, match=r"\(steps need 31MiB more; fewer --max-num"
    ):
        count(64_000_000, 32_000_000, **fraction)
