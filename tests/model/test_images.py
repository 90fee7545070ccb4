"""Prompts with images get the same answers as from `generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
import logging
from typing import Any

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.model import load_model
from trioserve.testing.models import TINY_VISION_MODELS
from trioserve.types.sampling import SamplingParams

every_model = pytest.mark.parametrize("model_type", sorted(TINY_VISION_MODELS))

# Both kinds of positions; the others differ in what stands before the language model.
some_models = pytest.mark.parametrize("model_type", ["qwen2_vl", "smolvlm"])


def begin(planner: Any, sight: Any, **settings: Any) -> Any:
    return planner.begin(sight.prompt, embedded=sight.embedded, **settings)


@contextmanager
def count_encoded(model: Any) -> Iterator[list[None]]:
    """Record each image that is encoded inside the block."""
    encoded: list[None] = []
    (tower,) = (
        module
        for name, module in model.loaded.model.named_modules()
        if name in ("model.visual", "model.vision_model", "model.vision_tower")
    )
    hook = tower.register_forward_hook(lambda *_: encoded.append(None))
    yield encoded
    hook.remove()


@every_model
@pytest.mark.parametrize("chunk", [1000, 5])
def test_alone(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
    chunk: int,
) -> None:
    """Chunks end in the middle of the image, and its encoder runs once."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    sight = model.look(make_prompt(6), make_image(), make_prompt(5, 1))
    story = begin(planner, sight)
    with count_encoded(model) as encoded:
        planner.run(story, num_tokens=16, chunk=chunk)
    assert len(encoded) == 1
    assert story.outputs == model.generate_at(sight, 16)


@every_model
def test_another_image_gets_another_answer(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    stories = [
        begin(
            planner,
            model.look(make_prompt(6), make_image(seed), make_prompt(5, 1)),
            slot=seed,
        )
        for seed in range(3)
    ]
    planner.run(*stories, num_tokens=8)
    assert len({tuple(story.outputs) for story in stories}) == 3


@every_model
def test_text_alone(
    seeing: Callable[..., Any], make_planner: Any, make_prompt: Any, model_type: str
) -> None:
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    story = planner.begin(make_prompt(19))
    planner.run(story, num_tokens=16, chunk=7)
    assert story.outputs == model.generate(story.prompt, 16)


@every_model
def test_beside_others(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    """Two images of two shapes in one prompt, one in another, and text in between."""
    model = seeing(model_type)
    planner = make_planner(model.loaded, num_blocks=128)
    small, wide = make_image(3, (30, 30)), make_image(4, (150, 60))
    sights = [
        model.look(make_prompt(3), wide, make_prompt(4, 1), small, make_prompt(9, 2)),
        model.look(make_image(5), make_prompt(2, 3)),
    ]
    stories = [begin(planner, sight, slot=i) for i, sight in enumerate(sights)]
    text = planner.begin(make_prompt(17, 4), slot=2)
    planner.step((text, 9), (stories[0], 6))
    planner.step((stories[1], 4), (text, 8), (stories[0], 11))
    planner.run(text, *stories, num_tokens=12, chunk=9)
    assert text.outputs == model.generate(text.prompt, len(text.outputs))
    for story, sight in zip(stories, sights):
        assert story.outputs == model.generate_at(sight, len(story.outputs))


@every_model
def test_after_preemption(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    """One preemption is in the middle of the image, and one after some output."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    sight = model.look(make_prompt(2), make_image(), make_prompt(5, 1))
    story = begin(planner, sight, slot=0)
    other = planner.begin(make_prompt(11, 1), slot=1)
    planner.step((other, 11), (story, 5))
    planner.preempt(story, slot=3)
    planner.run(other, story, num_tokens=5)
    planner.preempt(story, slot=5)
    planner.run(other, story, num_tokens=12, chunk=7)
    assert story.outputs == model.generate_at(sight, 12)
    assert other.outputs[:12] == model.generate(other.prompt, 12)


@every_model
@pytest.mark.parametrize("num_shared, num_encoded", [(2, 1), (-2, 0)])
def test_prefix_hit(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
    num_shared: int,
    num_encoded: int,
) -> None:
    """Blocks hold half of the image, or all of it; then nothing is encoded."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    pieces = (make_prompt(3), make_image())
    first = begin(planner, model.look(*pieces, make_prompt(9, 1)), slot=0)
    planner.run(first, num_tokens=2)
    sight = model.look(*pieces, make_prompt(5, 1), make_prompt(6, 2))
    num_blocks = (len(sight.prompt) - 11) // 4 + 1 if num_shared < 0 else num_shared
    second = begin(planner, sight, slot=1, shared=first.block_ids[:num_blocks])
    with count_encoded(model) as encoded:
        planner.run(second, first, num_tokens=12, chunk=6)
    assert len(encoded) == num_encoded
    assert second.outputs == model.generate_at(sight, 12)


@every_model
def test_images_and_vectors(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    make_vectors: Any,
    model_type: str,
) -> None:
    """Vectors of a text before and after an image count as that text."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    sight = model.look(make_prompt(7), make_image(), make_prompt(8, 1))
    length = len(sight.prompt)
    story = planner.begin(
        sight.prompt,
        embedded=[
            make_vectors(1, model.embed(sight.prompt[1:5])),
            *sight.embedded,
            make_vectors(length - 6, model.embed(sight.prompt[-6:-1])),
        ],
    )
    planner.run(story, num_tokens=12, chunk=8)
    assert story.outputs == model.generate_at(sight, 12)


@every_model
def test_vectors_alone(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_vectors: Any,
    model_type: str,
) -> None:
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    prompt = make_prompt(13)
    story = planner.begin(prompt, embedded=[make_vectors(0, model.embed(prompt))])
    planner.run(story, num_tokens=12, chunk=8)
    assert story.outputs == model.generate(prompt, 12)


@every_model
def test_in_bfloat16(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    """The tensors of an image come in float32, whatever the type of the model."""
    model = seeing(model_type)
    loaded = load_model(
        model.folder, ModelConfig(device="cpu", dtype="bfloat16"), name="tiny"
    )
    assert loaded.info.dtype == "bfloat16"
    planner = make_planner(loaded)
    sight = model.look(make_prompt(6), make_image(), make_prompt(5, 1))
    story = begin(planner, sight)
    planner.run(story, num_tokens=2)


@some_models
def test_sequences_encode_an_image_once_while_one_of_them_needs_it(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    sights = [
        model.look(make_prompt(3 + i), make_image(), make_prompt(4)) for i in range(2)
    ]
    stories = [begin(planner, sight, slot=i) for i, sight in enumerate(sights)]
    with count_encoded(model) as encoded:
        planner.run(*stories, num_tokens=8)
        assert len(encoded) == 1
        planner.run(begin(planner, sights[0], slot=2), num_tokens=1)
        # Its vectors were forgotten.
        assert len(encoded) == 2
    for story, sight in zip(stories, sights):
        assert story.outputs == model.generate_at(sight, 8)


@some_models
def test_slot_forgets_its_former_image(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    """The next sequence inherits neither vectors nor shifted positions."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    left = begin(planner, model.look(make_prompt(2), make_image(), make_prompt(4)))
    planner.step((left, 5))
    story = planner.begin(make_prompt(20))
    planner.run(story, num_tokens=8)
    assert story.outputs == model.generate(story.prompt, 8)


@some_models
def test_repetition_penalty_counts_image_tokens(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    model_type: str,
) -> None:
    """`generate` counts them, too."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    sight = model.look(make_prompt(6), make_image(), make_prompt(5, 1))
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.7)
    story = begin(planner, sight, sampling=sampling)
    planner.run(story, num_tokens=12)
    assert story.outputs == model.generate(
        sight.prompt, 12, **sight.arguments, repetition_penalty=1.7
    )


@pytest.mark.parametrize("num_missing", [-3, 2])
@some_models
def test_vectors_that_were_counted_wrong_stay_with_their_sequence(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
    caplog: pytest.LogCaptureFixture,
    model_type: str,
    num_missing: int,
) -> None:
    """The step goes on, the log names the error, and other sequences are not affected."""
    model = seeing(model_type)
    planner = make_planner(model.loaded)
    sight = model.look(make_prompt(6), make_image(), make_prompt(9, 1))
    (item,) = sight.embedded
    *runs, (run_begin, run_end) = item.runs
    runs.append((run_begin, run_end - num_missing))
    wrong = replace(item, runs=tuple(runs))
    story = planner.begin(sight.prompt, embedded=[wrong])
    other = planner.begin(make_prompt(14), slot=1)
    with caplog.at_level(logging.ERROR):
        planner.run(story, other, num_tokens=8)
    assert "does not fit its encoder" in caplog.text
    assert other.outputs == model.generate(other.prompt, 8)


def test_positions_are_those_of_transformers(
    seeing: Callable[..., Any],
    make_planner: Any,
    make_prompt: Any,
    make_image: Any,
) -> None:
    """Images are higher or wider, at the beginning and near the end."""
    model = seeing("qwen2_vl")
    planner = make_planner(model.loaded, num_blocks=128)
    high, wide = make_image(1, (30, 150)), make_image(2, (150, 30))
    pieces: list[Any] = [[high, [5]], [high, wide, [5]], [make_prompt(3), wide, [5]]]
    sights = [model.look(*piece) for piece in pieces]
    stories = [begin(planner, sight, slot=i) for i, sight in enumerate(sights)]
    planner.run(*stories, num_tokens=12, chunk=6)
    for story, sight in zip(stories, sights):
        assert story.outputs == model.generate_at(sight, len(story.outputs))


def test_an_images_patches_attend_in_the_models_own_way(
    seeing: Callable[..., Any],
) -> None:
    for model_type in TINY_VISION_MODELS:
        loaded = seeing(model_type).loaded
        assert len(loaded.layers) == 2
        assert loaded.model.config.vision_config._attn_implementation == "sdpa"
        assert all("visi" not in layer.module_name for layer in loaded.layers)
        assert loaded.info.takes_images
        assert loaded.info.hidden_size == 64
        assert loaded.info.dtype == "float32"
        assert loaded.info.vocab_size == 640
        assert loaded.info.max_model_len == 256
        assert loaded.dtype == torch.float32
