"""Compare a native decoder with the modules that it was made from."""

from __future__ import annotations

import torch
from torch import Tensor

from ....types.ids import BlockId
from ....types.plan import (
    SlotStart,
    StepPlan,
    StepRow,
)
from ....types.sampling import SamplingParams
from ...step.layout import (
    StepInputs,
    lay_out,
)
from ...step.slots import SlotTables

# Few, because a server waits for them when it starts. The check needs this many positions
# even if the server allows only shorter sequences.
NUM_CHECKED = 12
_BLOCK_SIZE = 8

# Flat tokens whose logits are compared.
COMPARED_TOKENS = range(NUM_CHECKED - 4, NUM_CHECKED)

# Standard deviation of the hidden states that a later stage of a pipeline reads in place
# of tokens: small beside what its layers add, and large beside the epsilon of a norm.
_DEVIATION = 0.1

# Relative distance of logits. Rounding gives 1e-6 in float32, and 0.005 to 0.02 in
# bfloat16, where the modules round after every operator. A wrong formula gives 0.1 or more.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 1e-2}
# Quantisation gives 0.02 to 0.07. The formula is the same as without.
INT8_TOLERANCE = 0.3


def make_check(
    vocab_size: int, device: torch.device = torch.device("cpu")
) -> tuple[SlotTables, StepInputs]:
    """Make a step of one prompt of random tokens."""
    chance = torch.Generator().manual_seed(0)
    token_ids = torch.randint(vocab_size, (NUM_CHECKED,), generator=chance).tolist()
    tables = SlotTables(
        max_num_seqs=1,
        max_model_len=NUM_CHECKED,
        block_size=_BLOCK_SIZE,
        device=device,
    )
    tables.start(
        SlotStart(
            slot=0,
            prompt_token_ids=tuple(token_ids),
            output_token_ids=(),
            sampling=SamplingParams(),
            seed=0,
        )
    )
    row = StepRow(
        slot=0,
        start=0,
        num_tokens=NUM_CHECKED,
        new_block_ids=(BlockId(0), BlockId(1)),
        sample=True,
    )
    tables.append_blocks([row])
    plan = StepPlan(step_id=0, starts=(), rows=(row,))
    return tables, lay_out(plan, tables, lambda rows: [0], device)


def draw_hidden(inputs: StepInputs, width: int) -> Tensor:
    """Return noise in place of a step's hidden states, (num_tokens, width) float32."""
    chance = torch.Generator().manual_seed(1)
    num_tokens = inputs.input_ids.shape[1]
    noise = torch.randn((num_tokens, width), generator=chance)
    return _DEVIATION * noise.to(inputs.input_ids.device)


def measure_distance(expected: Tensor, actual: Tensor) -> float:
    """Return the distance of outputs, relative to the size of those expected."""
    expected = expected.float()
    expected = expected - expected.mean(dim=-1, keepdim=True)
    actual = actual - actual.mean(dim=-1, keepdim=True)
    return float((actual - expected).norm() / expected.norm())


def is_close(distance: float, dtype: torch.dtype, *, int8: bool) -> bool:
    """Whether such a distance comes from rounding alone.

    Args:
      dtype: of the model.
      int8: the decoder has weights of eight bits.
    """
    # Not a number is no small distance.
    return distance <= (INT8_TOLERANCE if int8 else TOLERANCES[dtype])
