"""A GPU gives the same answers as a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trioserve.config import CacheConfig
from trioserve.model.attention.cache_memory import count_fitting_blocks
from trioserve.model.sampling.bad_words import BadWords
from trioserve.model.sampling.host_copy import copy_to_host
from trioserve.model.sampling.reasoning_budget import ReasoningBudgets
from trioserve.testing.models import TINY_MODELS, TINY_VISION_MODELS
from trioserve.types.plan import SlotStart
from trioserve.types.sampling import ReasoningBudget, SamplingParams

from .planning import Planner, make_image, make_prompt, make_start, make_vectors

DEVICE = "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("model_type", sorted(TINY_MODELS))
def test_mixed_batches_equal_generates_output(
    tiny: Callable[..., Any], model_type: str
) -> None:
    model = tiny(model_type, DEVICE)
    planner = Planner(model.loaded)
    sequences = [
        planner.begin(make_prompt(length, slot), slot=slot)
        for slot, length in enumerate((33, 1, 12))
    ]
    planner.step((sequences[0], 20))
    planner.step((sequences[1], 1), (sequences[0], 13), (sequences[2], 5))
    planner.run(*sequences, num_tokens=16)
    model.check(*sequences)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_vectors_equal_generates_output(
    tiny: Callable[..., Any], model_type: str
) -> None:
    """They come in the host's memory and go to the device chunk by chunk."""
    model = tiny(model_type, DEVICE)
    planner = Planner(model.loaded)
    vectors = model.embed(make_prompt(14)).flip(1)
    sequence = planner.begin([0] * 14, embedded=[make_vectors(0, vectors)])
    text = planner.begin(make_prompt(9), slot=1)
    planner.step((text, 9), (sequence, 6))
    planner.run(sequence, text, num_tokens=12)
    model.check_from(vectors, sequence.outputs)
    model.check(text)


@pytest.mark.parametrize("model_type", sorted(TINY_VISION_MODELS))
def test_images_equal_generates_output(
    tiny_vision: Callable[..., Any], model_type: str
) -> None:
    model = tiny_vision(model_type, DEVICE)
    planner = Planner(model.loaded)
    mixed = model.join(make_prompt(6), make_image(), make_prompt(5, 1))
    sequence = planner.begin(mixed.prompt, embedded=mixed.embedded)
    text = planner.begin(make_prompt(9), slot=1)
    planner.step((text, 9), (sequence, 9))
    planner.run(sequence, text, num_tokens=12)
    model.check_at(mixed, sequence.outputs)
    model.check(text)


def test_a_seeded_sequence_is_the_same_in_any_batch(tiny: Callable[..., Any]) -> None:
    model = tiny("llama", DEVICE)
    sampling = SamplingParams(temperature=1.0, top_p=0.9, top_k=20, min_p=0.01)
    outputs = []
    for num_others in (0, 3):
        planner = Planner(model.loaded)
        sequences = [
            planner.begin(make_prompt(9, i), slot=i, sampling=sampling, seed=i)
            for i in range(1 + num_others)
        ]
        planner.run(*sequences, num_tokens=24)
        outputs.append(sequences[0].outputs)
    assert outputs[0] == outputs[1]


def test_bad_words_and_budgets_are_the_same_without_waiting(no_sync: Any) -> None:
    def start(slot: int, outputs: tuple[int, ...] = ()) -> SlotStart:
        thinking = ReasoningBudget(
            num_tokens=slot,
            start_token_ids=(1,),
            end_token_ids=(2, 2, 3),
            is_open=slot % 2 == 0,
        )
        words = ((1, 2), (2, 1, 0), (slot, slot))
        sampling = SamplingParams(bad_words=words, reasoning_budget=thinking)
        return make_start(sampling, slot, prompt=(0, 1), outputs=outputs)

    scores, forced = [], []
    slots = [3, 0, 5, 1, 2, 4]
    stream = torch.randint(4, (20, 6), generator=torch.manual_seed(0))
    for device in (torch.device("cpu"), torch.device(DEVICE)):
        bad_words, budgets = BadWords(6, device), ReasoningBudgets(device)
        tokens = stream.to(device)
        for step in range(20):
            # In some of the steps one sequence is preempted.
            for slot in slots if step == 0 else {step % 8} & {*slots}:
                written = tuple(stream[:step, slots.index(slot)].tolist())
                bad_words.start(start(slot, written))
                budgets.start(start(slot, written))
            row = torch.zeros((6, 6), device=device)
            chosen = tokens[step].clone()
            with no_sync():
                bad_words.ban(row, slots)
                budgets.force(slots, chosen)
                bad_words.append(slots, tokens[step])
                budgets.append(slots, tokens[step])
            scores.append(row.cpu())
            forced.append(chosen.cpu())
    assert any(row.isinf().any() for row in scores)
    assert torch.equal(torch.stack(scores[:20]), torch.stack(scores[20:]))
    assert not torch.equal(torch.stack(forced[:20]), stream)
    assert torch.equal(torch.stack(forced[:20]), torch.stack(forced[20:]))


def test_the_cache_takes_its_share_of_the_devices_memory(
    tiny: Callable[..., Any],
) -> None:
    model = tiny("llama", DEVICE)
    few, more = (
        count_fitting_blocks(
            model.loaded.info.kv_bytes_per_token,
            CacheConfig(kv_cache_fraction=fraction),
            max_num_seqs=10**6,
            max_model_len=96,
            device=model.loaded.device,
        ).num_blocks
        for fraction in (0.01, 0.02)
    )
    assert 0 < few < more


def test_results_reach_the_host_on_a_stream_of_their_own(no_sync: Any) -> None:
    """The memory of a tensor that is dropped is not used before it is copied."""
    device = torch.device(DEVICE, 0)
    copies = []
    with no_sync():
        for each in range(50):
            copies.append(copy_to_host(torch.full((1000,), each, device=device)))
            torch.full((1000,), -1, device=device)
    assert [int(copy.read()[999]) for copy in copies] == list(range(50))


def test_results_reach_the_host_before_the_next_step_overwrites_them(
    no_sync: Any,
) -> None:
    result = torch.zeros(1000, device=torch.device(DEVICE, 0))
    copies = []
    with no_sync():
        for each in range(50):
            result.fill_(each)
            copies.append(copy_to_host(result, in_turn=True))
    assert [int(copy.read()[999]) for copy in copies] == list(range(50))
