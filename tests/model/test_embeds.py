"""Prompts with vectors get the same answers as from `generate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
import weakref

import pytest
import torch

from trioserve.types.plan import StepPlan
from trioserve.types.prompt import EmbeddedInput
from trioserve.types.sampling import SamplingParams
from trioserve.types.tensors import TensorBytes

from .planning import Planner, make_prompt, make_vectors

# Without and with a factor of the vectors of tokens.
some_models = pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])


def with_data(tensor: TensorBytes, data: Any) -> TensorBytes:
    return TensorBytes(data=data, dtype=tensor.dtype, shape=tensor.shape)


def draw_vectors(model: Any, num_vectors: int, seed: int = 0) -> torch.Tensor:
    """Return random vectors, about as long as the model's own."""
    embeddings = model.embed(range(90))
    noise = torch.randn(
        (num_vectors, embeddings.shape[1]), generator=torch.manual_seed(seed)
    )
    return noise * embeddings.std()


@some_models
def test_alone(tiny_by_kernels: Callable[..., Any], model_type: str) -> None:
    model = tiny_by_kernels(model_type)
    planner = Planner(model.loaded)
    vectors = draw_vectors(model, 19)
    sequence = planner.begin([0] * 19, embedded=[make_vectors(0, vectors)])
    planner.run(sequence, num_tokens=8, chunk=5)
    model.check_from(vectors, sequence.outputs)


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
def test_vectors_of_a_text_are_the_text(
    tiny_by_kernels: Callable[..., Any], model_type: str
) -> None:
    """Chunks cut the two runs of vectors of one prompt; the other prompt has tokens."""
    model = tiny_by_kernels(model_type)
    planner = Planner(model.loaded)
    prompt = make_prompt(22)
    embedded = [
        make_vectors(begin, model.embed(prompt[begin:end]))
        for begin, end in ((2, 9), (12, 21))
    ]
    sequence = planner.begin(prompt, embedded=embedded)
    other = planner.begin(prompt, slot=1)
    planner.step((sequence, 5), (other, 3))
    planner.step((other, 19), (sequence, 9))
    planner.run(sequence, other, num_tokens=6, chunk=1)
    model.check_behind(prompt, other.outputs)
    model.check_behind(prompt, sequence.outputs)


@some_models
def test_after_preemption(tiny_by_kernels: Callable[..., Any], model_type: str) -> None:
    """One preemption is in the middle of the vectors, and one after some output."""
    model = tiny_by_kernels(model_type)
    planner = Planner(model.loaded)
    vectors = draw_vectors(model, 14)
    sequence = planner.begin([0] * 14, embedded=[make_vectors(0, vectors)])
    other = planner.begin(make_prompt(11, 1), slot=1)
    planner.step((other, 11), (sequence, 6))
    planner.preempt(sequence, slot=3)
    planner.run(other, sequence, num_tokens=5)
    planner.preempt(sequence, slot=5)
    planner.run(other, sequence, num_tokens=8, chunk=7)
    model.check_from(vectors, sequence.outputs)
    model.check(other)


@pytest.mark.parametrize(
    "model_type, num_shared", [("llama", 1), ("mistral", 2), ("gemma3_text", 4)]
)
def test_prefix_hit(
    tiny_by_kernels: Callable[..., Any], model_type: str, num_shared: int
) -> None:
    """Blocks that hold some or all of the vectors are not computed again."""
    model = tiny_by_kernels(model_type)
    planner = Planner(model.loaded)
    vectors = draw_vectors(model, 13)
    sequences = []
    for seed in (1, 2):
        shared = sequences[0].block_ids[:num_shared] if sequences else []
        prompt = [*[0] * 16, *make_prompt(5, seed)]
        embedded = [make_vectors(3, vectors)]
        sequences.append(
            planner.begin(prompt, slot=seed, shared=shared, embedded=embedded)
        )
        planner.run(sequences[-1], num_tokens=6)
    for sequence in sequences:
        whole = torch.cat(
            (model.embed([0] * 3), vectors, model.embed(sequence.prompt[16:]))
        )
        model.check_from(whole, sequence.outputs)


@pytest.mark.filterwarnings("ignore:.*only to newly generated tokens")
@pytest.mark.parametrize(
    "field, value", [("repetition_penalty", 1.7), ("presence_penalty", 2.0)]
)
def test_penalties_pass_over_positions_without_a_token(
    tiny_by_kernels: Callable[..., Any], field: str, value: float
) -> None:
    model = tiny_by_kernels("llama")
    vectors = draw_vectors(model, 9)
    sampling = SamplingParams(temperature=0.0, **{field: value})  # type: ignore
    planner = Planner(model.loaded)
    sequence = planner.begin(
        [0] * 9, sampling=sampling, embedded=[make_vectors(0, vectors)]
    )
    planner.run(sequence, num_tokens=12)
    plain = model.generate_from(vectors, 12)
    assert sequence.outputs != plain
    if field == "repetition_penalty":
        expected = model.generate_from(vectors, 12, repetition_penalty=value)
        assert sequence.outputs == expected


class WatchedBytes(bytearray):
    """Bytes that take weak references, to show when they are freed."""


@pytest.mark.parametrize("is_read", [True, False])
def test_vectors_are_gone_once_they_have_been_read_or_the_plan_says_so(
    tiny_by_kernels: Callable[..., Any], is_read: bool
) -> None:
    model = tiny_by_kernels("llama")
    planner = Planner(model.loaded)
    item: EmbeddedInput = make_vectors(2, draw_vectors(model, 6))
    data = WatchedBytes(item.tensors["embeds"].data)
    watched = weakref.ref(data)
    item = replace(item, tensors={"embeds": with_data(item.tensors["embeds"], data)})
    sequence = planner.begin(make_prompt(12), embedded=[item])
    planner.step((sequence, 7))
    sequence.embedded = ()
    del data, item
    assert watched() is not None
    if is_read:
        planner.step((sequence, 1))
    else:
        ends = (sequence.slot,)
        planner.runner.step(StepPlan(step_id=8, starts=(), rows=(), ends=ends))
    assert watched() is None


@pytest.mark.parametrize("as_bytes", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes(tiny_by_kernels: Callable[..., Any], as_bytes: Any) -> None:
    """Read-only bytes are accepted, too."""
    model = tiny_by_kernels("llama")
    planner = Planner(model.loaded)
    vectors = draw_vectors(model, 4)
    item = make_vectors(0, vectors)
    data = as_bytes(item.tensors["embeds"].data)
    item = replace(item, tensors={"embeds": with_data(item.tensors["embeds"], data)})
    sequence = planner.begin([0] * 4, embedded=[item])
    planner.run(sequence, num_tokens=6)
    model.check_from(vectors, sequence.outputs)
