"""An engine over a fake device whose steps take virtual time."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import pytest

from trioserve.config import SchedulingPolicy
from trioserve.engine.generation.core import GenerationCore, LocalCore
from trioserve.engine.generation.engine import TokenEngine
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor
from trioserve.testing.processes import HostedCore
from trioserve.types.model_info import ModelInfo


@pytest.fixture
def depth(request: pytest.FixtureRequest) -> int:
    """Steps in flight; streams behave the same with each number."""
    number: int = getattr(request, "param", 2)
    return number


@pytest.fixture
def is_remote(request: pytest.FixtureRequest) -> bool:
    """Return whether the engine runs in another process; streams behave the same."""
    return bool(getattr(request, "param", False))


def make_info(max_model_len: int = 64) -> ModelInfo:
    return ModelInfo(
        name="fake",
        architecture="Fake",
        vocab_size=2000,
        max_model_len=max_model_len,
        eos_token_ids=frozenset(),
        hidden_size=8,
    )


@pytest.fixture
def make_core(depth: int, is_remote: bool) -> Callable[..., GenerationCore]:
    """Return a function that builds a core over a fake device."""

    def make(
        *,
        num_blocks: int = 256,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 64,
        max_step_seconds: float = math.inf,
        device: FakeDevice | None = None,
        max_adapters: int = 4,
        **executor: Any,
    ) -> GenerationCore:
        core = LocalCore(
            Scheduler(
                num_blocks=num_blocks,
                block_size=4,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                max_step_seconds=max_step_seconds,
            ),
            FakeExecutor(
                (device or FakeDevice(block_size=4)).step, depth=depth, **executor
            ),
            info=make_info(max_model_len),
            max_adapters=max_adapters,
        )
        return HostedCore(core) if is_remote else core

    return make


@pytest.fixture
def make_engine(
    make_core: Callable[..., GenerationCore],
) -> Callable[..., TokenEngine]:
    """Return a function that builds an engine; the test runs it."""

    def make(
        *,
        max_num_seqs: int = 8,
        max_queued_requests: int = 1000,
        max_queued_tokens: int | None = None,
        max_model_len: int = 64,
        scheduling_policy: SchedulingPolicy = "fcfs",
        reopen: Any = None,
        **core: Any,
    ) -> TokenEngine:
        return TokenEngine(
            make_core(max_num_seqs=max_num_seqs, max_model_len=max_model_len, **core),
            info=make_info(max_model_len),
            max_num_sequences=max_num_seqs + max_queued_requests,
            max_num_running=max_num_seqs,
            max_queued_tokens=max_queued_tokens,
            scheduling_policy=scheduling_policy,
            reopen=reopen,
        )

    return make
