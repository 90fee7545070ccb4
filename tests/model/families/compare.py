"""Run a tiny model of any type, and compare it with transformers' generate()."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trioserve.config import ModelConfig
from trioserve.errors import StartupError
from trioserve.model.loading.files.positions import count_positions
from trioserve.model.loading.load import load_model
from trioserve.model.loading.outline import outline_model
from trioserve.model.runner import ModelRunner
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams
from trioserve.types.windows import count_window_blocks

from ..planning import Planner, make_prompt, run_steps
from .tiny import make_tiny

# Shorter than a window, longer than a chunk of linear attention, longer than all borders.
_LENGTHS = (5, 70, 300)
_NUM_TOKENS = 10
_BLOCK_SIZE = 16
_MAX_WEIGHTS = 15_000_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result for one type.

    Args:
      result: equal, refused, unequal or not buildable.
      detail: the kernels, or the reason.
    """

    result: str
    detail: str


def list_types() -> list[str]:
    """Return the types of transformers' models that write text, in alphabetical order."""
    # The mapping itself would import them all. One type is another name of gpt2.
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - {"gpt-sw3"})


def compare(model_type: str, folder: Path) -> Row:
    """Build a tiny model, and compare its answers in all ways of running it.

    Args:
      folder: gets the model's files.
    """
    try:
        config = make_tiny(CONFIG_MAPPING[model_type])
        model = build(config)
        prompts = [make_prompt(length, length) for length in _LENGTHS]
        expected = [_generate(model, prompt) for prompt in prompts]
    except Exception as error:
        return Row(result="not buildable", detail=_shorten(error))
    problem = _find_sameness(expected)
    model.save_pretrained(folder)
    options: dict[str, Any] = {"device": "cpu"}
    if count_positions(config) is None:
        options["max_model_len"] = 400
    try:
        outline_model(folder, ModelConfig(**options))
    except StartupError as error:
        return Row(result="refused", detail=_get_reason(error))
    try:
        loaded = load_model(folder, ModelConfig(**options), name=model_type)
    except StartupError as error:
        reason = f"{_get_reason(error)} (found with its weights)"
        return Row(result="refused", detail=reason)
    kinds = [loaded]
    if loaded.native is not None:
        options["kernels"] = "torch"
        kinds.append(load_model(folder, ModelConfig(**options), name=model_type))
    for each in kinds:
        try:
            wrong = _find_wrong(each, prompts, expected)
        except Exception as error:
            wrong = f"fails: {_shorten(error)}"
        if wrong:
            return Row(result="unequal", detail=f"{each.info.kernels}: {wrong}")
    if problem:
        return Row(result="not buildable", detail=problem)
    return Row(result="equal", detail="torch" if loaded.native is None else "native")


def find_class(config: PreTrainedConfig) -> Any:
    """Return transformers' class of a model that writes text."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


@torch.no_grad()
def build(config: PreTrainedConfig) -> PreTrainedModel:
    """Build a model whose random weights make answers that depend on the prompt."""
    model_class = find_class(config)
    if model_class.config_class is not type(config) and config.sub_configs:
        # The class is of the text part alone.
        config = config.get_text_config()
    with torch.device("meta"):
        num_weights = model_class(config).num_parameters()
    if num_weights > _MAX_WEIGHTS:
        raise ValueError(f"it is not tiny: {num_weights} weights")
    torch.manual_seed(0)
    model: PreTrainedModel = model_class._from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    chance = torch.Generator().manual_seed(1)
    embedding = model.get_input_embeddings().weight
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=chance)
        if parameter is embedding:
            parameter.copy_(noise)
        elif parameter.dim() >= 2:
            parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
        else:
            parameter.add_(0.1 * noise)
    return model.eval()


def _generate(model: Any, prompt: Sequence[int]) -> list[int]:
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=_NUM_TOKENS,
        eos_token_id=None,
        forced_eos_token_id=None,
        pad_token_id=0,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids


def _find_sameness(answers: Sequence[Sequence[int]]) -> str | None:
    """Return why answers prove nothing; None if they depend on the prompts."""
    if len({tuple(answer) for answer in answers}) < len(answers):
        return f"its answers do not depend on the prompt: {answers}"
    if sum(len(set(answer)) < 2 for answer in answers) > 1:
        return f"its answers repeat themselves: {answers}"
    return None


def _find_wrong(
    model: LoadedModel, prompts: list[list[int]], expected: list[list[int]]
) -> str | None:
    """Return the way of running a model that gives other answers than generate()."""

    def plan() -> Planner:
        return Planner(model, num_blocks=100, block_size=_BLOCK_SIZE, max_model_len=400)

    def check(sequences: Any, wanted: list[list[int]] = expected) -> bool:
        return [sequence.outputs for sequence in sequences] == wanted

    planner = plan()
    alone = planner.begin(prompts[0])
    planner.run(alone, num_tokens=_NUM_TOKENS)
    if not check([alone], expected[:1]):
        return f"alone: {alone.outputs} != {expected[0]}"
    planner = plan()
    batch = [planner.begin(p, slot=i) for i, p in enumerate(prompts)]
    planner.run(*batch, num_tokens=_NUM_TOKENS, chunk=17)
    if not check(batch):
        return "in chunks"
    planner = plan()
    batch = [planner.begin(p, slot=i) for i, p in enumerate(prompts)]
    planner.run(*batch, num_tokens=4)
    planner.preempt(batch[1], slot=5)
    planner.run(batch[0], batch[2], num_tokens=6)
    planner.run(*batch, num_tokens=_NUM_TOKENS, chunk=33)
    if not check(batch):
        return "after a preemption"
    if model.states or model.info.windows is not None:
        twice = _answer_twice(model, prompts[-1])
        return None if twice == [expected[-1]] * 2 else "with a prefix hit"
    planner = plan()
    first = planner.begin(prompts[-1], slot=0)
    planner.run(first, num_tokens=2)
    # All full blocks but the last.
    second = planner.begin(prompts[-1], slot=1, shared=first.block_ids[:17])
    planner.run(first, second, num_tokens=_NUM_TOKENS)
    return None if check([first, second], [expected[-1]] * 2) else "with a prefix hit"


def _answer_twice(model: LoadedModel, prompt: Sequence[int]) -> list[list[int]]:
    """Answer a prompt, and again from a copy of its states and behind its window."""
    sizes = {"num_blocks": 100, "block_size": _BLOCK_SIZE, "max_num_seqs": 2}
    sizes |= {"max_model_len": 400}
    if model.states:
        sizes["num_checkpoints"] = 2
    window = None
    if model.info.windows is not None:
        window = model.info.windows.window
        # A window and a chunk, which are given back and taken again.
        sizes["num_window_blocks"] = count_window_blocks(window, 64, _BLOCK_SIZE)
    scheduler = Scheduler(**sizes, max_num_batched_tokens=64, window=window)
    runner = ModelRunner(model, **sizes)
    answers: list[list[int]] = [[], []]
    for number, answer in enumerate(answers):
        sequence = Scheduled(
            sequence_id=SequenceId(number),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(temperature=0.0, max_tokens=_NUM_TOKENS),
            seed=0,
            arrival=number,
        )
        scheduler.add(sequence)
        for delta in run_steps(scheduler, runner.launch, depth=1):
            answer += delta.token_ids
    assert scheduler.counters().num_prefix_hit_tokens, "its prefix is found"
    return answers


def _get_reason(error: StartupError) -> str:
    return str(error).partition("is not supported: ")[2] or str(error)


def _shorten(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:160]}".replace("\n", " ")
