"""Guides are built and advanced in threads; an error ends one sequence alone."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
import threading
import time

from llguidance import LLTokenizer
import numpy as np
import pytest
from tokenizers import Tokenizer

from trioserve.errors import WeightsBroken
from trioserve.grammar import costs, workers as workers_module
from trioserve.grammar.compile import compile_structure
from trioserve.grammar.failures import GrammarError
from trioserve.grammar.guide import Guide, GuidedSequence, GuideState, Mask
from trioserve.grammar.matchers import MAX_IDLE_BYTES
from trioserve.grammar.workers import GuideWorkers
from trioserve.types.output import SequenceError
from trioserve.types.structured import Grammar, StructuredOutput

# As in conftest.guidance.
IM_END, VOCAB_SIZE = 1, 520
EOS = frozenset({IM_END})

TOO_LONG = SequenceError(
    reason="it takes too long to follow", param="structured_outputs"
)


class Ids:
    """Tokens that are on the host already."""

    def __init__(self, *token_ids: int) -> None:
        self._token_ids = list(token_ids)

    def read(self) -> list[int]:
        return self._token_ids


@pytest.fixture
def workers(guidance: LLTokenizer) -> GuideWorkers:
    return GuideWorkers(lambda: guidance, vocab_size=VOCAB_SIZE)


def make_grammar(*choices: str) -> Grammar:
    structure = StructuredOutput(kind="choice", choices=choices)
    return Grammar(text=compile_structure(structure))


def begin(workers: GuideWorkers, *choices: str) -> GuidedSequence:
    return workers.open(make_grammar(*choices), (), EOS)


def wait(workers: GuideWorkers, *sequences: GuidedSequence) -> None:
    workers.wait_all(sequences, 10.0)
    assert all(each.is_settled for each in sequences)


def list_allowed(sequence: GuidedSequence) -> list[int]:
    bits = np.unpackbits(sequence.mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()  # type: ignore[no-any-return]


def test_masks_follow_the_tokens(workers: GuideWorkers, tokenizer: Tokenizer) -> None:
    [x, y] = tokenizer.encode("xy").ids
    one, other = (begin(workers, "xy") for _ in range(2))
    wait(workers, one, other)
    assert x in list_allowed(one)
    workers.advance([(1, one)], Ids(7, x))
    wait(workers, one)
    assert list_allowed(one) == [y]
    assert x in list_allowed(other)


def test_a_preempted_sequence_reads_its_tokens_again(
    workers: GuideWorkers, tokenizer: Tokenizer
) -> None:
    [x, y] = tokenizer.encode("xy").ids
    again = workers.open(make_grammar("xy"), (x,), EOS)
    wait(workers, again)
    assert list_allowed(again) == [y]


def test_an_error_ends_one_sequence(
    workers: GuideWorkers, tokenizer: Tokenizer
) -> None:
    [x, y] = tokenizer.encode("xy").ids
    wrong = workers.open(Grammar(text='{"grammars": [{"lark_grammar": "("}]}'), (), EOS)
    bad, good = (begin(workers, "xy") for _ in range(2))
    wait(workers, wrong, bad, good)
    assert wrong.error
    workers.advance([(0, bad), (1, good)], Ids(y, x))
    wait(workers, bad, good)
    assert bad.error and good.error is None


def test_a_sequence_may_not_take_too_long(
    workers: GuideWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "allow_seconds", lambda num_tokens: 0.0)
    sequence = begin(workers, "xy")
    wait(workers, sequence)
    assert sequence.error == TOO_LONG


class Panic(BaseException):
    """A panic of the library; it is not an Exception."""


@pytest.mark.parametrize(
    "error", [Panic(), MemoryError(), WeightsBroken("tiny", "gone")]
)
def test_a_failed_build_ends_its_sequences_alone(
    error: BaseException, guidance: LLTokenizer
) -> None:
    errors = [error]

    def load() -> LLTokenizer:
        if errors:
            raise errors.pop()
        return guidance

    workers = GuideWorkers(load, vocab_size=VOCAB_SIZE)
    sequence = begin(workers, "xy")
    wait(workers, sequence)
    assert sequence.error is not None and sequence.error.is_internal
    other = begin(workers, "yx")
    wait(workers, other)
    assert other.error is None


def test_a_grammar_longer_than_all_that_are_kept_can_be_used(
    workers: GuideWorkers,
) -> None:
    text = make_grammar("xy").text
    for _ in range(2):
        sequence = workers.open(Grammar(text=text + " " * 5 * 2**20), (), EOS)
        wait(workers, sequence)
        assert sequence.error is None


@pytest.fixture
def slow_tokenizer(
    guidance: LLTokenizer,
) -> Iterator[tuple[GuideWorkers, threading.Event]]:
    """Workers that cannot build anything before the event is set."""
    event = threading.Event()

    def load() -> LLTokenizer:
        event.wait(10.0)
        return guidance

    yield GuideWorkers(load, vocab_size=VOCAB_SIZE), event
    event.set()


def test_nobody_waits_long_for_a_new_grammar(
    slow_tokenizer: tuple[GuideWorkers, threading.Event],
) -> None:
    workers, event = slow_tokenizer
    sequence = begin(workers, "xy")
    workers.wait_all([sequence], 0.0)
    assert sequence.state is GuideState.BUILDING
    event.set()
    wait(workers, sequence)
    assert sequence.state is GuideState.READY


def test_a_sequence_that_starts_again_joins_the_build_that_runs(
    slow_tokenizer: tuple[GuideWorkers, threading.Event],
) -> None:
    workers, event = slow_tokenizer
    grammar = Grammar(text='{"grammars": [{"lark_grammar": "start: <nope>"}]}')
    first = workers.open(grammar, (), EOS)
    workers.drop(first)
    again = workers.open(grammar, (), EOS)
    event.set()
    wait(workers, again)
    assert again.error and "nope" in again.error.reason
    # The failure is remembered.
    assert workers.open(grammar, (), EOS).error == again.error


def test_a_build_that_nobody_waits_for_is_left_out(
    slow_tokenizer: tuple[GuideWorkers, threading.Event],
) -> None:
    workers, event = slow_tokenizer
    running = begin(workers, "xy")
    queued = begin(workers, "yx")
    workers.drop(queued)
    event.set()
    wait(workers, running, begin(workers, "x"))
    assert queued.guide is None


def test_a_tokenizer_that_cannot_be_used_is_tried_once() -> None:
    calls: list[None] = []

    def load() -> LLTokenizer:
        calls.append(None)
        raise ValueError("too small")

    workers = GuideWorkers(load, vocab_size=VOCAB_SIZE)
    for text in ("x", "y"):
        sequence = begin(workers, text)
        wait(workers, sequence)
        assert sequence.error and "this model's tokenizer" in sequence.error.reason
    assert len(calls) == 1


def test_all_sequences_of_a_grammar_share_their_time(
    workers: GuideWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count()
    monkeypatch.setattr(time, "thread_time", lambda: 0.1 * next(times))
    errors = []
    for _ in range(4):
        sequence = begin(workers, "xy")
        wait(workers, sequence)
        errors.append(sequence.error)
    # A mask takes 0.1 seconds here, and 0.25 are free.
    assert errors[:2] == [None, None]
    assert errors[2:] == [TOO_LONG] * 2


def test_a_known_grammar_does_not_wait_behind_new_ones(workers: GuideWorkers) -> None:
    wait(workers, begin(workers, "xy"))
    known = begin(workers, "xy")
    assert known.state is not GuideState.BUILDING


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Guide]]:
    """Guides whose masks are not computed before the test has ended."""
    guides: set[Guide] = set()
    is_over = threading.Event()
    write = Guide.write_mask

    def write_mask(guide: Guide, mask: Mask) -> None:
        if guide in guides:
            is_over.wait(10.0)
        write(guide, mask)

    monkeypatch.setattr(Guide, "write_mask", write_mask)
    yield guides
    is_over.set()


def test_a_costly_grammar_delays_no_other(
    workers: GuideWorkers,
    blocked: set[Guide],
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [x, _] = tokenizer.encode("xy").ids
    quick = [begin(workers, "xy") for _ in range(2)]
    wait(workers, *quick)
    seconds = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(time, "thread_time", lambda: 0.01 * next(seconds))
        costly = [begin(workers, "xz") for _ in range(2)]
        wait(workers, *costly)
    assert workers.is_costly(costly[0].grammar)
    assert not workers.is_costly(quick[0].grammar)
    blocked.update(each.guide for each in costly if each.guide is not None)
    members = enumerate([*costly, *quick])
    workers.advance(list(members), Ids(x, x, x, x))
    wait(workers, *quick)
    assert [each.state for each in costly] == [GuideState.COMPUTING] * 2


def test_a_grammar_that_failed_is_not_kept(
    workers: GuideWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(guide: Guide, mask: Mask) -> None:
        raise GrammarError("it has become too complex")

    with monkeypatch.context() as patch:
        patch.setattr(Guide, "write_mask", fail)
        sequences = [begin(workers, "xy", str(number)) for number in range(20)]
        wait(workers, *sequences)
    assert all(each.error and each.guide is None for each in sequences)
    assert workers.statistics().num_bytes == 0
    again = workers.open(sequences[0].grammar, (), EOS)
    wait(workers, again)
    assert again.error is None


def test_the_memory_of_masks_is_given_back_with_the_last_sequence(
    workers: GuideWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Event()
    monkeypatch.setattr(workers_module, "trim_heap", trimmed.set)
    times = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(time, "thread_time", lambda: 0.1 * next(times))
        sequences = [begin(workers, "xy", str(number)) for number in range(4)]
        wait(workers, *sequences)
    held = workers.statistics()
    assert (held.num_sequences, held.num_bytes > 2**26) == (4, True)
    for sequence in sequences[1:]:
        workers.drop(sequence)
    assert not trimmed.is_set()
    workers.drop(sequences[0])
    assert trimmed.wait(10.0)
    left = workers.statistics()
    assert left.num_sequences == 0 and left.num_bytes <= MAX_IDLE_BYTES


def test_a_grammar_that_took_too_long_is_not_built_again(
    workers: GuideWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(costs, "allow_seconds", lambda num_tokens: 0.0)
        wait(workers, begin(workers, "xy"))
        again = begin(workers, "xy")
        assert again.error == TOO_LONG and again.guide is None


def test_two_threads_never_use_the_same_grammar(
    workers: GuideWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of a matcher share a lock; a call that waits for it may hold the GIL."""
    wait(workers, begin(workers, "xz"))
    has_begun, may_end = threading.Event(), threading.Event()
    write = Guide.write_mask

    def write_mask(guide: Guide, mask: Mask) -> None:
        if not has_begun.is_set():
            has_begun.set()
            may_end.wait(10.0)
        write(guide, mask)

    monkeypatch.setattr(Guide, "write_mask", write_mask)
    first = begin(workers, "xy")
    assert has_begun.wait(10.0)
    # Its masks are no longer costly, but one is still computed in the thread for those.
    monkeypatch.setattr(costs.MaskCosts, "is_known", lambda self, text: True)
    again, quick = (begin(workers, text) for text in ("xy", "xz"))
    # The thread for quick masks takes them in this order.
    wait(workers, quick)
    assert again.state is GuideState.COMPUTING
    may_end.set()
    wait(workers, first, again)


def test_a_sequence_that_has_left_computes_nothing(
    workers: GuideWorkers, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (begin(workers, "xy") for _ in range(2))
    wait(workers, one, other)
    written: list[Guide] = []
    monkeypatch.setattr(Guide, "write_mask", lambda guide, mask: written.append(guide))
    workers.drop(one)
    [x, _] = tokenizer.encode("xy").ids
    workers.advance([(0, one), (1, other)], Ids(x, x))
    wait(workers, other)
    assert written == [other.guide]


def test_the_first_mask_of_several_ends_the_wait_for_any(
    workers: GuideWorkers, blocked: set[Guide], tokenizer: Tokenizer
) -> None:
    one, other = (begin(workers, "xy") for _ in range(2))
    wait(workers, one, other)
    assert other.guide is not None
    blocked.add(other.guide)
    [x, _] = tokenizer.encode("xy").ids
    workers.advance([(0, one), (1, other)], Ids(x, x))
    workers.wait_any([one, other], 10.0)
    assert one.is_settled and not other.is_settled
