"""The numbers by which plain rows choose are found for all rows at once."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st
import numpy as np
import torch

from trioserve.model.sampling.choice import prepare_choice
from trioserve.model.sampling.draw import make_key, make_keys
from trioserve.model.sampling.plain_columns import PlainColumns
from trioserve.types.sampling import SamplingParams

from .planning import GREEDY, make_start

DRAWN = SamplingParams(temperature=0.5)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40))))
def test_keys_of_many_rows_are_those_of_each(pairs: list[tuple[int, int]]) -> None:
    seeds = np.array([seed for seed, _ in pairs], dtype=np.uint64)
    indices = np.array([index for _, index in pairs], dtype=np.int64)
    assert make_keys(seeds, indices).tolist() == [make_key(*pair) for pair in pairs]


def test_rows_are_plain_from_their_first_outputs_on() -> None:
    columns = PlainColumns()
    late = replace(DRAWN, min_tokens=3)
    # A slot beyond all that there is room for at first, and seeds of more than 64 bits.
    for slot, seed, sampling in (
        (700, -1, DRAWN),
        (2, 2**70 + 5, late),
        (3, 7, GREEDY),
    ):
        start = make_start(sampling, slot, seed=seed, stops=frozenset({1}))
        columns.start(slot, prepare_choice(start, 9, torch.device("cpu")))
    slots = np.array([700, 3, 2])
    assert columns.find(slots, np.array([0, 0, 2])) is None
    plain = columns.find(slots, np.array([4, 0, 3]))
    assert plain is not None
    assert plain.temperatures.tolist() == [0.5, 0.0, 0.5]
    assert plain.keys.tolist() == [make_key(-1, 4), 0, make_key(5, 3)]
    assert plain.settings is None


def test_rows_with_rules_have_settings() -> None:
    columns = PlainColumns()
    cut = replace(DRAWN, top_p=0.9, top_k=4)
    for slot, sampling in enumerate(
        (cut, GREEDY, replace(DRAWN, min_p=0.1), replace(DRAWN, logprobs=1))
    ):
        start = make_start(sampling, slot, seed=slot)
        columns.start(slot, prepare_choice(start, 9, torch.device("cpu")))
    counts = np.array([5, 0, 2])
    plain = columns.find(np.arange(3), counts)
    assert plain is not None and plain.settings is not None
    keys = [make_key(slot, count) % 2**64 for slot, count in enumerate(counts.tolist())]
    assert plain.settings.tolist() == [
        [0.5, 0.9, 4, 2, 0, keys[0] % 2**32, keys[0] // 2**32],
        [0, 1, 9, 0, 0, 0, 0],
        [0.5, 1, 9, 1, 0.1, keys[2] % 2**32, keys[2] // 2**32],
    ]
    # Its logits are needed.
    assert columns.find(np.array([3]), np.array([0])) is None
