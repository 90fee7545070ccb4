"""Weights in fewer bits than 16: joined, multiplied by one kernel, or dequantised for cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
import logging
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ....kernels.triton.matrices import Matrices, hold, hold_stored
from ....kernels.triton.paged import count_cores
from ....kernels.triton.products import (
    DEQUANTISED_TOKENS,
    SIZES,
    multiply_stored,
    restore_stored,
)
from ....kernels.triton.round_inputs import (
    find_factors,
    multiply_rounded,
    round_tokens,
)
from ....kernels.triton.stored import NotStored, StoredWeights, join, quantise
from ...self_check.compare import describe_failure, find_difference
from ..choice import OutputDiffers
from ..stored_linear import find_stored

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Scratch:
    """Memory for the dequantised weights of one product at a time."""

    numbers: Tensor | None = None

    def lend(self, shape: tuple[int, int]) -> Tensor:
        assert self.numbers is not None, "LowBits.allocate was called"
        return self.numbers[: math.prod(shape)].view(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowBitWeight:
    """A Weight in fewer bits than 16.

    Args:
      has_bias: its product has one.
      factors: of multiply_rounded, by which inputs are rounded, too, in batches of all sizes:
        a token must have the same numbers alone and beside others. None leaves the inputs.
    """

    stored: StoredWeights
    has_bias: bool
    factors: Tensor | None = None
    dtype: torch.dtype
    scratch: _Scratch
    num_cores: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape

    @property
    def device(self) -> torch.device:
        return self.stored.codes.device

    def multiply(self, given: Tensor, bias: Tensor | None) -> Tensor:
        if len(given) < DEQUANTISED_TOKENS:
            if self.factors is not None:
                given = round_tokens(given, self.stored.group)
            return multiply_stored(given, self.stored, bias, self.num_cores)
        if self.factors is not None:
            return multiply_rounded(given, self.stored, self.factors, bias)
        weight = self.scratch.lend(self.shape)
        restore_stored(self.stored, weight)
        return linear(given, weight, bias)

    def read(self, outputs: Tensor) -> Tensor:
        taken = self.stored.take(outputs.to(self.device))
        return taken.restore(torch.float32).cpu()


@dataclass(slots=True)
class LowBits:
    """The weights of a decoder in fewer bits than 16.

    Args:
      dtype: of the model.
      format: to which plain weights are quantised; None leaves them.
    """

    dtype: torch.dtype
    format: str | None = None
    _scratch: _Scratch = field(default_factory=_Scratch)
    _made: list[LowBitWeight] = field(default_factory=list)
    # By the kinds and shapes of weights: can the device multiply them by rounded inputs?
    _rounds: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _experts: set[str] = field(default_factory=set)
    _num_dequantised: int = 0

    def join(
        self, modules: Sequence[nn.Linear], order: Tensor | None, *, quantises: bool
    ) -> LowBitWeight | None:
        """Join the weights of modules that read the same input.

        Args:
          order: of the outputs; None if they are in order.
          quantises: plain weights may be quantised.

        Returns:
          None if they are plain, or cannot be one matrix
        """
        try:
            parts = [self._find(module, quantises) for module in modules]
            joined = join(parts)
        except NotStored as error:
            if any(find_stored(module) is not None for module in modules):
                self._num_dequantised += 1
                logger.debug("a product is dequantised, because of %s", error)
            return None
        if order is not None:
            joined = joined.take(order.to(joined.codes.device))
        made = LowBitWeight(
            stored=joined,
            has_bias=any(module.bias is not None for module in modules),
            dtype=self.dtype,
            scratch=self._scratch,
            num_cores=count_cores(joined.codes.device),
        )
        made = self._round_inputs(made)
        self._made.append(made)
        return made

    def _round_inputs(self, weight: LowBitWeight) -> LowBitWeight:
        """Let the inputs of a product be rounded, if they may and the device can do it."""
        stored = weight.stored
        # Rounded numbers are exact in bfloat16, and with others exact inputs are wanted.
        if not stored.rounds_inputs or weight.dtype != torch.bfloat16:
            return weight
        rounding = replace(weight, factors=find_factors(stored))
        if rounding.factors is None:
            return weight
        kind = *stored.kind, weight.has_bias, *weight.shape
        if kind not in self._rounds:
            fault = _find_fault(rounding, (1, DEQUANTISED_TOKENS))
            self._rounds[kind] = fault is None
            if fault is not None:
                shape = " x ".join(map(str, weight.shape))
                reason = f"products with FP8 weights of {shape} keep their inputs: %s"
                logger.info(reason, fault)
        return rounding if self._rounds[kind] else weight

    def _find(self, module: nn.Linear, quantises: bool) -> StoredWeights:
        stored = find_stored(module)
        if stored is not None:
            return stored
        if self.format is None or not quantises:
            raise NotStored("plain weights")
        return quantise(module.weight.detach(), self.format)

    def hold_experts(
        self, weights: Tensor | StoredWeights, num_experts: int
    ) -> Matrices:
        """Return the weights of all experts as kernels read them.

        Args:
          weights: (num_experts, num_outputs, num_inputs), which may be quantised; or in fewer
            bits already, the experts one after the other.

        Raises:
          OutputDiffers: the kernels do not read their format.
        """
        if isinstance(weights, Tensor):
            if self.format is None:
                return hold(weights)
            # In float32, all of them would take gigabytes.
            weights = join([quantise(each, self.format) for each in weights])
        try:
            held = hold_stored(weights, num_experts)
        except NotStored as error:
            raise OutputDiffers(f"experts have {error}") from None
        self._experts.add(held.format)
        return held

    def describe(self) -> str:
        """Return the formats, for the log; empty without any."""
        formats = {each.stored.format for each in self._made}
        described = sorted(formats | self._experts)
        return ", ".join([*described, *["inputs in fp8"] * self.rounds_inputs])

    @property
    def rounds_inputs(self) -> bool:
        """True if the inputs of some products are rounded."""
        return any(each.factors is not None for each in self._made)

    def allocate(self) -> None:
        """Allocate the memory for the largest product, and try the kernels.

        This compiles them, too, so no step waits for a compiler.

        Raises:
          OutputDiffers: the kernels do not compute what they should.
        """
        if self._num_dequantised:
            logger.info(
                "%d products are dequantised: their modules differ in formats",
                self._num_dequantised,
            )
        if not self._made:
            return
        largest = max(math.prod(each.shape) for each in self._made)
        device = self._made[0].device
        self._scratch.numbers = torch.empty(largest, dtype=self.dtype, device=device)
        tried = set()
        for each in self._made:
            kind = each.stored.kind, each.has_bias
            if kind not in tried:
                tried.add(kind)
                fault = _find_fault(each, (*SIZES, DEQUANTISED_TOKENS))
                if fault is not None:
                    raise OutputDiffers(fault)


def _find_fault(weight: LowBitWeight, sizes: Sequence[int]) -> str | None:
    """Compare the kernels with dequantised weights, which multiply exact inputs.

    Args:
      sizes: numbers of tokens.

    Returns:
      a sentence; None if they differ by rounding alone
    """
    chance = torch.Generator().manual_seed(0)
    shape = DEQUANTISED_TOKENS, weight.shape[1]
    given = torch.randn(shape, generator=chance).to(weight.device, weight.dtype)
    bias = given.new_zeros(weight.shape[0]) if weight.has_bias else None
    try:
        plain = weight.stored.restore(weight.dtype)
        for num_tokens in sizes:
            own = given[:num_tokens]
            fault = find_difference(linear(own, plain), weight.multiply(own, bias))
            if fault is not None:
                return fault
    except Exception as error:
        return describe_failure(error)
    return None
