"""Images whose tokens see each other: steps compute them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trioserve.model.runner import ModelRunner
from trioserve.model.step.joined_images import JoinedImages
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.scheduler.generation.spans import Spans
from trioserve.types.ids import SequenceId
from trioserve.types.plan import StepRow
from trioserve.types.prompt import EmbeddedInput, list_image_runs
from trioserve.types.sampling import SamplingParams

from .conftest import MixedPrompt
from .planning import Planner, make_image, make_prompt, make_start, run_steps

joining = pytest.mark.parametrize("model_type", ["gemma3", "gemma4"])


def make_runs(*runs: tuple[int, int]) -> EmbeddedInput:
    return EmbeddedInput(kind="image", runs=runs, keys=b"", tensors={})


def make_row(slot: int, start: int, num_tokens: int) -> StepRow:
    return StepRow(
        slot=slot, start=start, num_tokens=num_tokens, new_block_ids=(), sample=False
    )


def test_tokens_see_up_to_the_end_of_their_image() -> None:
    images = JoinedImages()
    images.start(make_start(slot=0, embedded=(make_runs((2, 5), (6, 8)),)))
    assert images.find_ends([make_row(0, 0, 2)]) is None
    ends = images.find_ends([make_row(1, 4, 2), make_row(0, 2, 7)])
    assert ends is not None and ends.dtype == torch.int32
    assert ends.tolist() == [5, 6, *(5, 5, 5, 6, 8, 8, 9)]
    # Behind its images, and for the next sequence of the slot, nothing is left.
    assert images.find_ends([make_row(0, 9, 1)]) is None
    images.start(make_start(slot=0, embedded=(make_runs((2, 5)),)))
    images.start(make_start(slot=0))
    assert images.find_ends([make_row(0, 0, 9)]) is None


@joining
def test_alone_after_preemptions_and_behind_known_prefixes(
    tiny_vision_by_kernels: Callable[..., Any], model_type: str
) -> None:
    """The prefix ends before an image, and behind it."""
    model = tiny_vision_by_kernels(model_type)
    planner = Planner(model.loaded, num_blocks=256)
    mixed = model.join(make_prompt(5), make_image(), make_prompt(6, 1), make_image(2))
    begin = lambda slot, **more: planner.begin(  # noqa: E731
        mixed.prompt, slot=slot, embedded=mixed.embedded, **more
    )
    first = begin(0)
    planner.step((first, 8))
    planner.preempt(first, slot=1)
    planner.run(first, num_tokens=3)
    planner.preempt(first, slot=2)
    planner.run(first, num_tokens=8)
    (_, end), (second_begin, _) = list_image_runs(mixed.embedded)
    followers = [
        begin(3 + index, shared=first.block_ids[: position // 4])
        for index, position in enumerate((5, end + 4, second_begin))
    ]
    planner.run(*followers, num_tokens=8, chunk=7)
    for sequence in (first, *followers):
        model.check_at(mixed, sequence.outputs)


@joining
@pytest.mark.parametrize(
    "budget, num_blocks",
    [(80, 60), pytest.param(400, 120, marks=pytest.mark.matrix)],
)
def test_any_budget_with_preemptions_and_a_prefix_cache(
    tiny_vision_by_kernels: Callable[..., Any],
    model_type: str,
    budget: int,
    num_blocks: int,
) -> None:
    """Two turns of chats, beside text, planned ahead of the device."""
    model = tiny_vision_by_kernels(model_type)
    sizes = {"num_blocks": num_blocks, "block_size": 4, "max_num_seqs": 4}
    runner = ModelRunner(model.loaded, **sizes, max_model_len=220)
    scheduler = Scheduler(**sizes, max_model_len=220, max_num_batched_tokens=budget)
    begin = [make_prompt(7), make_image(), make_prompt(9, 1)]
    mixed_prompts = [
        model.join(*begin),
        model.join(make_image(3, (30, 80)), make_prompt(2)),
        MixedPrompt(make_prompt(33, 4), (), {}),
        model.join(*begin, make_image(5, (60, 40)), make_prompt(3, 3)),
        model.join(*begin, make_prompt(30, 6)),
    ]
    for number, mixed in enumerate(mixed_prompts):
        scheduler.add(
            Scheduled(
                sequence_id=SequenceId(number),
                prompt_token_ids=tuple(mixed.prompt),
                sampling=SamplingParams(temperature=0.0, max_tokens=6),
                seed=number,
                arrival=number,
                embedded=mixed.embedded,
                spans=Spans(list_image_runs(mixed.embedded)),
            )
        )
    outputs: list[list[int]] = [[] for _ in mixed_prompts]
    for delta in run_steps(scheduler, runner.launch, depth=2):
        outputs[delta.sequence_id] += delta.token_ids
    for mixed, written in zip(mixed_prompts, outputs):
        assert len(written) == 6
        model.check_at(mixed, written)


@pytest.mark.parametrize("chunk", [pytest.param(1000, marks=pytest.mark.matrix), 7])
def test_small_gemma_4_divides_images_and_looks_up_padding(
    tiny_vision_by_kernels: Callable[..., Any], chunk: int
) -> None:
    model = tiny_vision_by_kernels("gemma4_e2b")
    assert model.loaded.info.takes_images and not model.loaded.info.joins_images
    planner = Planner(model.loaded, num_blocks=128)
    mixed_prompts = [
        model.join(make_prompt(6), make_image(), make_prompt(5, 1)),
        model.join(make_image(1, (40, 70)), make_prompt(2, 1)),
    ]
    sequences = [
        planner.begin(mixed.prompt, slot=slot, embedded=mixed.embedded)
        for slot, mixed in enumerate(mixed_prompts)
    ]
    text = planner.begin(make_prompt(17, 4), slot=2)
    planner.run(text, *sequences, num_tokens=12, chunk=chunk)
    model.check(text)
    for sequence, mixed in zip(sequences, mixed_prompts):
        model.check_at(mixed, sequence.outputs)
