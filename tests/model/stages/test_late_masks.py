"""Rows whose masks are late are skipped, and change no token of any sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import random
import threading
from typing import Any

import numpy as np
import pytest

from trioserve.grammar import workers
from trioserve.grammar.guide import Mask
from trioserve.grammar.matchers import BuiltGrammar, Matchers
from trioserve.model.runner import ModelRunner
from trioserve.model.sampling import grammars
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepPlan
from trioserve.types.structured import Grammar

from ..planning import run_steps
from ..test_launching import SOME, Counting, NoRepeat

PROCESSORS = (NoRepeat, Counting)

VOCAB_SIZE = 97

SIZES: dict[str, Any] = {
    "num_blocks": 24,
    "block_size": 4,
    "max_num_seqs": 6,
    "max_model_len": 48,
    "logits_processors": PROCESSORS,
    # The fake guides need none.
    "load_tokenizer": lambda: None,
}


class Gate:
    """Holds masks back, while it is closed, until the test lets them pass."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(0)
        self._is_open = True

    def wait(self) -> None:
        while not (self._is_open or self._places.acquire(timeout=0.01)):
            pass

    def let_pass(self, count: int) -> None:
        if count:
            self._places.release(count)

    def close(self) -> None:
        self._places = threading.Semaphore(0)
        self._is_open = False

    def open(self) -> None:
        self._is_open = True


@pytest.fixture(scope="module")
def gate() -> Iterator[Gate]:
    """Grammars whose masks wait at a gate."""
    gate = Gate()

    class FakeMatchers(Matchers):
        def find(self, text: str) -> BuiltGrammar:
            matcher: Any = FakeMatcher()
            return BuiltGrammar(matcher=matcher, num_bytes=0)

    class FakeMatcher:
        def deep_copy(self) -> FakeMatcher:
            return self

    class FakeGuide:
        """After i tokens only those with the remainder of i may come."""

        def __init__(self, matcher: object, grammar: Grammar, eos: object) -> None:
            self._num_read = 0

        def read(self, token_id: int) -> None:
            assert token_id % 3 == self._num_read % 3, "the tokens come in order"
            self._num_read += 1

        def write_mask(self, mask: Mask) -> None:
            gate.wait()
            bits = np.zeros(32 * len(mask), dtype=np.uint8)
            bits[self._num_read % 3 : VOCAB_SIZE : 3] = 1
            mask[:] = np.packbits(bits, bitorder="little").view(np.int32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "Matchers", FakeMatchers)
        patch.setattr(workers, "Guide", FakeGuide)
        yield gate


def be_patient(patch: pytest.MonkeyPatch, seconds: float, long_seconds: float) -> None:
    patch.setattr(grammars, "_PATIENCE_SECONDS", seconds)
    patch.setattr(grammars, "_PATIENCE_SECONDS_A_ROW", 0.0)
    patch.setattr(grammars, "_LONG_PATIENCE_SECONDS", long_seconds)


@pytest.fixture
def closed_gate(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Steps wait for no mask."""
    be_patient(monkeypatch, 0.0, 0.001)
    gate.close()
    yield gate
    gate.open()


def make_sequences() -> list[Scheduled]:
    """Sequences with every kind of sampling; two of three have grammars."""
    samplings = [s for s in SOME if not s.reasoning_budget]
    chance = random.Random(3)
    return [
        Scheduled(
            sequence_id=SequenceId(number),
            prompt_token_ids=tuple(chance.choices(range(3, 90), k=1 + number % 9)),
            sampling=dataclasses.replace(
                sampling,
                grammar=Grammar(text=f"{number % 4}") if number % 3 else None,
                max_tokens=5,
                min_tokens=0,
                bad_words=() if number % 3 else sampling.bad_words,
            ),
            seed=number,
            arrival=number,
        )
        for number, sampling in enumerate(samplings)
    ]


def write_all(
    launch: Callable[[StepPlan], Any],
    *,
    depth: int,
    num_stages: int = 1,
    has_states: bool = False,
) -> tuple[dict[int, list[int]], int]:
    """Run all sequences; also count the rows that sampled."""
    scheduler = Scheduler(
        num_blocks=24,
        block_size=4,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        max_model_len=48,
        num_stages=num_stages,
        prefix_caching=not has_states,
        can_recompute=not has_states or num_stages == 1,
    )
    for sequence in make_sequences():
        scheduler.add(sequence)
    outputs: dict[int, list[int]] = {}
    num_rows = 0

    def launch_and_count(plan: StepPlan) -> Any:
        nonlocal num_rows
        num_rows += plan.num_sampled
        return launch(plan)

    for delta in run_steps(scheduler, launch_and_count, depth=depth):
        assert not delta.error
        outputs.setdefault(delta.sequence_id, []).extend(delta.token_ids)
    return outputs, num_rows


def hold_back(
    launch: Callable[[StepPlan], Any], gate: Gate
) -> Callable[[StepPlan], Any]:
    """Let few masks pass before each step, at random."""
    chance = random.Random(4)

    def launch_one(plan: StepPlan) -> Any:
        gate.let_pass(chance.choice((0, 1, 4)))
        return launch(plan)

    return launch_one


@dataclasses.dataclass(frozen=True)
class Whole:
    """A model, and its tokens and rows if all masks are in time."""

    model: Any
    outputs: dict[int, list[int]]
    num_rows: int

    @property
    def has_states(self) -> bool:
        return bool(self.model.loaded.states)


@pytest.fixture(scope="module", params=["llama", "qwen3_5_text"])
def whole(cut: Callable[..., Any], gate: Gate, request: pytest.FixtureRequest) -> Whole:
    model = cut(request.param)
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch, 10.0, 10.0)
        launch = ModelRunner(model.loaded, **SIZES).launch
        has_states = bool(model.loaded.states)
        outputs, num_rows = write_all(launch, depth=1, has_states=has_states)
    return Whole(model=model, outputs=outputs, num_rows=num_rows)


def test_late_masks_change_no_token(whole: Whole, closed_gate: Gate) -> None:
    launch = ModelRunner(whole.model.loaded, **SIZES).launch
    outputs, num_rows = write_all(
        hold_back(launch, closed_gate), depth=2, has_states=whole.has_states
    )
    assert outputs == whole.outputs
    assert num_rows > whole.num_rows


def test_late_masks_change_no_token_of_a_pipeline(
    whole: Whole, make_pipeline: Any, closed_gate: Gate
) -> None:
    """The first stage gets the last token of a skipped row once more.

    If there are states, the whole sequence is computed again, which takes many steps.
    """
    pipeline = make_pipeline(whole.model.stages(3), **SIZES)
    outputs, num_rows = write_all(
        hold_back(pipeline.launch, closed_gate),
        depth=4,
        num_stages=3,
        has_states=whole.has_states,
    )
    assert outputs == whole.outputs
    assert num_rows > whole.num_rows
