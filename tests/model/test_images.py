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
from trioserve.model.loading.load import load_model
from trioserve.testing.models import TINY_VISION_MODELS
from trioserve.types.sampling import SamplingParams

from .conftest import NATIVE_MODELS
from .planning import Planner, make_image, make_prompt, make_vectors

# They have the encoder of another type, or one much like it.
SIMILAR = {
    *("glm4v", "glm4v_moe", "idefics3", "llava_next", "qwen3_5_moe", "qwen3_vl_moe"),
    "vipllava",
}

# Both kinds of positions, and vectors behind the first layers; the other models differ only
# in their image encoders.
some_models = pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_vl", "smolvlm"])


def begin(planner: Any, mixed: Any, **settings: Any) -> Any:
    return planner.begin(mixed.prompt, embedded=mixed.embedded, **settings)


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


@pytest.mark.parametrize(
    "kernels, model_type",
    [
        *(("torch", each) for each in ("qwen2_vl", "qwen3_5", "qwen3_vl")),
        *(
            pytest.param(
                *("native" if each in NATIVE_MODELS else "torch", each),
                marks=pytest.mark.matrix if each in SIMILAR else (),
            )
            for each in sorted(TINY_VISION_MODELS)
        ),
    ],
)
def test_beside_others(
    tiny_vision: Callable[..., Any], needs_kernels: None, kernels: str, model_type: str
) -> None:
    """Two images of two shapes in one prompt, one in another, and text in between.

    Chunks end in the middle of images, and the encoder runs once for each.
    """
    model = tiny_vision(model_type, kernels=kernels)
    planner = Planner(model.loaded, num_blocks=128)
    small, wide = make_image(3, (30, 30)), make_image(4, (150, 60))
    mixed_prompts = [
        model.join(make_prompt(3), wide, make_prompt(4, 1), small, make_prompt(9, 2)),
        model.join(make_image(5), make_prompt(2, 3)),
    ]
    sequences = [begin(planner, mixed, slot=i) for i, mixed in enumerate(mixed_prompts)]
    text = planner.begin(make_prompt(17, 4), slot=2)
    with count_encoded(model) as encoded:
        planner.step((text, 9), (sequences[0], 6))
        planner.step((sequences[1], 4), (text, 8), (sequences[0], 11))
        planner.run(text, *sequences, num_tokens=8, chunk=9)
    assert len(encoded) == 3
    model.check(text)
    for sequence, mixed in zip(sequences, mixed_prompts):
        model.check_at(mixed, sequence.outputs)


@some_models
def test_after_preemption(tiny_vision: Callable[..., Any], model_type: str) -> None:
    """One preemption is in the middle of the image, and one after some output."""
    model = tiny_vision(model_type)
    planner = Planner(model.loaded)
    mixed = model.join(make_prompt(2), make_image(), make_prompt(5, 1))
    sequence = begin(planner, mixed, slot=0)
    other = planner.begin(make_prompt(11, 1), slot=1)
    planner.step((other, 11), (sequence, 5))
    planner.preempt(sequence, slot=3)
    planner.run(other, sequence, num_tokens=5)
    planner.preempt(sequence, slot=5)
    planner.run(other, sequence, num_tokens=9, chunk=7)
    model.check_at(mixed, sequence.outputs)
    model.check(other)


@pytest.mark.parametrize(
    "kernels, model_type, num_shared, num_encoded",
    [
        ("torch", "qwen2_vl", 2, 1),
        ("torch", "qwen3_vl", 2, 1),
        ("torch", "smolvlm", -2, 0),
        ("native", "qwen2_vl", -2, 0),
        ("native", "qwen3_vl", 2, 1),
    ],
)
def test_prefix_hit(
    tiny_vision: Callable[..., Any],
    needs_kernels: None,
    kernels: str,
    model_type: str,
    num_shared: int,
    num_encoded: int,
) -> None:
    """Blocks hold half of the image, or all of it; then nothing is encoded."""
    model = tiny_vision(model_type, kernels=kernels)
    planner = Planner(model.loaded)
    pieces = (make_prompt(3), make_image())
    first = begin(planner, model.join(*pieces, make_prompt(9, 1)), slot=0)
    planner.run(first, num_tokens=2)
    mixed = model.join(*pieces, make_prompt(5, 1), make_prompt(6, 2))
    num_blocks = (len(mixed.prompt) - 11) // 4 + 1 if num_shared < 0 else num_shared
    second = begin(planner, mixed, slot=1, shared=first.block_ids[:num_blocks])
    with count_encoded(model) as encoded:
        planner.run(second, first, num_tokens=6, chunk=6)
    assert len(encoded) == num_encoded
    model.check_at(mixed, second.outputs)


@pytest.mark.parametrize(
    "kernels, model_type",
    [("torch", "qwen2_vl"), ("torch", "smolvlm"), ("native", "qwen3_vl")],
)
def test_images_and_vectors(
    tiny_vision: Callable[..., Any], needs_kernels: None, kernels: str, model_type: str
) -> None:
    """Vectors of a text before and after an image count as that text."""
    model = tiny_vision(model_type, kernels=kernels)
    planner = Planner(model.loaded)
    mixed = model.join(make_prompt(7), make_image(), make_prompt(8, 1))
    length = len(mixed.prompt)
    sequence = planner.begin(
        mixed.prompt,
        embedded=[
            make_vectors(1, model.embed(mixed.prompt[1:5])),
            *mixed.embedded,
            make_vectors(length - 6, model.embed(mixed.prompt[-6:-1])),
        ],
    )
    planner.run(sequence, num_tokens=6, chunk=8)
    model.check_at(mixed, sequence.outputs)


def test_in_bfloat16(tiny_vision: Callable[..., Any]) -> None:
    """The tensors of an image come in float32, whatever the type of the model."""
    model = tiny_vision("qwen3_vl")
    loaded = load_model(
        model.folder, ModelConfig(device="cpu", dtype="bfloat16"), name="tiny"
    )
    assert loaded.info.dtype == "bfloat16"
    planner = Planner(loaded)
    mixed = model.join(make_prompt(6), make_image(), make_prompt(5, 1))
    sequence = begin(planner, mixed)
    planner.run(sequence, num_tokens=2)


def test_sequences_encode_an_image_once_while_one_of_them_needs_it(
    tiny_vision: Callable[..., Any],
) -> None:
    model = tiny_vision("qwen2_vl")
    planner = Planner(model.loaded)
    mixed_prompts = [
        model.join(make_prompt(3 + i), make_image(), make_prompt(4)) for i in range(2)
    ]
    sequences = [begin(planner, mixed, slot=i) for i, mixed in enumerate(mixed_prompts)]
    with count_encoded(model) as encoded:
        planner.run(*sequences, num_tokens=4)
        assert len(encoded) == 1
        planner.run(begin(planner, mixed_prompts[0], slot=2), num_tokens=1)
        # The image's vectors had been freed.
        assert len(encoded) == 2
    for sequence, mixed in zip(sequences, mixed_prompts):
        model.check_at(mixed, sequence.outputs)


@some_models
def test_slot_forgets_its_former_image(
    tiny_vision: Callable[..., Any], model_type: str
) -> None:
    """The next sequence inherits neither vectors nor shifted positions."""
    model = tiny_vision(model_type)
    planner = Planner(model.loaded)
    left = begin(planner, model.join(make_prompt(2), make_image(), make_prompt(4)))
    planner.step((left, 5))
    sequence = planner.begin(make_prompt(20))
    planner.run(sequence, num_tokens=8)
    model.check(sequence)


def test_repetition_penalty_counts_image_tokens(
    tiny_vision: Callable[..., Any],
) -> None:
    """`generate` counts them, too."""
    model = tiny_vision("smolvlm")
    planner = Planner(model.loaded)
    mixed = model.join(make_prompt(6), make_image(), make_prompt(5, 1))
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.7)
    sequence = begin(planner, mixed, sampling=sampling)
    planner.run(sequence, num_tokens=8)
    assert sequence.outputs == model.generate(
        mixed.prompt, 8, **mixed.arguments, repetition_penalty=1.7
    )


@pytest.mark.parametrize(
    "model_type, num_missing", [("qwen2_vl", -3), ("qwen3_vl", 2), ("smolvlm", 2)]
)
def test_vectors_that_were_counted_wrong_stay_with_their_sequence(
    tiny_vision: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    model_type: str,
    num_missing: int,
) -> None:
    """The step goes on, the log names the error, and other sequences are correct."""
    model = tiny_vision(model_type)
    planner = Planner(model.loaded)
    mixed = model.join(make_prompt(6), make_image(), make_prompt(9, 1))
    (item,) = mixed.embedded
    *runs, (run_begin, run_end) = item.runs
    runs.append((run_begin, run_end - num_missing))
    wrong = replace(item, runs=tuple(runs))
    sequence = planner.begin(mixed.prompt, embedded=[wrong])
    other = planner.begin(make_prompt(14), slot=1)
    with caplog.at_level(logging.ERROR):
        planner.run(sequence, other, num_tokens=4)
    assert "does not fit its encoder" in caplog.text
    model.check(other)


def test_positions_are_those_of_transformers(
    tiny_vision_by_kernels: Callable[..., Any],
) -> None:
    """Images are higher or wider, at the beginning and near the end."""
    model = tiny_vision_by_kernels("qwen2_vl")
    planner = Planner(model.loaded, num_blocks=128)
    high, wide = make_image(1, (30, 150)), make_image(2, (150, 30))
    pieces: list[Any] = [[high, [5]], [high, wide, [5]], [make_prompt(3), wide, [5]]]
    mixed_prompts = [model.join(*piece) for piece in pieces]
    sequences = [begin(planner, mixed, slot=i) for i, mixed in enumerate(mixed_prompts)]
    planner.run(*sequences, num_tokens=6, chunk=6)
    for sequence, mixed in zip(sequences, mixed_prompts):
        model.check_at(mixed, sequence.outputs)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_5", "smolvlm"])
def test_an_images_patches_attend_in_the_models_own_way(
    tiny_vision: Callable[..., Any], model_type: str
) -> None:
    loaded = tiny_vision(model_type).loaded
    # The other layer of Qwen3.5 keeps a state.
    assert len(loaded.layers) + len(loaded.states) == 2
    assert loaded.model.config.vision_config._attn_implementation == "sdpa"
    assert all("visi" not in layer.module_name for layer in loaded.layers)
    assert loaded.info.takes_images
    assert loaded.info.hidden_size == 64
    assert loaded.info.dtype == "float32"
    assert loaded.info.vocab_size == 640
    assert loaded.info.max_model_len == 256
    assert loaded.dtype == torch.float32
