"""Adapters on the native kernels compute what merged weights compute on modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trioserve.config import ModelConfig
from trioserve.model.adapters.description import LowRank
from trioserve.model.adapters.products import split_expert
from trioserve.model.loading.load import load_model
from trioserve.model.loading.plain.llama import load_plain
from trioserve.model.runner import ModelRunner
from trioserve.testing.models import make_tiny_model
from trioserve.types.sampling import SamplingParams

from ...planning import Planner, make_prompt

pytestmark = pytest.mark.usefixtures("needs_kernels")

NUM_TOKENS = 6


def load(folder: Path, **options: Any) -> Any:
    return load_model(folder, ModelConfig(device="cpu", **options), name="tiny")


def get_adapters(runner: ModelRunner) -> Any:
    return runner._layers.adapters  # type: ignore[attr-defined]


def make_changes(shapes: dict[str, tuple[int, int]], number: int) -> dict[str, LowRank]:
    """Make an adapter: the second one changes every other product, and scales outputs."""
    chance = torch.Generator().manual_seed(number)
    # The last one fills a block of ranks, and a part of the next.
    rank = (3, 4, 40)[number - 1]

    def make(num_outputs: int, num_inputs: int) -> LowRank:
        a = torch.randn(rank, num_inputs, generator=chance) / num_inputs**0.5
        b = torch.randn(num_outputs, rank, generator=chance) * 0.3 / rank**0.5
        scale = torch.rand(num_outputs, generator=chance) + 0.5
        return LowRank(a=a, b=b, output_scale=scale if number == 2 else None)

    step = 2 if number == 2 else 1
    return {name: make(*shapes[name]) for name in [*shapes][::step]}


def get_weight(model: Any, name: str) -> torch.Tensor:
    """Return the weight of a product of transformers' model."""
    if (expert := split_expert(name)) is None:
        weight: torch.Tensor = model.get_submodule(name).weight
        return weight.detach()
    experts = model.get_submodule(expert[0])
    weight = getattr(experts, expert[2])[expert[1]].detach()
    return weight.T if experts.is_transposed else weight


def merge(model: Any, changes: dict[str, LowRank]) -> Any:
    """Add an adapter to the weights of transformers' model."""
    for name, change in changes.items():
        scale = 1.0 if change.output_scale is None else change.output_scale[:, None]
        weight = get_weight(model, name)
        changed = scale * (weight + change.b @ change.a)
        if split_expert(name) is not None:
            weight.copy_(changed)
            continue
        product = model.get_submodule(name)
        if product is model.get_output_embeddings():
            # The vectors of tokens stay.
            model.config.tie_word_embeddings = False
        product.weight = nn.Parameter(changed)
    return model


@pytest.mark.parametrize(
    "model_type",
    [
        *("llama", "phi3", "gemma2", "qwen3_5_text", "falcon_h1", "lfm2"),
        # Experts, with a shared one.
        *("deepseek_v3", "qwen2_moe"),
        # Its gates are between what they weigh, and inputs come first.
        "gpt_oss",
    ],
)
def test_rows_compute_what_their_merged_weights_compute(
    tmp_path: Path, model_type: str
) -> None:
    make_tiny_model(model_type).save_pretrained(tmp_path / "0")
    planner = Planner(load(tmp_path / "0", kernels="native"))
    adapters = get_adapters(planner.runner)
    model = make_tiny_model(model_type)
    for name in adapters.shapes:
        assert torch.equal(adapters.read(name), get_weight(model, name)), name
    for number in (1, 2, 3):
        changes = make_changes(adapters.shapes, number)
        adapters.add(number, adapters.pack(changes))
        merged = merge(make_tiny_model(model_type), changes)
        merged.save_pretrained(tmp_path / f"{number}")
    expected = []
    for number in range(4):
        alone = Planner(load(tmp_path / f"{number}", kernels="torch"))
        sequence = alone.begin(make_prompt(11 + number, number))
        alone.run(sequence, num_tokens=NUM_TOKENS)
        expected.append(sequence.outputs)
    for chunk in (1000, 4):
        # Rows of an adapter are apart in the plan.
        numbers = [3, 0, 1, 2, 1, 3]
        sequences = [
            planner.begin(make_prompt(11 + number, number), slot=slot, adapter=number)
            for slot, number in enumerate(numbers)
        ]
        planner.run(*sequences, num_tokens=NUM_TOKENS, chunk=chunk)
        for number, sequence in zip(numbers, sequences):
            assert sequence.outputs == expected[number], (number, chunk)


@pytest.mark.parametrize(
    ("load", "options", "dtype", "tolerance"),
    [
        (load_model, {}, torch.float32, 1e-4),
        # Weights that a server packs as they lie in the file.
        (load_plain, {}, torch.float32, 1e-4),
        # 0.05, and 0.13 on AVX512-BF16, where products round what they read.
        (load_model, {"dtype": "bfloat16"}, torch.bfloat16, 0.2),
        (load_plain, {"quantization": "int8"}, torch.bfloat16, 0.4),
    ],
)
def test_an_adapter_is_rounded_only_where_weights_are(
    tmp_path: Path,
    load: Callable[..., Any],
    options: dict[str, Any],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    make_tiny_model("llama").save_pretrained(tmp_path / "0")
    config = ModelConfig(device="cpu", kernels="native", **options)
    planner = Planner(load(tmp_path / "0", config, name="tiny"))
    adapters = get_adapters(planner.runner)
    assert adapters.dtype == dtype
    changes = make_changes(adapters.shapes, 1)
    adapters.add(1, adapters.pack(changes))
    merge(make_tiny_model("llama"), changes).save_pretrained(tmp_path / "1")
    config = ModelConfig(device="cpu", kernels="torch", dtype="float32")
    merged = Planner(load_model(tmp_path / "1", config, name="tiny"))

    def find_logprobs(planner: Planner, slot: int, adapter: int) -> dict[int, float]:
        sampling = SamplingParams(temperature=0.0, logprobs=20)
        sequence = planner.begin(
            make_prompt(12), slot=slot, adapter=adapter, sampling=sampling
        )
        planner.run(sequence, num_tokens=1)
        return dict(sequence.logprobs[0].top)

    def measure(adapter: int) -> float:
        """Return the largest difference of logprobs from those of merged weights."""
        actual = find_logprobs(planner, adapter, adapter)
        shared = actual.keys() & expected.keys()
        return max(abs(actual[each] - expected[each]) for each in shared)

    expected = find_logprobs(merged, 0, 0)
    assert measure(1) < tolerance < measure(0)


def test_a_removed_adapter_leaves_nothing(tmp_path: Path) -> None:
    make_tiny_model("llama").save_pretrained(tmp_path / "0")
    planner = Planner(load(tmp_path / "0", kernels="native"))
    adapters = get_adapters(planner.runner)
    adapters.add(7, adapters.pack(make_changes(adapters.shapes, 1)))
    outputs = []
    for number in (0, 7, 0):
        if len(outputs) == 2:
            adapters.remove(7)
        sequence = planner.begin(make_prompt(9), adapter=number)
        planner.run(sequence, num_tokens=NUM_TOKENS)
        outputs.append(sequence.outputs)
    assert outputs[0] == outputs[2] != outputs[1]
