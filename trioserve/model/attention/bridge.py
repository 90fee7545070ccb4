"""The one attention function that transformers' models call.

transformers builds the projections, the norms and the rest of every layer. Each layer
then calls attend_in_context, which registered.py registers. The function finds the
AttentionContext of the model in an attribute of the calling module, and there the
attention of the present step. Nothing but the registration itself is global to the
process, so two models, each with its own cache, live side by side.

No mask function is registered under the name, so transformers builds no masks
(`_preprocess_mask_arguments` in transformers/masking_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor, nn

from .latents import find_projection

_CONTEXT = "trioserve_attention"

# Arguments that models pass to attention and that do not change its result.
_INERT_ARGUMENTS = frozenset(
    {
        *("position_ids", "cache_position", "position_embeddings", "logits_to_keep"),
        # Chooses between two algorithms of flash attention in training.
        "deterministic",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The rules by which one layer turns its scores into weights.

    Args:
      scaling: factor of the scores.
      is_causal: a query sees no later key.
      window: largest number of keys that a query sees to one side, including its own key;
        None is all.
      softcap: scores become softcap * tanh(score / softcap).
      sinks: (num_heads,) one more score a head, which takes weight but has no value
      mask: the model's own mask. Backends do not read it; the probe finds its rule.
      unknown: names of arguments that no backend here supports.
    """

    scaling: float
    is_causal: bool = True
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    mask: Tensor | None = field(default=None, compare=False)
    unknown: tuple[str, ...] = field(default=(), compare=False)

    @property
    def needs_scores(self) -> bool:
        """True if it changes scores before the softmax, as fused operators cannot."""
        return self.softcap is not None or self.sinks is not None


class StepAttention(Protocol):
    """Computes attention in one forward pass; each layer calls it once."""

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        """Attend from flat queries.

        Args:
          module: the layer's attention module.
          query: (num_tokens, num_heads, key_dim)
          key: (num_tokens, num_kv_heads, key_dim)
          value: (num_tokens, num_kv_heads, value_dim)
          call: the rules by which scores become weights.

        Returns:
          (num_tokens, num_heads, value_dim)
        """
        ...


class AttentionContext:
    """The link from a model's modules to the attention of the present step."""

    def __init__(self, model: nn.Module) -> None:
        self._current: StepAttention | None = None
        for module in model.modules():
            setattr(module, _CONTEXT, self)

    @contextmanager
    def use(self, attention: StepAttention) -> Iterator[None]:
        """Send the model's calls of attention to `attention` inside the block."""
        assert self._current is None, "a model runs one forward pass at a time"
        self._current = attention
        try:
            yield
        finally:
            self._current = None

    @property
    def current(self) -> StepAttention:
        assert self._current is not None, "attention outside of use"
        return self._current


def find_context(module: nn.Module) -> AttentionContext:
    """Return the context of the model that a module belongs to."""
    context: AttentionContext = getattr(module, _CONTEXT)
    return context


def attend_in_context(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """The function that transformers calls in place of its own `sdpa`.

    Args:
      query: (1, num_heads, num_tokens, key_dim)
      key: (1, num_kv_heads, num_tokens, key_dim)
      value: (1, num_kv_heads, num_tokens, value_dim)

    Returns:
      (1, num_tokens, num_heads, value_dim), and no weights
    """
    call = AttentionCall(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        # As in transformers' sdpa_attention_forward, the argument overrides the module.
        is_causal=_is_causal_module(module) if is_causal is None else is_causal,
        window=sliding_window or None,
        softcap=softcap,
        sinks=s_aux,
        mask=attention_mask,
        unknown=_name_unknown(dropout, others),
    )
    projection = find_projection(module)
    if projection is not None:
        query = projection.absorb_queries(query)
    output = find_context(module).current.attend(
        module,
        query[0].transpose(0, 1),  # (num_tokens, num_heads, key_dim)
        key[0].transpose(0, 1),  # (num_tokens, num_kv_heads, key_dim)
        value[0].transpose(0, 1),  # (num_tokens, num_kv_heads, value_dim)
        call,
    )
    if projection is not None:
        output = projection.expand_outputs(output)
    return output.unsqueeze(0), None  # (1, num_tokens, num_heads, value_dim)


def _name_unknown(dropout: float, others: dict[str, object]) -> tuple[str, ...]:
    unknown = [
        name
        for name, value in others.items()
        if name not in _INERT_ARGUMENTS and not _says_nothing(value)
    ]
    if dropout:
        unknown.append("dropout")
    return tuple(unknown)


def _says_nothing(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.numel()
    return value is None or value is False


def _is_causal_module(module: nn.Module) -> bool:
    return getattr(module, "is_causal", True) is not False
