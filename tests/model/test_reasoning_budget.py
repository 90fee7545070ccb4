"""No sequence reasons longer than its budget, and until then its tokens stay."""

from __future__ import annotations

from collections.abc import Sequence
import random
from typing import Any

from examples import examples
from hypothesis import given, settings, strategies as st
import pytest
import torch

from trioserve.model.sampling.reasoning_budget import ReasoningBudgets
from trioserve.types.plan import SlotStart
from trioserve.types.sampling import ReasoningBudget, SamplingParams
from trioserve.types.structured import Grammar

from .planning import make_start

START, END = (10,), (11,)

# The model's choice in each step; part of no tag.
CHOSEN = 99


def make_budget(
    num_tokens: int,
    start: Sequence[int] = START,
    end: Sequence[int] = END,
    is_open: bool = False,
) -> ReasoningBudget:
    return ReasoningBudget(
        num_tokens=num_tokens,
        start_token_ids=tuple(start),
        end_token_ids=tuple(end),
        is_open=is_open,
    )


def start_thinking(
    budget: ReasoningBudget | None, *, grammar: Grammar | None = None, **fields: Any
) -> SlotStart:
    sampling = SamplingParams(reasoning_budget=budget, grammar=grammar)
    return make_start(sampling, **fields)


def start_budgets(*starts: SlotStart) -> ReasoningBudgets:
    budgets = ReasoningBudgets(torch.device("cpu"))
    for start in starts:
        budgets.start(start)
    return budgets


def ask(budgets: ReasoningBudgets, *slots: int) -> list[int | None]:
    """Return the forced token of each slot, or None if the chosen token stays."""
    chosen = torch.full((len(slots),), CHOSEN)
    budgets.force(list(slots), chosen)
    return [None if token_id == CHOSEN else token_id for token_id in chosen.tolist()]


def write(
    budget: ReasoningBudget, stream: Sequence[int], prompt: Any = (1,), **fields: Any
) -> Any:
    """Return the output of slot 0 if the model chooses the tokens of `stream`.

    A forced token replaces the model's.
    """
    budgets, outputs = (
        start_budgets(start_thinking(budget, prompt=prompt, **fields)),
        [],
    )
    for token_id in stream:
        forced = ask(budgets, 0)[0]
        outputs.append(token_id if forced is None else forced)
        budgets.append([0], torch.tensor(outputs[-1:]))
    return outputs


def judge(budget: ReasoningBudget, outputs: Sequence[int]) -> tuple[int | None, int]:
    """Judge all outputs from the beginning, as a reference.

    Returns:
      the token that has to come next, or None
      the number of reasoning tokens, except a possible beginning of the end tag
    """
    start, end = list(budget.start_token_ids), list(budget.end_token_ids)
    is_inside, section, num_closed = budget.is_open, list[int](), 0
    for token_id in outputs:
        section.append(token_id)
        if is_inside and section[-len(end) :] == end:
            num_closed += len(section) - len(end)
            is_inside, section = False, []
        elif not is_inside and section[-len(start) :] == start:
            is_inside, section = True, []
    if not is_inside:
        return None, num_closed
    begun = max(n for n in range(len(end)) if n == 0 or section[-n:] == end[:n])
    is_over = num_closed + len(section) >= budget.num_tokens
    return end[begun] if is_over else None, num_closed + len(section) - begun


@pytest.mark.parametrize(
    ("budget", "stream", "outputs"),
    [
        # Reasoning is open from the beginning.
        (make_budget(3, is_open=True), [1, 2, 3, 4, 5], [1, 2, 3, 11, 5]),
        (make_budget(0, is_open=True), [1, 2, 3], [11, 2, 3]),
        # The model opens it.
        (make_budget(2), [1, 10, 2, 3, 4, 5], [1, 10, 2, 3, 11, 5]),
        (make_budget(0), [1, 10, 2, 3], [1, 10, 11, 3]),
        (make_budget(1, (7, 8)), [7, 7, 8, 1, 2, 3], [7, 7, 8, 1, 11, 3]),
        # It is never opened.
        (make_budget(0), [1, 2, 11, 3], [1, 2, 11, 3]),
        # The model itself ends it, also with the last token that is allowed.
        (make_budget(3, is_open=True), [1, 11, 2, 3, 4, 5], [1, 11, 2, 3, 4, 5]),
        (make_budget(1, is_open=True), [1, 11, 2, 3], [1, 11, 2, 3]),
        # A tag of several tokens.
        (make_budget(1, START, (7, 8, 9), True), [1] * 6, [1, 7, 8, 9, 1, 1]),
        # The model has begun to write the end tag.
        (make_budget(3, START, (7, 8, 9), True), [1, 7, 8, 1, 1], [1, 7, 8, 9, 1]),
        (make_budget(4, START, (1, 1, 2), True), [3, 1, 1, 1, 1], [3, 1, 1, 1, 2]),
        # The model breaks the tag off, so its tokens count as reasoning.
        (make_budget(4, START, (7, 8), True), [7, 7, 1, 1, 1, 1], [7, 7, 1, 1, 7, 8]),
        # A second section has the rest of the first one's budget.
        (
            make_budget(3),
            [10, 1, 11, 5, 6, 7, 10, 2, 3, 4, 5],
            [10, 1, 11, 5, 6, 7, 10, 2, 3, 11, 5],
        ),
        (make_budget(1), [10, 1, 2, 3, 10, 4, 5], [10, 1, 11, 3, 10, 11, 5]),
        # A start tag inside of a section opens nothing.
        (make_budget(2, is_open=True), [10, 10, 1, 2, 3], [10, 10, 11, 2, 3]),
        # Tags do not overlap.
        (make_budget(2, (5, 6), (6, 7)), [5, 6, 7, 1, 1, 1], [5, 6, 7, 1, 6, 7]),
        # The same tag at both ends.
        (make_budget(2, (5,), (5,)), [5, 1, 2, 3, 4, 5], [5, 1, 2, 5, 4, 5]),
    ],
    ids=str,
)
def test_forced_tokens(
    budget: ReasoningBudget, stream: list[int], outputs: list[int]
) -> None:
    assert write(budget, stream) == outputs


@pytest.mark.parametrize(
    ("budget", "stream", "outputs"),
    [
        # The section comes first, and is limited.
        (make_budget(1, (7, 8)), [7, 8, 1, 2, 3], [7, 8, 1, 11, 3]),
        (make_budget(1, is_open=True), [1, 2, 3], [1, 11, 3]),
        # The answer has the text of the tag, behind the section or without one.
        (make_budget(0, (7, 8)), [1, 7, 8, 2, 3], [1, 7, 8, 2, 3]),
        (make_budget(0, (7, 8)), [7, 1, 7, 8, 3], [7, 1, 7, 8, 3]),
        (make_budget(0, (7, 8)), [7, 7, 8, 2, 3], [7, 7, 8, 2, 3]),
        (make_budget(1, (7, 8)), [7, 8, 11, 7, 8, 1, 2], [7, 8, 11, 7, 8, 1, 2]),
        (make_budget(1, (7, 8), is_open=True), [11, 7, 8, 1, 2], [11, 7, 8, 1, 2]),
    ],
    ids=str,
)
def test_a_grammar_has_one_section_at_its_beginning(
    budget: ReasoningBudget, stream: list[int], outputs: list[int]
) -> None:
    grammar = Grammar(text="")
    assert write(budget, stream, grammar=grammar) == outputs
    # Also after a preemption.
    for read in range(1, len(stream)):
        start = start_thinking(budget, outputs=outputs[:read], grammar=grammar)
        forced = ask(start_budgets(start), 0)[0]
        assert forced in (None, outputs[read])


def test_tags_in_the_prompt_are_not_read_again() -> None:
    """Only `is_open` says whether reasoning is open; no tag begins in the prompt."""
    assert write(make_budget(0), [1, 2], prompt=[10]) == [1, 2]
    assert write(make_budget(0, (9, 10)), [10, 2], prompt=[9]) == [10, 2]
    budget = make_budget(3, START, (9, 11), is_open=True)
    assert write(budget, [11, 1, 2, 3], prompt=[9]) == [11, 1, 2, 9]


letters = st.integers(0, 2)
tags = st.lists(letters, min_size=1, max_size=4)
some_budgets = st.builds(make_budget, st.integers(0, 9), tags, tags, st.booleans())


@given(
    all_budgets=st.lists(some_budgets | st.none(), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    obeys=st.booleans(),
)
@settings(max_examples=examples(60))
def test_any_tokens_in_any_batch_are_judged_as_by_the_reference(
    all_budgets: list[ReasoningBudget | None], seed: int, obeys: bool
) -> None:
    """Preemptions change nothing, and an obedient sequence keeps to its budget."""
    chance = random.Random(seed)
    outputs: list[list[int]] = [[] for _ in all_budgets]
    slots = list(range(len(all_budgets)))
    budgets = start_budgets(
        *(start_thinking(budget, slot=slot) for slot, budget in zip(slots, all_budgets))
    )
    for _ in range(30):
        if chance.random() < 0.2:
            # All sequences start again in each other's slots.
            chance.shuffle(slots)
            for slot, budget, written in zip(slots, all_budgets, outputs):
                budgets.start(start_thinking(budget, slot=slot, outputs=written))
        chosen = chance.sample(range(len(outputs)), chance.randint(1, len(outputs)))
        forced = ask(budgets, *(slots[i] for i in chosen))
        for i, token_id in zip(chosen, forced):
            budget = all_budgets[i]
            expected = None if budget is None else judge(budget, outputs[i])[0]
            assert token_id == expected
            if token_id is None or not obeys:
                token_id = chance.randint(0, 3)
            outputs[i].append(token_id)
            if budget is not None and obeys:
                assert judge(budget, outputs[i])[1] <= budget.num_tokens
        tokens = torch.tensor([outputs[i][-1] for i in chosen])
        budgets.append([slots[i] for i in chosen], tokens)


def test_tokens_that_are_not_forced_stay() -> None:
    """This holds even if the host has not read that reasoning ended or never began."""
    budgets = start_budgets(
        start_thinking(make_budget(2, is_open=True), outputs=[1, 11, 5]),
        start_thinking(make_budget(0), slot=1),
        start_thinking(make_budget(0, is_open=True), slot=2),
    )
    budgets.append([0], torch.tensor([5]))
    chosen = torch.tensor([3, 4, 7])
    budgets.force([0, 2, 1], chosen)
    assert chosen.tolist() == [3, END[0], 7]


def test_no_work_is_done_before_a_budget_can_be_used_up(
    record_operations: Any,
) -> None:
    budgets = start_budgets(
        start_thinking(None), start_thinking(make_budget(3, is_open=True), slot=1)
    )
    has_looked = []
    for token_id in range(6):
        with record_operations() as record:
            budgets.force([0, 1], torch.tensor([1, 1]))
        has_looked.append(len(record) > 1)
        budgets.append([0, 1], torch.tensor([10, token_id]))
    assert has_looked == [False, False, False, True, True, True]


def test_a_step_costs_the_same_after_any_number_of_outputs(
    record_operations: Any,
) -> None:
    records = []
    for num_outputs in (100, 60_000):
        budgets = start_budgets(
            start_thinking(make_budget(50, is_open=True), outputs=[1] * num_outputs),
            start_thinking(make_budget(0), slot=1),
        )
        token_ids = torch.tensor([1, 2])
        with record_operations() as record:
            for _ in range(3):
                budgets.force([0, 1], token_ids)
                budgets.append([0, 1], token_ids)
        records.append(record)
        assert token_ids.tolist()[0] in END
    assert records[0] == records[1] != []


def test_nothing_is_done_for_sequences_without_a_budget(record_operations: Any) -> None:
    budgets = start_budgets(
        start_thinking(make_budget(0, is_open=True)),
        start_thinking(None),
        start_thinking(None),
    )
    token_ids = torch.tensor([1])
    with record_operations() as record:
        budgets.force([0], token_ids)
        budgets.append([0], token_ids)
    assert record == []
