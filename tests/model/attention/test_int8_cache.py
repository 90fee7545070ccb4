"""A KV cache of eight bits keeps each token's numbers by a rule that its neighbours do not touch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trioserve.model.attention.backend import PagedModel
from trioserve.model.attention.gather import GatherAttention
from trioserve.model.attention.kv_cache import allocate, quantise
from trioserve.model.step.slots import SlotTables

from .steps import (
    LAYERS,
    RoundedSteps,
    Steps,
    make_layer,
    make_model,
    round_trip,
    run_story,
)


def make_int8(model: PagedModel, tables: SlotTables) -> GatherAttention:
    return GatherAttention(replace(model, kv_dtype=torch.int8), tables)


def test_codes_and_scales_follow_the_rule() -> None:
    rows = torch.tensor(
        [
            [127.0, -63.5, 0.5, 1.5, 0.4],
            [0.0, 0.0, 0.0, 0.0, 0.0],
            [-2.54, 2.0, 1, 0, 0],
        ]
    )
    codes, scales = quantise(rows)
    # Halves go to the even number.
    assert codes.tolist() == [[127, -64, 0, 2, 0], [0] * 5, [-127, 100, 50, 0, 0]]
    assert scales.tolist() == pytest.approx([1.0, 0.0, 0.02])


def test_numbers_that_are_not_finite_are_zero_and_tiny_ones_do_no_harm() -> None:
    rows = torch.tensor([[torch.nan, 2.0, -1.0], [-torch.inf, 0.0, 4.0], [1e-42, 0, 0]])
    codes, scales = quantise(rows)
    assert codes.tolist() == [[0, 127, -64], [0, 0, 127], [0, 0, 0]]
    assert scales.isfinite().all()


def test_a_cache_gives_back_keys_and_values_of_other_scales() -> None:
    model = replace(make_model(layer=LAYERS["odd dims"]), kv_dtype=torch.int8)
    (cache,) = allocate(replace(model, num_blocks=3))
    slots = torch.tensor([9, 1, 2])
    key, value = torch.randn(3, 2, 24), torch.randn(3, 2, 20) * 100
    cache.write(slots, key, value)
    kept_keys, kept_values = cache.read(torch.tensor([2, 0]))
    places = [1, 5, 6]  # of the slots in blocks of four
    torch.testing.assert_close(kept_keys[places], round_trip(key))
    torch.testing.assert_close(kept_values[places], round_trip(value))
    rest = [i for i in range(8) if i not in places]
    assert not kept_keys[rest].any() and not kept_values[rest].any()


@pytest.mark.parametrize("name", LAYERS)
def test_attention_is_that_of_the_rounded_numbers(name: str) -> None:
    run_story(RoundedSteps(make_int8, LAYERS[name]), 2e-6)


def test_a_prompt_alone_and_in_chunks_sees_the_same_rounded_numbers() -> None:
    # The same random numbers; the second backend is one of eight bits.
    outputs = []
    for parts in ([13], [6, 1, 6]):
        steps = Steps(make_int8, make_layer())
        query, key, value = Steps(make_int8, make_layer()).draw_inputs(13)
        begin = 0
        for count in parts:
            own = slice(begin, begin + count)
            begin += count
            given = [query[own], key[own], value[own]]
            plan = steps.plan((0, count))
            outputs.append(steps._run(steps.backends[1], plan, given))
    whole, chunked = outputs[0], torch.cat(outputs[1:])
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-6)
