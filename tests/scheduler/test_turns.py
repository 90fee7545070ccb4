"""The sequences that decode if a step has no time for all."""

from __future__ import annotations

from collections import Counter

import pytest
from scheduling import make_sequence

from trioserve.scheduler.generation.sequence import Flow, Sequence
from trioserve.scheduler.generation.time_share import DecodingTurns
from trioserve.scheduler.step_cost import StepCost
from trioserve.types.client import Client


def make_sequences(*flows: Flow) -> list[Sequence]:
    return [make_sequence(number, flow=flow) for number, flow in enumerate(flows)]


def test_each_request_has_one_row_where_there_is_no_time_at_all() -> None:
    one, other = Flow(), Flow()
    sequences = make_sequences(one, one, other, one)
    chosen = DecodingTurns(StepCost()).choose(sequences, -1.0)
    assert chosen == [sequences[0], sequences[2]]


def test_sequences_of_a_request_take_turns() -> None:
    sequences = make_sequences(*[Flow()] * 3)
    turns = DecodingTurns(StepCost())
    chosen = [turns.choose(sequences, -1.0) for _ in range(4)]
    assert chosen == [[sequences[index]] for index in (0, 1, 2, 0)]


def test_rows_that_fill_the_time_exactly_are_all_taken() -> None:
    """Before the first measurement, a row's predicted cost is zero."""
    sequences = make_sequences(*[Flow()] * 3)
    assert DecodingTurns(StepCost()).choose(sequences, 0.0) == sequences


class CostOfRows(StepCost):
    """Each row takes a second."""

    def predict_row(self, context: int, num_tokens: int) -> float:
        return 1.0


def choose_often(
    flows: list[Flow], seconds: float, num_steps: int
) -> Counter[Sequence]:
    """Count the rows of each sequence."""
    sequences = make_sequences(*flows)
    turns = DecodingTurns(CostOfRows())
    return Counter(
        sequence
        for _ in range(num_steps)
        for sequence in turns.choose(sequences, seconds)
    )


@pytest.mark.parametrize(("weight", "num_rows"), [(1.0, 4), (3.0, 6), (0.1, 1)])
def test_clients_get_rows_by_weight(weight: float, num_rows: int) -> None:
    """Ann has ten requests and Bob one of twenty sequences; there is time for eight rows."""
    ann = Client(name="ann", weight=weight)
    many, one = [Flow(client=ann) for _ in range(10)], Flow(client=Client(name="bob"))
    rows = choose_often([*many, *[one] * 20], 8.0, 10)
    of_ann = {each: count for each, count in rows.items() if each.flow is not one}
    assert sum(of_ann.values()) == 10 * num_rows
    assert sum(rows.values()) == 80
    # Her requests take turns.
    assert set(of_ann.values()) == {num_rows}


@pytest.mark.parametrize("num_rows", [3, 5])
def test_clients_take_turns_for_the_last_row(num_rows: int) -> None:
    """Ann has four times as many streams as Bob."""
    ann, bob = Client(name="ann"), Client(name="bob")
    flows = [Flow(client=ann) for _ in range(40)]
    flows += [Flow(client=bob) for _ in range(10)]
    rows = choose_often(flows, num_rows, 40)
    of_bob = sum(count for each, count in rows.items() if each.flow.client is bob)
    assert of_bob == 20 * num_rows


def test_time_that_a_client_does_not_need_goes_to_the_others() -> None:
    bob = Client(name="bob", weight=9.0)
    rows = choose_often([Flow() for _ in range(9)] + [Flow(client=bob)], 6.0, 9)
    assert sorted(rows.values()) == [5] * 9 + [9]


def test_each_client_has_one_row_where_there_is_no_time_at_all() -> None:
    """The many requests of one client do not make the step longer for the other."""
    bob = Client(name="bob", weight=0.01)
    rows = choose_often([*(Flow() for _ in range(4)), Flow(client=bob)], -1.0, 4)
    assert sorted(rows.values()) == [1, 1, 1, 1, 4]
