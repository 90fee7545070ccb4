"""The sequences that decode if a step has no time for all."""

from __future__ import annotations

from trioserve.scheduler import Flow, Sequence
from trioserve.scheduler.generation.turns import DecodingTurns
from trioserve.scheduler.step_cost import StepCost
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams


def make_sequences(*flows: Flow) -> list[Sequence]:
    return [
        Sequence(
            sequence_id=SequenceId(number),
            arrival=number,
            seed=0,
            flow=flow,
            prompt_token_ids=(1,),
            sampling=SamplingParams(max_tokens=1),
        )
        for number, flow in enumerate(flows)
    ]


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
