"""Steps of random tokens, and the comparison of decoders that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.ids import BlockId
from ...types.plan import SlotStart, StepPlan, StepRow
from ...types.sampling import SamplingParams
from ..step.joined_images import JoinedImages
from ..step.layout import StepInputs, lay_out
from ..step.slots import SlotTables
from .compare import find_difference

# Few, because a server waits for them when it starts. The check needs this many positions
# even if the server allows only shorter sequences.
NUM_CHECKED = 12
_BLOCK_SIZE = 8

# The positions of tokens that see each other in models that join images.
CHECKED_IMAGE = ((2, 6),)

# Flat tokens whose logits are compared.
COMPARED_TOKENS = range(NUM_CHECKED - 4, NUM_CHECKED)

# The ends of the rows of two prompts, step by step, for a model with states: parts of prompts,
# and single tokens behind both. In float32 they are longer than transformers' chunks of 64
# tokens. Many CPUs have no products of 16 bits, so that these take minutes there. GPUs run 64
# tokens at a time, from the begin of a sequence; so one part ends in its third 64, and another one
# has just more than 64 tokens.
_ENDS_IN_FLOAT32 = [(40, 5), (71, 6), (72, 7), (73, 8), (74, 9)]
_ENDS_IN_16_BITS = [(12, 5), (17, 6), (18, 7)]
_ENDS_ON_GPU = [(40, 5), (150, 70), (151, 71), (152, 72)]
NUM_CHECKED_WITH_STATES = 152

# Standard deviation of the hidden states that a later stage of a pipeline reads in place
# of tokens: small beside what its layers add, and large beside the epsilon of a norm.
_DEVIATION = 0.1


def make_tables(
    prompts: Sequence[Sequence[int]], block_size: int, device: torch.device
) -> SlotTables:
    """Make tables whose first slots have these prompts, and no blocks yet."""
    tables = SlotTables(
        max_num_seqs=len(prompts),
        max_model_len=max(map(len, prompts)),
        block_size=block_size,
        device=device,
    )
    for slot, prompt in enumerate(prompts):
        tables.start(
            SlotStart(
                slot=slot,
                prompt_token_ids=tuple(prompt),
                output_token_ids=(),
                sampling=SamplingParams(),
                seed=0,
            )
        )
    return tables


def make_check(
    vocab_size: int,
    device: torch.device = torch.device("cpu"),
    *,
    joins_images: bool = False,
) -> tuple[SlotTables, StepInputs]:
    """Make a step of one prompt of random tokens.

    Args:
      joins_images: some of the tokens see each other.
    """
    chance = torch.Generator().manual_seed(0)
    token_ids = torch.randint(vocab_size, (NUM_CHECKED,), generator=chance).tolist()
    tables = make_tables([token_ids], _BLOCK_SIZE, device)
    row = StepRow(
        slot=0,
        start=0,
        num_tokens=NUM_CHECKED,
        new_block_ids=(BlockId(0), BlockId(1)),
        sample=True,
    )
    tables.append_blocks([row])
    plan = StepPlan(step_id=0, starts=(), rows=(row,))
    images = JoinedImages.at(CHECKED_IMAGE, 1) if joins_images else None
    return tables, lay_out(plan, tables, lambda rows: [0], device, images=images)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStep:
    """A step whose output is compared.

    Args:
      tokens: the flat tokens that are compared.
    """

    inputs: StepInputs
    tokens: Sequence[int]


def make_steps(
    vocab_size: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    has_states: bool,
    joins_images: bool,
) -> tuple[SlotTables, list[CheckedStep]]:
    """Make the steps in which a model is compared: one, or some of two prompts.

    Args:
      device, dtype: the model's.
      has_states: the model keeps states, which one step does not show.
      joins_images: the tokens of an image see each other.
    """
    if not has_states:
        tables, inputs = make_check(vocab_size, device, joins_images=joins_images)
        return tables, [CheckedStep(inputs=inputs, tokens=COMPARED_TOKENS)]
    chance = torch.Generator().manual_seed(0)
    shape = 2, NUM_CHECKED_WITH_STATES
    prompts = torch.randint(vocab_size, shape, generator=chance).tolist()
    tables = make_tables(prompts, _BLOCK_SIZE, device)
    steps, begins = [], (0, 0)
    for ends in _choose_ends(device, dtype):
        rows = _make_rows(tables, begins, ends)
        tables.append_blocks(rows)
        plan = StepPlan(step_id=0, starts=(), rows=rows)
        inputs = lay_out(plan, tables, lambda rows: [1, 0], device)
        steps.append(CheckedStep(inputs=inputs, tokens=inputs.last_tokens))
        begins = ends
    return tables, steps


def _choose_ends(device: torch.device, dtype: torch.dtype) -> list[tuple[int, int]]:
    if dtype == torch.float32:
        return _ENDS_IN_FLOAT32
    return _ENDS_IN_16_BITS if device.type == "cpu" else _ENDS_ON_GPU


def _make_rows(
    tables: SlotTables, begins: tuple[int, ...], ends: tuple[int, ...]
) -> tuple[StepRow, ...]:
    """Make a row for each slot, which gets all its blocks with its first one."""
    num_blocks = tables.block_ids.shape[1]
    return tuple(
        StepRow(
            slot=slot,
            start=begin,
            num_tokens=end - begin,
            new_block_ids=(
                ()
                if begin
                else tuple(BlockId(slot * num_blocks + i) for i in range(num_blocks))
            ),
            sample=True,
        )
        for slot, (begin, end) in enumerate(zip(begins, ends))
    )


def draw_hidden(inputs: StepInputs, width: int) -> Tensor:
    """Return noise in place of a step's hidden states, (num_tokens, width) float32."""
    chance = torch.Generator().manual_seed(1)
    num_tokens = inputs.input_ids.shape[1]
    noise = torch.randn((num_tokens, width), generator=chance)
    return _DEVIATION * noise.to(inputs.input_ids.device)


def compare_decoders(
    expected: Tensor,
    actual: Tensor,
    dtype: torch.dtype,
    *,
    int8: bool,
    rounds_scales: bool = False,
    int8_cache: bool = False,
    routes: bool = False,
    given: Tensor | None = None,
) -> str | None:
    """Return how the outputs of decoders differ; None if by rounding alone.

    Args:
      expected, actual: logits; or hidden states, if the layers read `given`.
      int8, rounds_scales, int8_cache, routes: as in find_difference.
    """
    expected, actual = expected.float(), actual.float()
    if given is not None:
        # Beside the vectors that came in, a mistake of the layers could be small.
        expected, actual = expected - given, actual - given
    # The same number added to all logits changes no answer.
    expected, actual = (
        each - each.mean(dim=-1, keepdim=True) for each in (expected, actual)
    )
    return find_difference(
        *(expected, actual, dtype),
        int8=int8,
        rounds_scales=rounds_scales,
        int8_cache=int8_cache,
        routes=routes,
    )
