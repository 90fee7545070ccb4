"""The kernels of experts, called with tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .adapted_pairs import PairBlocks, PairChanges, shrink
from .grouped import multiply_pairs, sum_pairs
from .matrices import Matrices
from .route import BLOCK_COLUMNS, group_pairs, route
from .widths import round_up

# Most pairs of a block, by the bytes of a number. Kernels are compiled for each. In float32
# there are no tensor cores, so threads keep whole rows and columns.
_ROWS = {2: (16, 64, 128), 4: (16, 32)}

# So few pairs are not grouped: experts that two of them share are read twice, the second time
# from the cache of the device. So are pairs that are few beside the experts.
_FEW_PAIRS = 16
_FEW_SHARE = 4

# Pairs that a program reads at a time, and numbers of a program of `sum_pairs`; usual choices.
_CHUNK = 1024
_SUM_BLOCK = 1024


class _Size(NamedTuple):
    """The size of a program of `multiply_pairs`.

    Attributes:
      columns: rows of weights, those of gates among them.
      inputs: that are read at a time.
      warps: of 32 threads, which share the program.
      stages: reads that are under way at once.
    """

    columns: int
    inputs: int
    warps: int
    stages: int


def _choose_size(rows: int, itemsize: int, *, is_plain: bool) -> _Size:
    """Return a size whose numbers stay in registers and in 99 kB of shared memory.

    tests/kernels/triton/test_compile.py checks it. The choice is not measured on a GPU yet.
    """
    if itemsize > 2:
        columns, inputs = (64, 32) if is_plain else (32, 64)
        return _Size(columns, inputs, 4 if rows <= 16 else 8, 2)
    if rows <= 16:
        return _Size(64, 64, 4, 4) if is_plain else _Size(64, 128, 4, 3)
    return _Size(128, 64, 4 if rows <= 64 else 8, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The experts of the tokens of a step.

    Attributes:
      experts: (num_tokens, num_chosen) int32; the number of experts is none
      weights: (num_tokens, num_chosen) float32
    """

    experts: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """The rule by which experts are chosen; see MixtureParts (description.py).

    Args:
      biases: (num_experts,) float32, of the scores; None if there are none
      choice_bias, expert_scales: float32
    """

    num_experts: int
    num_chosen: int
    renormalizes: bool
    num_groups: int
    num_chosen_groups: int
    num_ranked: int
    has_sigmoid: bool
    scale: float
    biases: Tensor | None
    choice_bias: Tensor | None
    expert_scales: Tensor | None

    def choose(self, scores: Tensor, slots: Tensor) -> Choices:
        """Choose the experts of tokens.

        Args:
          scores: (num_tokens, num_experts), contiguous
          slots: (num_tokens,) int64; a token with a negative one gets no experts
        """
        shape = len(scores), self.num_chosen
        choices = Choices(
            experts=torch.empty(shape, dtype=torch.int32, device=scores.device),
            weights=torch.empty(shape, dtype=torch.float32, device=scores.device),
        )
        route[len(scores),](
            scores,
            self.biases,
            self.choice_bias,
            self.expert_scales,
            slots,
            choices.experts,
            choices.weights,
            self.scale,
            NUM_EXPERTS=self.num_experts,
            NUM_CHOSEN=self.num_chosen,
            CHOSEN_WIDTH=round_up(self.num_chosen),
            NUM_GROUPS=self.num_groups,
            GROUPS_WIDTH=round_up(self.num_groups),
            MEMBERS_WIDTH=round_up(self.num_experts // self.num_groups),
            NUM_OPEN=self.num_chosen_groups,
            NUM_RANKED=self.num_ranked,
            HAS_SIGMOID=self.has_sigmoid,
            RENORMALIZES=self.renormalizes,
            HAS_BIASES=self.biases is not None,
            HAS_CHOICE_BIAS=self.choice_bias is not None,
            HAS_SCALES=self.expert_scales is not None,
        )
        return choices


# Of the first weights and of the second; None if no adapter changes them.
ExpertChanges = tuple[PairChanges | None, PairChanges | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The networks of all experts of a layer.

    Args:
      first: from hidden_size inputs to the gates' outputs, and then to those they weigh
      first_bias: (num_experts, outputs); None without biases
      second: from inner_size inputs to hidden_size outputs
      second_bias: (num_experts, hidden_size)
      has_gate: there are gates, so the first has 2 * inner_size outputs.
      activation: as in `multiply_pairs`.
      slope, limit: of clamped gates.
    """

    first: Matrices
    first_bias: Tensor | None
    second: Matrices
    second_bias: Tensor | None
    has_gate: bool
    activation: str
    slope: float
    limit: float

    def run(
        self,
        given: Tensor,
        choices: Choices,
        rows: int | None = None,
        changes: ExpertChanges = (None, None),
    ) -> Tensor:
        """Run the experts of each token, and weigh their outputs.

        Args:
          given: (num_tokens, hidden_size), contiguous
          rows: most pairs of a block; None finds a good number.
          changes: of the first weights and of the second, by adapters

        Returns:
          (num_tokens, num_chosen, hidden_size); nothing that means something for tokens
          without experts
        """
        blocks = self.group(choices, given.itemsize, rows)
        inner = self.run_part(given, choices, blocks, changes[0], is_first=True)
        return self.run_part(inner, choices, blocks, changes[1], is_first=False)

    def compile(self, dtype: torch.dtype, num_chosen: int) -> None:
        """Compile the kernels for all sizes of steps, so that no step waits for them.

        Args:
          dtype: of what the experts read.
          num_chosen: experts of a token.
        """
        device = self.first.codes.device
        choices = Choices(
            experts=torch.zeros((1, num_chosen), dtype=torch.int32, device=device),
            weights=torch.zeros((1, num_chosen), device=device),
        )
        given = torch.zeros((1, self.first.num_inputs), dtype=dtype, device=device)
        for rows in list_rows(dtype):
            self.run(given, choices, rows)

    def group(
        self, choices: Choices, itemsize: int, rows: int | None = None
    ) -> PairBlocks:
        """Cut the pairs of tokens and experts into blocks.

        Args:
          itemsize: bytes of a number of what the experts read.
          rows: as in `run`.
        """
        chosen, num_experts = choices.experts, self.first.num_experts
        num_pairs = chosen.numel()
        if rows is None:
            rows = _choose_rows(num_pairs, num_experts, itemsize)
        if rows == 1:
            return PairBlocks(None, chosen, rows)
        num_blocks = num_pairs // rows + num_experts
        blocks = chosen.new_empty((num_blocks, int(BLOCK_COLUMNS.value)))
        order = chosen.new_empty(num_pairs)
        group_pairs[num_experts,](
            chosen,
            order,
            blocks,
            num_pairs,
            num_blocks,
            NUM_EXPERTS=num_experts,
            ROWS=rows,
            CHUNK=_CHUNK,
        )
        return PairBlocks(order, blocks, rows)

    def run_part(
        self,
        given: Tensor,
        choices: Choices,
        blocks: PairBlocks,
        changes: PairChanges | None = None,
        *,
        is_first: bool,
    ) -> Tensor:
        """Run the first weights and the gates, or the second, and weigh their outputs.

        Args:
          given: what the weights read, contiguous
          blocks: of `group`.
          changes: of these weights, by adapters

        Returns:
          (num_tokens, num_chosen, outputs); see `run`
        """
        num_pairs, num_chosen = choices.experts.numel(), choices.experts.shape[1]
        if is_first:
            weights, biases, factors = self.first, self.first_bias, None
        else:
            weights, biases, factors = self.second, self.second_bias, choices.weights
        has_gate = self.has_gate and is_first
        num_sharing = num_chosen if is_first else 1
        parts = None
        if changes is not None:
            parts = shrink(given, blocks, changes, weights, num_pairs, num_sharing)
        num_outputs = weights.num_outputs // 2 if has_gate else weights.num_outputs
        output = given.new_empty((*choices.experts.shape, num_outputs))
        is_plain = weights.format == "plain"
        size = _choose_size(blocks.width, given.itemsize, is_plain=is_plain)
        outputs = size.columns // 2 if has_gate else size.columns
        num_blocks = blocks.num_blocks
        multiply_pairs[num_blocks * -(-num_outputs // outputs),](
            given,
            *(weights.codes, weights.scales, weights.zeros),
            biases,
            factors,
            blocks.order,
            blocks.blocks,
            output,
            None if changes is None else changes.table,
            None if changes is None else changes.slots,
            parts,
            0 if changes is None else changes.table.stride(0),
            num_pairs,
            0 if parts is None else parts.shape[2],
            0 if parts is None else len(parts),
            num_blocks,
            self.slope,
            self.limit,
            NUM_EXPERTS=weights.num_experts,
            NUM_INPUTS=weights.num_inputs,
            NUM_OUTPUTS=num_outputs,
            ROW_LENGTH=weights.codes.shape[2],
            NUM_GROUPS=1 if weights.scales is None else weights.scales.shape[1],
            FORMAT=weights.format,
            GROUP=weights.group,
            HAS_ZEROS=weights.zeros is not None,
            NUM_SHARING=num_sharing,
            # The same number without adapters, so that nothing is compiled twice.
            NUM_CHOSEN=1 if changes is None else num_chosen,
            ROWS=blocks.width,
            OUTPUTS=outputs,
            INPUTS=size.inputs,
            IS_GROUPED=blocks.order is not None,
            HAS_GATE=has_gate,
            HAS_BIASES=biases is not None,
            HAS_FACTORS=factors is not None,
            HAS_CHANGES=changes is not None,
            ACTIVATION=self.activation if is_first else "none",
            num_warps=size.warps,
            num_stages=size.stages,
        )
        return output


def list_rows(dtype: torch.dtype) -> tuple[int, ...]:
    """Return the most pairs of a block, for steps of all sizes; see `Experts.run`."""
    return 1, *_ROWS[dtype.itemsize]


def _choose_rows(num_pairs: int, num_experts: int, itemsize: int) -> int:
    """Return the most pairs of a block; 1 if pairs should not be grouped."""
    if num_pairs <= max(_FEW_PAIRS, num_experts // _FEW_SHARE):
        return 1
    each = num_pairs // num_experts
    sizes = _ROWS[itemsize]
    return next((rows for rows in sizes if each <= rows), sizes[-1])


def sum_outputs(
    parts: Tensor, shared: Tensor | None = None, gates: Tensor | None = None
) -> Tensor:
    """Add up the outputs of the experts of each token.

    Args:
      parts: (num_tokens, num_chosen, size), as Experts.run returns them
      shared: (num_tokens, size), of the expert of all tokens; None without one
      gates: (num_tokens, 1), whose sigmoids weigh it; None weighs nothing

    Returns:
      (num_tokens, size)
    """
    num_tokens, num_chosen, size = parts.shape
    output = parts.new_empty((num_tokens, size))
    block = min(_SUM_BLOCK, round_up(size))
    sum_pairs[num_tokens, -(-size // block)](
        parts,
        shared,
        gates,
        output,
        SIZE=size,
        NUM_CHOSEN=num_chosen,
        BLOCK=block,
        HAS_SHARED=shared is not None,
        HAS_GATES=gates is not None,
    )
    return output
