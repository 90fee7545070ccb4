"""An engine over a fake device whose steps take virtual time."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import pytest

from trioserve.config import SchedulingPolicy
from trioserve.engine import LocalCore, TokenEngine
from trioserve.scheduler import Scheduler
from trioserve.testing.fake_device import FakeDevice, FakeExecutor
from trioserve.testing.processes import HostedCore
from trioserve.types.model_info import ModelInfo


@pytest.fixture(params=[1, 2], ids=["plain", "ahead"])
def depth(request: pytest.FixtureRequest) -> int:
    """Steps in flight: what streams promise does not depend on it."""
    number: int = request.param
    return number


@pytest.fixture(params=["here", "in_a_process"])
def is_remote(request: pytest.FixtureRequest) -> bool:
    """Where the engine is: what it promises does not depend on it either."""
    return bool(request.param == "in_a_process")


@pytest.fixture
def make_engine(depth: int, is_remote: bool) -> Callable[..., TokenEngine]:
    """Return a function that builds an engine; nothing runs until somebody runs it."""

    def make(
        *,
        num_blocks: int = 256,
        max_num_seqs: int = 8,
        max_num_waiting: int = 1000,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 64,
        max_step_seconds: float = math.inf,
        scheduling_policy: SchedulingPolicy = "fcfs",
        device: FakeDevice | None = None,
        reopen: Any = None,
        **executor: object,
    ) -> TokenEngine:
        info = ModelInfo(
            name="fake",
            architecture="Fake",
            vocab_size=2000,
            max_model_len=max_model_len,
            eos_token_ids=frozenset(),
            hidden_size=8,
        )
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
                (device or FakeDevice(block_size=4)).step,
                depth=depth,
                **executor,  # type: ignore[arg-type]
            ),
            info=info,
        )
        return TokenEngine(
            HostedCore(core) if is_remote else core,
            info=info,
            max_num_sequences=max_num_seqs + max_num_waiting,
            max_num_running=max_num_seqs,
            scheduling_policy=scheduling_policy,
            reopen=reopen,
        )

    return make
