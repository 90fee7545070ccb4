"""The output is the same as from `generate`, whatever the shape of batches."""

from __future__ import annotations

from collections.abc import Callable
import math
from pathlib import Path
from typing import Any

import pytest

from trioserve.config import ModelConfig
from trioserve.model.loading.load import load_model
from trioserve.testing.models import TINY_MODELS, save_tiny_model

from .conftest import NATIVE_MODELS
from .planning import Planner, make_prompt

# Models without native kernels, and those with caps, widths, latents or states of their own.
# All others differ from llama in transformers' code, which check_modules() compares.
BY_MODULES = sorted(TINY_MODELS.keys() - NATIVE_MODELS) + [
    *("deepseek_v3", "gemma2", "gemma4_text", "llama", "lfm2", "qwen3_5_text"),
]


@pytest.mark.parametrize(
    "kernels, model_type",
    [
        *(("torch", each) for each in BY_MODULES),
        *(("native", each) for each in sorted(TINY_MODELS.keys() & NATIVE_MODELS)),
    ],
)
def test_beside_others(
    tiny: Callable[..., Any], needs_kernels: None, kernels: str, model_type: str
) -> None:
    """Prompts have all lengths, and some come while others are being answered."""
    model = tiny(model_type, kernels=kernels)
    planner = Planner(model.loaded)
    lengths = (33, 1, 12, 4, 5)
    sequences = [
        planner.begin(make_prompt(length, slot), slot=slot)
        for slot, length in enumerate(lengths)
    ]
    planner.step((sequences[0], 7))
    planner.step((sequences[1], 1), (sequences[0], 13), (sequences[2], 3))
    planner.step((sequences[2], 9), (sequences[1], 1), (sequences[0], 13))
    planner.step(
        (sequences[0], 1), (sequences[3], 4), (sequences[1], 1), (sequences[4], 4)
    )
    planner.run(*sequences, num_tokens=10)
    model.check(*sequences)


# Without a window, with one, with sinks, and with latents.
@pytest.mark.parametrize(
    "model_type, block_size",
    [("llama", 16), ("mistral", 3), ("gpt_oss", 4), ("deepseek_v3", 1)],
)
def test_behind_a_known_prefix_and_after_preemption(
    tiny_by_kernels: Callable[..., Any], model_type: str, block_size: int
) -> None:
    """Blocks that another sequence has filled are read, not computed again.

    A preempted sequence is computed again, in another slot and other blocks.
    """
    model = tiny_by_kernels(model_type)
    planner = Planner(model.loaded, block_size=block_size)
    prefix = make_prompt(3 * block_size)
    first = planner.begin(prefix + make_prompt(6, 1), slot=0)
    planner.run(first, num_tokens=3)
    second = planner.begin(
        prefix + make_prompt(9, 2), slot=1, shared=first.block_ids[:3]
    )
    third = planner.begin(make_prompt(10, 3), slot=2)
    planner.run(first, second, third, num_tokens=5, chunk=6)
    planner.preempt(third, slot=5)
    planner.run(first, second, num_tokens=7)
    planner.run(first, second, third, num_tokens=9, chunk=7)
    model.check(first, second, third)


def test_rows_share_a_block_that_is_filled_in_the_same_step(
    tiny_by_kernels: Callable[..., Any],
) -> None:
    model = tiny_by_kernels("llama")
    planner = Planner(model.loaded)
    prefix = make_prompt(8)
    first = planner.begin(prefix + make_prompt(3, 1), slot=0)
    planner.step((first, 4))
    # second reads first's next block as a prefix in the step that fills it.
    first.block_ids.append(planner.take_block())
    second = planner.begin(prefix + [5], slot=1, shared=first.block_ids[:2])
    planner.step((second, 1), (first, 7))
    planner.run(first, second, num_tokens=10)
    model.check(first, second)


def test_lengths_far_apart(tiny_by_kernels: Callable[..., Any]) -> None:
    """The decodes of one step are read in several buckets, in any order."""
    model = tiny_by_kernels("mistral")
    planner = Planner(model.loaded, num_blocks=200)
    sequences = [
        planner.begin(make_prompt(length, slot), slot=slot)
        for slot, length in enumerate((2, 70, 9, 41, 68, 1, 22))
    ]
    planner.run(*sequences, num_tokens=5)
    model.check(*sequences)


def test_two_runners_of_one_model_have_caches_of_their_own(
    tiny_by_kernels: Callable[..., Any],
) -> None:
    model = tiny_by_kernels("llama")
    planners = [Planner(model.loaded) for _ in range(2)]
    sequences = [
        planner.begin(make_prompt(9, seed)) for seed, planner in enumerate(planners)
    ]
    for _ in range(8):
        for planner, sequence in zip(planners, sequences):
            planner.step((sequence, sequence.num_tokens - sequence.num_computed))
    model.check(*sequences)


def test_warm_up_leaves_nothing_behind(tiny_by_kernels: Callable[..., Any]) -> None:
    model = tiny_by_kernels("llama")
    planner = Planner(model.loaded)
    planner.runner.warm_up()
    sequence = planner.begin(make_prompt(5))
    planner.run(sequence, num_tokens=9)
    model.check(sequence)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_warm_up_of_the_smallest_cache(
    tiny_by_kernels: Callable[..., Any], num_blocks: int
) -> None:
    model = tiny_by_kernels("llama")
    planner = Planner(
        model.loaded, num_blocks=num_blocks, block_size=1, max_model_len=2
    )
    planner.runner.warm_up()
    sequence = planner.begin(make_prompt(1))
    planner.run(sequence, num_tokens=1)
    model.check(sequence)


def test_plan_without_rows_only_starts(tiny_by_kernels: Callable[..., Any]) -> None:
    planner = Planner(tiny_by_kernels("llama").loaded)
    assert planner.step().sampled == ()


def test_up_to_the_last_position(tiny_by_kernels: Callable[..., Any]) -> None:
    model = tiny_by_kernels("llama")
    planner = Planner(model.loaded, max_model_len=20)
    sequence = planner.begin(make_prompt(11))
    planner.run(sequence, num_tokens=9)
    model.check(sequence)


@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
def test_broken_numbers_stay_with_their_sequence(
    tmp_path: Path, model_type: str
) -> None:
    """A sequence of NaN affects no neighbour and no later owner of its blocks."""
    folder = save_tiny_model(model_type, tmp_path, tie_word_embeddings=False)
    model = load_model(folder, ModelConfig(device="cpu"), name="tiny")
    whole = Planner(model)
    prompts = [make_prompt(9, seed) for seed in (1, 2)]
    expected = [whole.begin(prompt, slot=i) for i, prompt in enumerate(prompts)]
    whole.run(*expected, num_tokens=8)
    used = {i for s in expected for i in s.prompt + s.outputs}
    spoiler = min(set(range(131)) - used)
    model.model.get_input_embeddings().weight.data[spoiler] = math.nan
    planner = Planner(model, num_blocks=10)
    broken = planner.begin([spoiler] * 15, slot=0)
    beside = planner.begin(prompts[0], slot=1)
    planner.run(broken, beside, num_tokens=8)
    planner.preempt(broken, slot=0)
    after = planner.begin(prompts[1], slot=2)
    planner.run(after, num_tokens=8)
    assert [beside.outputs, after.outputs] == [s.outputs for s in expected]
