"""Weights as our kernels multiply them, or cuBLAS: in 16 bits, and in fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
import logging
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from ....kernels.stored import NotStored, StoredWeights, join
from ....kernels.triton.matrices import Matrices, hold_stored
from ....kernels.triton.paged import count_cores
from ....kernels.triton.products import (
    DEQUANTISED_TOKENS,
    FEW_TOKENS,
    SIZES,
    Gates,
    Splits,
    can_multiply,
    make_splits,
    multiply_plain,
    multiply_stored,
    restore_stored,
)
from ....kernels.triton.round_inputs import (
    ROUNDED_TOKENS,
    find_factors,
    multiply_rounded,
    round_tokens,
)
from ...self_check.compare import describe_failure, find_difference
from ..choice import OutputDiffers
from ..stored_weights import find_stored
from .products import PlainWeight

logger = logging.getLogger(__name__)

# Of float8_e4m3fn.
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


@dataclass(slots=True)
class _Shared:
    """What the products of a decoder share.

    Args:
      numbers: memory for the dequantised weights of one product at a time.
      rounds: inputs are rounded to eight bits, where weights say so.
    """

    numbers: Tensor | None = None
    rounds: bool = False

    def lend(self, shape: tuple[int, int]) -> Tensor:
        assert self.numbers is not None, "LowBits.allocate was called"
        return self.numbers[: math.prod(shape)].view(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LowBitWeight:
    """A Weight in fewer bits than 16.

    Args:
      has_bias: its product has one.
      factors: of multiply_rounded, by which inputs are rounded, too, once they are in `shared`,
        in batches of all sizes: a token must have the same numbers alone and beside others. None
        leaves the inputs.
    """

    stored: StoredWeights
    has_bias: bool
    factors: Tensor | None = None
    dtype: torch.dtype
    shared: _Shared
    splits: Splits

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape

    @property
    def device(self) -> torch.device:
        return self.stored.codes.device

    def multiply(self, given: Tensor, bias: Tensor | None) -> Tensor:
        if self._are_few(given):
            return self._multiply_few(given, bias, None)
        if self._rounds:
            assert self.factors is not None, "it rounds by them"
            return multiply_rounded(given, self.stored, self.factors, bias)
        weight = self.shared.lend(self.shape)
        restore_stored(self.stored, weight)
        return linear(given, weight, bias)

    def weigh(
        self, given: Tensor, bias: Tensor | None, activation: str, scale: float
    ) -> Tensor | None:
        if not self._are_few(given):
            return None
        return self._multiply_few(given, bias, Gates(activation, scale))

    def _are_few(self, given: Tensor) -> bool:
        return len(given) < (ROUNDED_TOKENS if self._rounds else DEQUANTISED_TOKENS)

    @property
    def _rounds(self) -> bool:
        return self.factors is not None and self.shared.rounds

    def _multiply_few(
        self, given: Tensor, bias: Tensor | None, gates: Gates | None
    ) -> Tensor:
        if self._rounds:
            given = round_tokens(given, self.stored.group)
        return multiply_stored(given, self.stored, bias, self.splits, gates)

    def read(self, outputs: Tensor) -> Tensor:
        taken = self.stored.take(outputs.to(self.device))
        return taken.restore(torch.float32).cpu()


@dataclass(frozen=True, slots=True)
class _FollowingWeight(PlainWeight):
    """A PlainWeight that is read before the kernels in front of it end, for few tokens."""

    splits: Splits

    def multiply(self, given: Tensor, bias: Tensor | None) -> Tensor:
        if len(given) > FEW_TOKENS:
            return linear(given, self.numbers, bias)
        return multiply_plain(given, self.numbers, bias, self.splits)

    def weigh(
        self, given: Tensor, bias: Tensor | None, activation: str, scale: float
    ) -> Tensor | None:
        if len(given) > FEW_TOKENS:
            return None
        gates = Gates(activation, scale)
        return multiply_plain(given, self.numbers, bias, self.splits, gates)


@dataclass(slots=True)
class LowBits:
    """The weights of a decoder.

    Args:
      dtype: of the model.
    """

    dtype: torch.dtype
    _shared: _Shared = field(default_factory=_Shared)
    _made: list[LowBitWeight] = field(default_factory=list)
    # By the kinds and shapes of weights: can the device multiply them by rounded inputs?
    _rounds: dict[tuple[object, ...], bool] = field(default_factory=dict)
    _experts: set[str] = field(default_factory=set)
    _num_dequantised: int = 0
    # Can the device multiply plain weights by our kernel? None before it was tried.
    _follows: bool | None = None

    def join(
        self, modules: Sequence[nn.Linear], order: Tensor | None
    ) -> LowBitWeight | None:
        """Join the weights of modules that read the same input.

        Args:
          order: of the outputs; None if they are in order.

        Returns:
          None if they are plain, or cannot be one matrix
        """
        try:
            parts = [self._find(module) for module in modules]
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
            shared=self._shared,
            splits=_make_splits(joined.codes),
        )
        made = self._round_inputs(made)
        self._made.append(made)
        return made

    def hold(self, numbers: Tensor) -> PlainWeight:
        """Return the weight of a product whose numbers are plain."""
        if not can_multiply(numbers):
            return PlainWeight(numbers)
        weight = _FollowingWeight(numbers, _make_splits(numbers))
        if self._follows is None:
            fault = _find_plain_fault(weight)
            self._follows = fault is None
            if fault is not None:
                logger.warning("cuBLAS multiplies few tokens, too: %s", fault)
        return weight if self._follows else PlainWeight(numbers)

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
            tried = replace(rounding, shared=_Shared(rounds=True))
            fault = _find_fault(tried, (1, ROUNDED_TOKENS))
            self._rounds[kind] = fault is None
            if fault is not None:
                shape = " x ".join(map(str, weight.shape))
                reason = f"products with FP8 weights of {shape} keep their inputs: %s"
                logger.info(reason, fault)
        return rounding if self._rounds[kind] else weight

    def _find(self, module: nn.Linear) -> StoredWeights:
        stored = find_stored(module)
        if stored is None:
            raise NotStored("plain weights")
        return stored

    def hold_experts(self, weights: StoredWeights, num_experts: int) -> Matrices:
        """Return the weights of all experts as kernels read them.

        Args:
          weights: the experts one after the other.

        Raises:
          OutputDiffers: the kernels do not read their format.
        """
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
        if any(each.factors is not None for each in self._made):
            described.append("inputs in fp8")
        return ", ".join(described)

    def round_inputs(self) -> None:
        """Round the inputs of products from now on, where weights say so."""
        self._shared.rounds = True

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
        self._shared.numbers = torch.empty(largest, dtype=self.dtype, device=device)
        tried = set()
        for each in self._made:
            kind = each.stored.kind, each.has_bias, each.shape
            if kind not in tried:
                tried.add(kind)
                fault = _find_fault(each, (*SIZES, DEQUANTISED_TOKENS))
                if fault is not None:
                    raise OutputDiffers(fault)


def _make_splits(weights: Tensor) -> Splits:
    return make_splits(len(weights), count_cores(weights.device), weights.device)


def _find_plain_fault(weight: _FollowingWeight) -> str | None:
    """Compare our kernel with torch's product; see _find_fault."""
    generator = torch.Generator().manual_seed(0)
    given = torch.randn((FEW_TOKENS, weight.shape[1]), generator=generator)
    given = given.to(weight.device, weight.dtype)
    try:
        expected = linear(given, weight.numbers)
        return find_difference(expected, weight.multiply(given, None))
    except Exception as error:
        return describe_failure(error)


def _find_fault(weight: LowBitWeight, sizes: Sequence[int]) -> str | None:
    """Compare the kernels with dequantised weights, which multiply the same inputs by torch.

    Args:
      sizes: numbers of tokens.

    Returns:
      a sentence; None if they differ by rounding alone
    """
    chance = torch.Generator().manual_seed(0)
    shape = DEQUANTISED_TOKENS, weight.shape[1]
    given = torch.randn(shape, generator=chance)
    # Tokens of other sizes have other scales.
    given *= 0.5 + torch.rand(len(given), 1, generator=chance)
    given = given.to(weight.device, weight.dtype)
    bias = None
    if weight.has_bias:
        bias = torch.randn(weight.shape[0], generator=chance).to(given)
    rounds = weight.shared.rounds
    try:
        plain = weight.stored.restore(weight.dtype)
        meant = _round_by_torch(given, weight.stored.group) if rounds else given
        for num_tokens in sizes:
            expected = linear(meant[:num_tokens], plain, bias)
            actual = weight.multiply(given[:num_tokens], bias)
            fault = find_difference(
                expected, actual, rounds_inputs=rounds, dim=1 if rounds else None
            )
            if fault is not None:
                return fault
    except Exception as error:
        return describe_failure(error)
    return None


def _round_by_torch(given: Tensor, group: int) -> Tensor:
    """Round tokens to eight bits, as round_tokens (round_inputs.py) should."""
    num_inputs = given.shape[1]
    size = group or num_inputs
    groups = pad(given.float(), (0, -num_inputs % size)).unflatten(1, (-1, size))
    scales = (groups.abs().amax(2, keepdim=True) / _LARGEST).clamp_min(1e-12)
    rounded: Tensor = (groups / scales).to(torch.float8_e4m3fn).float() * scales
    rounded = rounded.flatten(1)[:, :num_inputs]
    return rounded.to(given.dtype)
