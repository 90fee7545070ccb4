"""Sequences of models with states write what `generate` writes, whatever the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import re
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, DynamicCache

from trioserve.config import CacheConfig, ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.attention.cache_memory import (
    count_fitting_blocks,
    count_fitting_states,
)
from trioserve.model.loading.adapt.step_limits import follow_step_limits
from trioserve.model.loading.load import load_model
from trioserve.model.loading.outline import outline_model
from trioserve.model.loading.preview import preview_model
from trioserve.model.runner import ModelRunner
from trioserve.model.stages.loading import load_stage
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.testing.models import TINY_HYBRIDS, save_tiny_model
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams
from trioserve.types.stage_place import Shard, StagePlace

from ..conftest import NATIVE_MODELS
from ..families.compare import build
from ..families.tiny import make_tiny
from ..planning import Planner, make_prompt, run_steps

pytestmark = pytest.mark.usefixtures("needs_kernels")

CPU = ModelConfig(device="cpu", kernels="torch")
CPU_DEVICE = torch.device("cpu")

CELLS = {
    (model_type, kernels)
    for model_type in TINY_HYBRIDS
    for kernels in ("torch", "native")
    if kernels == "torch" or model_type in NATIVE_MODELS
}


def on(*cells: tuple[str, str]) -> pytest.MarkDecorator:
    """Run a test for some types of models on some kernels; others are in the matrix."""
    more = sorted(CELLS - {*cells})
    return pytest.mark.parametrize(
        ("model_type", "kernels"),
        [*cells, *(pytest.param(*cell, marks=pytest.mark.matrix) for cell in more)],
    )


@on(*((each, "torch") for each in TINY_HYBRIDS), ("kimi_linear", "native"))
def test_chunks_of_any_size(
    tiny: Callable[..., Any], model_type: str, kernels: str
) -> None:
    """transformers computes 64 tokens of Gated DeltaNet at a time."""
    model = tiny(model_type, kernels=kernels)
    planner = Planner(model.loaded, max_model_len=128)
    sequences = [planner.begin(make_prompt(n, n), slot=n % 8) for n in (100, 70, 1)]
    planner.run(*sequences[:1], num_tokens=2)
    planner.run(*sequences, num_tokens=6, chunk=17)
    model.check(*sequences)


@torch.inference_mode()
def test_nemotron_bounds_time_steps_by_its_configuration() -> None:
    """Otherwise a token has other numbers in a prompt than in a step of its own."""
    model = build(make_tiny(CONFIG_MAPPING["nemotron_h"], time_step_min=0.5))
    tokens = torch.tensor([make_prompt(6)])

    def find_difference() -> float:
        cache = DynamicCache(config=model.config)
        parts = [model(each, cache=cache).logits for each in tokens.T[:, None]]
        return float((torch.cat(parts, 1) - model(tokens).logits).abs().max())

    assert find_difference() > 0.1
    follow_step_limits(model)
    assert find_difference() < 1e-3


@on(("falcon_h1", "torch"), ("lfm2", "native"), ("qwen3_5_text", "torch"))
def test_a_slot_is_as_new_for_its_next_sequence(
    tiny: Callable[..., Any], model_type: str, kernels: str
) -> None:
    """Prompts of one token, too, whose rows look like those of decodes."""
    model = tiny(model_type, kernels=kernels)
    planner = Planner(model.loaded)
    first = planner.begin(make_prompt(20), slot=3)
    other = planner.begin(make_prompt(7, 1), slot=4)
    planner.run(first, other, num_tokens=5)
    second = planner.begin([9], slot=3)
    planner.run(second, other, num_tokens=9)
    planner.preempt(other, slot=3)
    planner.run(other, num_tokens=12, chunk=6)
    model.check(first, second, other)


@on(("kimi_linear", "torch"), ("lfm2", "torch"), ("qwen3_5_text", "native"))
def test_prompts_that_begin_alike_go_on_from_copies(
    tiny: Callable[..., Any], model_type: str, kernels: str
) -> None:
    """Short copies of states are taken, found, replaced and found again."""
    model = tiny(model_type, kernels=kernels)
    sizes = {"num_blocks": 96, "block_size": 4, "max_num_seqs": 3}
    runner = ModelRunner(model.loaded, **sizes, max_model_len=96, num_checkpoints=3)
    scheduler = Scheduler(
        **sizes, max_model_len=96, max_num_batched_tokens=24, num_checkpoints=3
    )
    system = make_prompt(33)
    prompts = [[*system, *make_prompt(n, n)] for n in (1, 9, 4, 21, 2)]
    for number, prompt in enumerate(prompts):
        scheduler.add(
            Scheduled(
                sequence_id=SequenceId(number),
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(temperature=0.0, max_tokens=5),
                seed=number,
                arrival=number,
            )
        )
    outputs: list[list[int]] = [[] for _ in prompts]
    for delta in run_steps(scheduler, runner.launch, depth=2):
        outputs[delta.sequence_id] += delta.token_ids
    assert scheduler.counters().num_prefix_hit_tokens >= 3 * 24
    for prompt, written in zip(prompts, outputs):
        assert len(written) == 5
        model.check_behind(prompt, written)


def test_states_take_their_room_before_keys_and_values() -> None:
    def count(max_num_seqs: int, **fields: Any) -> tuple[int, int]:
        config = CacheConfig(block_size=16, kv_cache_memory="64MiB", **fields)
        fitting = count_fitting_states(
            2**20, config, max_num_seqs=max_num_seqs, device=CPU_DEVICE
        )
        num_blocks = count_fitting_blocks(
            1024,
            config,
            state_bytes=2**20,
            max_num_seqs=fitting,
            max_model_len=2**20,
            device=CPU_DEVICE,
        ).num_blocks
        return fitting, num_blocks

    # A block takes 16 KiB; one state more belongs to nobody.
    assert count(3, prefix_caching=False) == (3, 60 * 64)
    assert count(100, prefix_caching=False) == (31, 32 * 64)
    # A copy for each of them.
    assert count(3) == (3, 57 * 64)
    assert count(100) == (15, 33 * 64)


def test_the_advised_memory_is_enough() -> None:
    """Whatever number of sequences it then lets run."""

    def count(memory: str, state_bytes: int) -> int:
        config = CacheConfig(block_size=16, kv_cache_memory=memory)
        fitting = count_fitting_states(
            state_bytes, config, max_num_seqs=100, device=CPU_DEVICE
        )
        return count_fitting_blocks(
            1024,
            config,
            state_bytes=state_bytes,
            max_num_seqs=fitting,
            max_model_len=4096,
            device=CPU_DEVICE,
        ).num_blocks

    for state_bytes in (1000, 2**16, 2**20, 2**24):
        with pytest.raises(InvalidConfig) as caught:
            count("100KiB", state_bytes)
        advised = re.search(r"give (\d+[KMG]iB) or more", str(caught.value))
        assert advised is not None
        assert count(advised[1], state_bytes) >= 512 // 16


def test_the_preview_knows_that_kernels_run_states(tmp_path: Path) -> None:
    save_tiny_model("qwen3_5_text", tmp_path)
    preview = preview_model(tmp_path, ModelConfig(device="cpu"))
    assert preview.no_kernels is None
    assert preview.state_bytes


def test_the_outline_knows_the_states(tmp_path: Path) -> None:
    save_tiny_model("qwen3_5_text", tmp_path)
    outline = outline_model(tmp_path, CPU)
    assert outline is not None
    model = load_model(tmp_path, CPU, name="tiny")
    # A convolution over 4 inputs, for keys, queries and values; and 4 heads.
    expected = 4 * (4 * (2 * 16 + 48) + 4 * 8 * 12)
    assert outline.state_bytes == model.info.state_bytes == expected


def test_layers_with_states_are_not_split(tmp_path: Path) -> None:
    save_tiny_model("lfm2", tmp_path)
    place = StagePlace(stage=0, num_stages=1, shard=Shard(index=0, count=2))
    with pytest.raises(InvalidConfig, match="they keep states"):
        load_stage(tmp_path, CPU, name="tiny", place=place)
