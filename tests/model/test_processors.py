"""Plug-ins see the logits of the sequences that use them, and their real tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
import gc
import sys
from types import FrameType
from typing import Any
import weakref

import pytest
import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor

from trioserve.errors import InvalidConfig
from trioserve.model.sampling.processors import LogitsProcessors
from trioserve.model.sampling.sampler import Sampler
from trioserve.types.logits import LogitsProcessor, LogitsRow
from trioserve.types.plan import SlotStart
from trioserve.types.sampling import SamplingParams

from .planning import Planner, make_prompt, make_start

VOCAB_SIZE = 16
CPU = torch.device("cpu")


class Recorder(LogitsProcessor):
    """Adds one to all logits, and records the calls of all of its instances."""

    calls: list[tuple[str, tuple[int, ...], list[LogitsRow]]] = []

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        self.calls.append((self.name, tuple(logits.shape), list(rows)))
        logits += 1.0


class Add(Recorder):
    name = "add"

    @classmethod
    def read_arguments(cls, arguments: Mapping[str, object]) -> object:
        return arguments.get("what", 0)


class Double(Recorder):
    name = "double"

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        super().apply(logits, rows)
        logits *= 2.0


class Remember(Recorder):
    """Records the output tokens that it gets."""

    name = "remember"
    needs_output_token_ids = True

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        super().apply(logits, rows)
        for row in rows:
            assert row.output_token_ids is not None
            assert len(row.output_token_ids) == row.num_output_tokens
            assert min(row.output_token_ids, default=0) >= 0


class RememberToo(Remember):
    name = "remember-too"


ALL = (Add, Double, Remember, RememberToo)


@pytest.fixture(autouse=True)
def calls() -> list[tuple[str, tuple[int, ...], list[LogitsRow]]]:
    Recorder.calls.clear()
    return Recorder.calls


@dataclass(eq=False)
class LateIds:
    """Tokens in flight from the device; records when they are read."""

    token_ids: list[int]
    reads: list[LateIds] = field(default_factory=list)

    def read(self) -> list[int]:
        self.reads.append(self)
        return self.token_ids


def make(*classes: type[LogitsProcessor]) -> LogitsProcessors:
    return LogitsProcessors(classes or ALL, vocab_size=VOCAB_SIZE, device=CPU)


def start_with(
    slot: int, *names: str, outputs: tuple[int, ...] = (), **arguments: object
) -> SlotStart:
    chosen = tuple((name, arguments) for name in names)
    sampling = SamplingParams(logits_processors=chosen)
    return make_start(sampling, slot, prompt=(1, -1, 3), outputs=outputs)


def apply(
    processors: LogitsProcessors, slots: list[int], num_outputs: list[int]
) -> Tensor:
    scores = torch.zeros(len(slots), VOCAB_SIZE)
    processors.apply(scores, slots, num_outputs)
    # All scores of a row are equal.
    assert torch.equal(scores, scores[:, :1].expand_as(scores))
    return scores[:, 0]


def list_outputs(row: LogitsRow) -> list[int]:
    assert row.output_token_ids is not None
    return row.output_token_ids


# Slots with plug-ins.


def test_only_rows_that_named_it_are_changed(calls: Any) -> None:
    processors = make()
    processors.start(start_with(4, "add"))
    processors.start(start_with(0))
    processors.start(start_with(2, "add"))
    assert apply(processors, [0, 2, 3, 4], [0] * 4).tolist() == [0.0, 1.0, 0.0, 1.0]
    ((name, shape, rows),) = calls
    assert (name, shape, len(rows)) == ("add", (2, VOCAB_SIZE), 2)


def test_they_come_in_the_order_in_which_they_were_loaded(calls: Any) -> None:
    for classes, expected in (((Add, Double), 4.0), ((Double, Add), 3.0)):
        processors = make(*classes)
        processors.start(start_with(0, "double", "add"))
        assert apply(processors, [0], [0]).tolist() == [expected]
    assert [name for name, _, _ in calls] == ["add", "double", "double", "add"]


def test_each_is_called_once_a_step_with_the_arguments_of_requests(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "add", what="first"))
    processors.start(start_with(1, "double", "add", what="second"))
    assert apply(processors, [0, 1], [7, 9]).tolist() == [1.0, 4.0]
    (_, _, added), (_, _, doubled) = calls
    assert [row.arguments for row in added] == ["first", "second"]
    assert [row.num_output_tokens for row in added] == [7, 9]
    assert doubled[0].arguments == {"what": "second"}
    assert doubled[0].prompt_token_ids == (1, -1, 3)


def test_where_all_take_part_nothing_is_copied() -> None:
    class Keep(LogitsProcessor):
        name = "keep"
        seen: list[Tensor] = []

        def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
            self.seen.append(logits)

    processors = make(Keep)
    processors.start(start_with(0, "keep"))
    processors.start(start_with(1, "keep"))
    scores = torch.zeros(2, VOCAB_SIZE)
    processors.apply(scores, [1, 0], [0, 0])
    assert Keep.seen[0] is scores


def test_a_sequence_has_the_same_row_in_all_steps(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "add"))
    for number in range(3):
        apply(processors, [0], [number])
        processors.append([0], LateIds([number]))
    rows = [rows[0] for _, _, rows in calls]
    assert rows[0] is rows[1] is rows[2]
    assert rows[0].output_token_ids is None
    assert rows[0].num_output_tokens == 2


def test_slots_with_plug_ins_are_known_before_a_step() -> None:
    processors = make()
    assert not processors.has_any([0, 1, 2])
    processors.start(start_with(1, "add"))
    processors.start(start_with(2, "add", "remember"))
    assert [processors.has_any([slot]) for slot in range(3)] == [False, True, True]
    assert [processors.needs_history([slot]) for slot in range(3)] == [
        False,
        False,
        True,
    ]
    assert processors.needs_history([0, 1, 2])
    processors.start(start_with(2))
    assert not processors.needs_history([0, 1, 2])


# Output tokens.


def test_tokens_are_read_when_they_are_needed_and_not_before(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "remember"))
    processors.start(start_with(1, "remember"))
    reads: list[LateIds] = []
    first = LateIds([5, 6], reads)
    apply(processors, [0, 1], [0, 0])
    processors.append([0, 1], first)
    assert reads == []
    apply(processors, [1, 0], [1, 1])
    # One read serves all slots.
    assert reads == [first]
    second = LateIds([7, 8], reads)
    processors.append([1, 0], second)
    apply(processors, [0, 1], [2, 2])
    assert reads == [first, second]
    left, right = calls[-1][2]
    assert list_outputs(left) == [5, 8]
    assert list_outputs(right) == [6, 7]


def test_tokens_of_several_steps_are_read_in_their_order(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "remember"))
    processors.start(start_with(1, "remember"))
    reads: list[LateIds] = []
    steps = [LateIds([5, 6], reads), LateIds([7], reads), LateIds([8, 9], reads)]
    processors.append([0, 1], steps[0])
    processors.append([1], steps[1])
    processors.append([1, 0], steps[2])
    apply(processors, [0, 1], [2, 3])
    assert reads == steps
    assert [list_outputs(row) for row in calls[-1][2]] == [[5, 9], [6, 7, 8]]


def test_tokens_are_not_read_for_a_plug_in_that_does_not_need_them() -> None:
    processors = make()
    processors.start(start_with(0, "add"))
    processors.start(start_with(1))
    reads: list[LateIds] = []
    for number in range(5):
        apply(processors, [0, 1], [number] * 2)
        late = LateIds([3, 4], reads)
        processors.append([0, 1], late)
        # Tokens that no plug-in will read are not kept, either.
        dead = weakref.ref(late)
        del late
        # Not the oldest generation: all imported objects would take half a second.
        gc.collect(1)
        assert dead() is None
    assert reads == []


def test_plug_ins_of_one_sequence_get_the_same_tokens(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "remember", "remember-too", "add"))
    reads: list[LateIds] = []
    for number in range(3):
        apply(processors, [0], [number])
        processors.append([0], LateIds([number + 5], reads))
    apply(processors, [0], [3])
    by_name = {name: rows[0] for name, _, rows in calls}
    assert list_outputs(by_name["remember"]) == [5, 6, 7]
    assert list_outputs(by_name["remember-too"]) == [5, 6, 7]
    assert by_name["add"].output_token_ids is None
    assert len(reads) == 3


def test_a_slots_next_sequence_gets_none_of_the_former_ones_tokens(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "remember"))
    processors.start(start_with(1, "remember"))
    reads: list[LateIds] = []
    apply(processors, [0, 1], [0, 0])
    processors.append([0, 1], LateIds([5, 6], reads))
    former = calls[-1][2][0]
    processors.start(start_with(0, "remember"))
    apply(processors, [0, 1], [0, 1])
    assert [list_outputs(row) for row in calls[-1][2]] == [[], [6]]
    assert list_outputs(former) == []


def test_tokens_in_flight_are_freed_with_their_sequence() -> None:
    processors = make()
    reads: list[LateIds] = []
    for number in range(4):
        processors.start(start_with(0, "remember"))
        apply(processors, [0], [0])
        late = LateIds([number], reads)
        processors.append([0], late)
    dead = weakref.ref(late)
    del late
    processors.start(start_with(0))
    gc.collect(1)
    assert dead() is None
    assert reads == []


def test_after_a_preemption_a_new_row_has_the_earlier_output(calls: Any) -> None:
    processors = make()
    processors.start(start_with(0, "remember"))
    apply(processors, [0], [0])
    processors.append([0], LateIds([5]))
    former = calls[-1][2][0]
    former.state = "anything"
    processors.start(start_with(3, "remember", outputs=(5,)))
    apply(processors, [3], [1])
    row = calls[-1][2][0]
    assert row is not former
    assert row.state is None
    assert list_outputs(row) == [5]
    assert row.num_output_tokens == 1


@pytest.mark.parametrize("name", ["add", "remember"])
def test_a_step_costs_the_same_however_long_the_output_is(name: str) -> None:
    assert count_operations(name, 100) == count_operations(name, 60_000)


def count_operations(name: str, num_outputs: int) -> int:
    """Count the calls of Python and of C in a step of four sequences with a plug-in."""
    processors = make()
    slots = [0, 1, 2, 3]
    for slot in slots:
        processors.start(start_with(slot, name, outputs=(7,) * num_outputs))
    processors.append(slots, LateIds([1, 2, 3, 4]))
    scores = torch.zeros(len(slots), VOCAB_SIZE)
    num_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        processors.apply(scores, slots, [num_outputs + 1] * 4)
        processors.append(slots, LateIds([1, 2, 3, 4]))
    finally:
        sys.setprofile(None)
    return num_calls


# Together with other sampling parameters.


def sample(sampling: SamplingParams, logits: Tensor, **start: Any) -> int:
    sampler = Sampler(vocab_size=VOCAB_SIZE, device=CPU, logits_processors=(Prefer,))
    sampler.start(make_start(sampling, **start))
    return sampler.sample([0], [0], logits).ids.read()[0]


class Prefer(LogitsProcessor):
    """Makes a token the likeliest by far, if its logit is above zero."""

    name = "prefer"

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        for scores, row in zip(logits, rows):
            arguments = row.arguments
            assert isinstance(arguments, dict)
            if scores[arguments["token"]] > 0:
                scores[arguments["token"]] += 100.0


PREFER_5 = (("prefer", {"token": 5}),)


def test_a_greedy_choice_is_changed_and_logits_are_left_as_they_are() -> None:
    logits = torch.ones(1, VOCAB_SIZE)
    logits[0, 2] = 9.0
    before = logits.clone()
    sampling = SamplingParams(temperature=0.0, logits_processors=PREFER_5)
    assert sample(SamplingParams(temperature=0.0), logits) == 2
    assert sample(sampling, logits) == 5
    assert torch.equal(logits, before)


def test_plug_ins_see_biases() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    sampling = SamplingParams(temperature=0.0, logits_processors=PREFER_5)
    assert sample(sampling, logits) == 0
    biased = SamplingParams(
        temperature=0.0, logits_processors=PREFER_5, logit_bias=((5, 0.5), (6, 9.0))
    )
    assert sample(biased, logits) == 5


@pytest.mark.parametrize(
    ("params", "start"),
    [
        ({"bad_words": ((5,),)}, {}),
        ({"bad_words": ((1, 5),)}, {}),
        ({"min_tokens": 3}, {"stops": frozenset({5})}),
    ],
    ids=["bad word", "longer bad word", "stop token"],
)
def test_plug_ins_cannot_bring_back_forbidden_tokens(
    params: dict[str, Any], start: dict[str, Any]
) -> None:
    logits = torch.ones(1, VOCAB_SIZE)
    sampling = SamplingParams(temperature=0.0, logits_processors=PREFER_5, **params)
    assert sample(sampling, logits, **start) == 0


# With transformers as the oracle.


class NoRepeat(LogitsProcessor):
    """Uses transformers' own processor, which reads the whole sequence at each step."""

    name = "no-repeat"
    needs_output_token_ids = True

    def apply(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        for index, row in enumerate(rows):
            arguments = row.arguments
            assert isinstance(arguments, dict)
            ids = torch.tensor([[*row.prompt_token_ids, *list_outputs(row)]])
            process = NoRepeatNGramLogitsProcessor(arguments["size"])
            logits[index] = process(ids, logits[index : index + 1])[0]


def test_a_batch_of_all_kinds_equals_generates_output(tiny: Callable[..., Any]) -> None:
    """They run together, one is preempted, and slots are reused."""
    model = tiny("llama")
    planner = Planner(model.loaded, logits_processors=(Add, NoRepeat))
    sizes = [2, None, 3, 1]
    sequences = []
    for slot, size in enumerate(sizes):
        named = () if size is None else (("no-repeat", {"size": size}),)
        sampling = SamplingParams(temperature=0.0, logits_processors=named)
        prompt = make_prompt(9 + slot, slot)
        sequences.append(planner.begin(prompt, slot=slot, sampling=sampling))
    planner.run(*sequences, num_tokens=10)
    planner.preempt(sequences[0], slot=6)
    planner.run(*sequences[1:], num_tokens=14)
    planner.run(*sequences, num_tokens=20, chunk=7)
    again = planner.begin(make_prompt(8, 9), slot=3)
    planner.run(again, num_tokens=20)
    settings = [{} if n is None else {"no_repeat_ngram_size": n} for n in sizes]
    for sequence, setting in zip([*sequences, again], [*settings, {}]):
        assert sequence.outputs == model.generate(sequence.prompt, 20, **setting)
    free = model.generate(sequences[2].prompt, 20)
    assert free != sequences[2].outputs, "the plug-in has something to forbid"


def test_a_plug_in_gets_the_models_vocabulary_size_and_device() -> None:
    made: list[dict[str, Any]] = []

    class Curious(Add):
        def __init__(self, **options: Any) -> None:
            made.append(options)

    make(Curious)
    assert made == [{"vocab_size": VOCAB_SIZE, "device": CPU}]


def test_the_error_of_a_plug_in_is_named() -> None:
    class Broken(Add):
        def __init__(self, **options: Any) -> None:
            raise KeyError("table")

    with pytest.raises(InvalidConfig, match="add cannot be made: KeyError: 'table'"):
        make(Broken)
