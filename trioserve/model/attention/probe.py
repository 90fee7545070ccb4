"""The shapes of a model's attention layers, found by watching one forward pass.

Configurations name heads and dimensions in a hundred ways. The calls of the attention
function name them in one way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .bridge import AttentionCall, AttentionContext

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The keys that a query sees.

    Args:
      is_causal, window, chunk, joins_images: as in LayerSpec.
    """

    is_causal: bool = True
    window: int | None = None
    chunk: int | None = None
    joins_images: bool = False

    @property
    def num_keys(self) -> int | None:
        """The most keys that a query sees; None if it may see all.

        A chunk counts as a window of the same length, which sees more.
        """
        counts = [each for each in (self.window, self.chunk) if each is not None]
        return min(counts) if counts and self.is_causal else None

    def first_key(self, query: int) -> int:
        """Return the position of the first key that a causal query sees."""
        first = 0 if self.window is None else max(0, query - self.window + 1)
        return first if self.chunk is None else max(first, query - query % self.chunk)

    def sees(self, queries: Tensor, keys: Tensor, ends: Tensor | None = None) -> Tensor:
        """Return whether queries see keys, for positions of shapes that broadcast.

        Args:
          ends: of the queries, as in StepInputs.key_ends.
        """
        if not self.is_causal:
            return (keys >= 0) & (queries >= 0)
        if self.joins_images and ends is not None:
            seen = keys < ends
        else:
            seen = keys <= queries
        if self.window is not None:
            # As in transformers' sliding_window_overlay, the query itself counts.
            seen = seen & (keys > queries - self.window)
        if self.chunk is not None:
            seen = seen & (keys // self.chunk == queries // self.chunk)
        return seen


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One call of attention in a forward pass.

    Args:
      module_name: the name of the calling module.
      is_causal: tokens see no later tokens.
      window: largest number of keys that a query sees; None is all.
      chunk: a query sees keys of its own chunk of so many tokens, counted from the start of
        the sequence; None is all.
      scaling, softcap, sinks: as in AttentionCall.
      values_in_keys: values are the first numbers of keys, so that they are kept once.
      shares: the place, among the calls, of the one whose keys and values it reads; None if
        it has its own. Only layers that have their own keep a cache.
      joins_images: the tokens of an image see each other; the window counts backwards alone.
    """

    module_name: str
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    is_causal: bool
    window: int | None
    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = field(default=None, compare=False)
    shares: int | None = None
    chunk: int | None = None
    values_in_keys: bool = False
    joins_images: bool = False

    @property
    def kept_dim(self) -> int:
        """The numbers that the cache keeps of a token and a head of keys."""
        return self.key_dim + (0 if self.values_in_keys else self.value_dim)

    @property
    def num_sides(self) -> int:
        """2 for keys and values that are kept apart, 1 for values within keys."""
        return 1 if self.values_in_keys else 2

    @property
    def reach(self) -> Reach:
        """The keys that its queries see."""
        return Reach(
            is_causal=self.is_causal,
            window=self.window,
            chunk=self.chunk,
            joins_images=self.joins_images,
        )

    @property
    def needs_scores(self) -> bool:
        """True if it changes scores, as fused operators cannot."""
        return self.softcap is not None or self.sinks is not None


class UnfitLayer(Exception):
    """Raised when a layer needs an attention that no backend here computes."""


class WrongSizes(UnfitLayer):
    """Raised when the sizes of a layer contradict each other."""


NO_INTERFACE = "its layers do not call transformers' attention interface"

# With one token, a dimension of tokens could not be told from one of a single head.
NUM_PROBE_TOKENS = 2


def probe_layers(
    model: PreTrainedModel,
    context: AttentionContext,
    run: Callable[[Tensor, Tensor], object] | None = None,
    find_reach: Callable[[Tensor, Reach], Reach | None] | None = None,
    *,
    has_others: bool = False,
) -> tuple[LayerSpec, ...]:
    """Return the model's calls of attention, in their order.

    Args:
      context: the model's.
      run: runs a forward pass in place of the model's own; it takes tokens and positions,
        (1, num_tokens) int64 both.
      find_reach: returns the keys that queries see by the model's own mask; None if
        another function has built the mask. Without it, all models that build masks are
        refused.
      has_others: there may be none, because layers keep something else.

    Raises:
      UnfitLayer: a layer's attention cannot be replaced; its message says why.
    """
    recorder = _Recorder(model, find_reach)
    tokens = torch.zeros((1, NUM_PROBE_TOKENS), dtype=torch.int64, device=model.device)
    positions = torch.arange(NUM_PROBE_TOKENS, device=model.device)[None]
    with torch.inference_mode(), context.use(recorder):
        if run is None:
            model(input_ids=tokens, position_ids=positions, use_cache=False)
        else:
            run(tokens, positions)
    if not recorder.layers and not has_others:
        raise UnfitLayer(NO_INTERFACE)
    return tuple(recorder.layers)


class _Recorder:
    """A StepAttention that records calls and returns zeros."""

    def __init__(
        self,
        model: nn.Module,
        find_reach: Callable[[Tensor, Reach], Reach | None] | None,
    ) -> None:
        self._read_mask = find_reach
        self._names = {module: name for name, module in model.named_modules()}
        self.layers: list[LayerSpec] = []
        # The tensors stay here, so that no later one can take their memory.
        self._seen: list[tuple[Tensor, Tensor]] = []

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        name = self._names[module]
        _check_call(name, query, key, value, call)
        reach = self._find_reach(name, call)
        shares = self._find_same(key, value)
        self._seen.append((key, value))
        self.layers.append(
            LayerSpec(
                module_name=name,
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                key_dim=key.shape[2],
                value_dim=value.shape[2],
                is_causal=reach.is_causal,
                window=reach.window,
                chunk=reach.chunk,
                scaling=call.scaling,
                softcap=call.softcap,
                sinks=call.sinks,
                shares=shares,
                values_in_keys=_is_start(value, key),
            )
        )
        return query.new_zeros((*query.shape[:2], value.shape[2]))

    def _find_reach(self, name: str, call: AttentionCall) -> Reach:
        """Return the keys that queries see: by the mask, as in transformers, if it has one."""
        told = Reach(is_causal=call.is_causal, window=call.window)
        if call.mask is None:
            return told
        reach = None if self._read_mask is None else self._read_mask(call.mask, told)
        if reach is None:
            raise UnfitLayer(f"{name} passes attention_mask to attention")
        return reach

    def _find_same(self, key: Tensor, value: Tensor) -> int | None:
        """Return the first call that had the same keys and values, in the same memory."""
        for i, (earlier_key, earlier_value) in enumerate(self._seen):
            if _is_same(key, earlier_key) and _is_same(value, earlier_value):
                return i
        return None


def _is_same(first: Tensor, second: Tensor) -> bool:
    # Without memory, on the `meta` device, each tensor still has a storage of its own.
    return (
        first.untyped_storage()._cdata == second.untyped_storage()._cdata
        and first.storage_offset() == second.storage_offset()
        and first.shape == second.shape
        and first.stride() == second.stride()
    )


def _is_start(value: Tensor, key: Tensor) -> bool:
    """Return whether values are the first numbers of keys, in the same memory."""
    return value.shape[2] <= key.shape[2] and _is_same(
        value, key[..., : value.shape[2]]
    )


def _check_call(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: AttentionCall,
) -> None:
    if call.unknown:
        raise UnfitLayer(f"{name} passes {', '.join(call.unknown)} to attention")
    if not len(query) == len(key) == len(value) == NUM_PROBE_TOKENS:
        raise UnfitLayer(f"{name} has keys of other tokens than its queries")
    if (
        key.shape[1] != value.shape[1]
        or query.shape[1] % key.shape[1]
        or query.shape[2] != key.shape[2]
    ):
        raise WrongSizes(f"{name} has queries, keys and values that do not match")
