"""The formula of attention, found by running its module without its products.

The products give numbers of chance. What the module makes of them is compared with what the
kernels make of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.bridge import AttentionCall, find_context
from ..choice import NotRecognised
from ..description import AttentionParts
from .given import Angles, replace_method

_NUM_TOKENS = 8

# What is compared, in this order.
_COMPARED = "queries", "keys", "values", "its output"


def find_rotation(
    attention: nn.Module, found: AttentionParts, angles: Angles, factor: float
) -> AttentionParts:
    """Return the parts of attention, with the pairs that it rotates half a head apart.

    Args:
      found: its parts, as if they lay so.
      angles: what it is given.
      factor: of what it reads.

    Raises:
      NotRecognised: it computes something else.
    """
    trial = _Trial(attention, found, angles, factor)
    problems = []
    for variant, head in _list_variants(found):
        problem = trial.find_problem(variant, head)
        if problem is None:
            return variant
        problems.append(problem)
    furthest = max(problems, key=_COMPARED.index)
    raise NotRecognised(
        f"{type(attention).__name__} computes {furthest} by another formula"
    )


def _list_variants(found: AttentionParts) -> Iterator[tuple[AttentionParts, Tensor]]:
    """Return parts of which one computes the same as the module.

    Returns:
      parts, and the places of their numbers in a head of the module, (key_dim,) int64
    """
    head = torch.arange(found.call.key_dim)
    yield found, head
    rotary_dim = found.cos.shape[1]
    if not rotary_dim:
        return
    nothing = found.cos[:, :0]
    yield replace(found, cos=nothing, sin=nothing), head
    if 2 * rotary_dim <= found.call.key_dim:
        # One number for a pair, as gpt-oss has it.
        cos, sin = found.cos.repeat(1, 2), found.sin.repeat(1, 2)
        yield replace(found, cos=cos, sin=sin), head
    # Values that are keys would be in another order, too.
    if not found.keys_are_values:
        pairs = head[:rotary_dim].view(-1, 2).T.flatten()
        head = torch.cat((pairs, head[rotary_dim:]))
        yield _put_in_order(found, head), head


def _put_in_order(found: AttentionParts, head: Tensor) -> AttentionParts:
    """Put the numbers of each head of queries and keys in another order.

    Factors need none: all queries, and all keys, have the same one.
    """
    call = found.call
    num_heads = call.num_heads + (0 if call.shares is not None else call.num_kv_heads)
    places = torch.arange(_count_outputs(found))
    heads = places[: num_heads * call.key_dim].view(num_heads, -1)[:, head]
    places = torch.cat((heads.flatten(), places[heads.numel() :]))
    query_norm, key_norm = (
        None if each is None else each[head.to(each.device)]
        for each in (found.query_norm, found.key_norm)
    )
    return replace(
        found,
        order=places if found.order is None else found.order[places],
        query_norm=query_norm,
        key_norm=key_norm,
    )


class _Trial:
    """What a module of attention computes of some numbers.

    Args:
      attention, found, angles, factor: as in find_rotation.
    """

    def __init__(
        self, attention: nn.Module, found: AttentionParts, angles: Angles, factor: float
    ) -> None:
        chance = torch.Generator().manual_seed(0)
        device = found.cos.device
        call = found.call
        sizes = _count_outputs(found), call.num_heads * call.value_dim
        self._outputs, self._attended = (
            torch.randn((_NUM_TOKENS, size), generator=chance).to(device)
            for size in sizes
        )
        self._factor = factor
        places = torch.linspace(0, len(found.cos) - 1, _NUM_TOKENS, device=device)
        self._places = places.long()
        with torch.inference_mode():
            self._run(attention, found, angles)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        """Keep what attention reads, and return numbers of chance."""
        self._read = query.float(), key.float(), value.float()
        return self._attended.view(len(query), *query.shape[1:2], -1)

    def _run(self, attention: nn.Module, found: AttentionParts, angles: Angles) -> None:
        cos, sin = (each[self._places][None] for each in angles[:2])
        given: Any = (cos, sin)
        if angles.are_complex:
            given = torch.complex(cos, sin)[..., : cos.shape[2] // 2]
        elif not cos.shape[2]:
            given = None
        call = found.call
        kept = [
            cos.new_zeros(1, call.num_kv_heads, _NUM_TOKENS, dim)
            for dim in (call.key_dim, call.value_dim)
        ]
        read: list[Tensor] = []

        def finish(states: Tensor) -> None:
            read.append(states)
            # Behind it, processes that share a layer would add up their parts.
            raise _Finished

        outputs = self._outputs.split([each.out_features for each in found.inputs], 1)
        hidden = self._outputs.new_zeros(1, _NUM_TOKENS, found.inputs[0].in_features)
        with ExitStack() as stack:
            for product, output in zip(found.inputs, outputs):
                give = partial(_give, output[None])
                stack.enter_context(replace_method(product, "forward", give))
            stack.enter_context(replace_method(found.output, "forward", finish))
            stack.enter_context(find_context(attention).use(self))
            stack.enter_context(suppress(_Finished))
            attention(
                hidden_states=hidden,
                position_embeddings=given,
                attention_mask=None,
                position_ids=self._places[None],
                # Gemma 4's, by kinds of layers.
                shared_kv_states=defaultdict(lambda: kept),
            )
        self._output = read[0][0].float()

    def find_problem(self, parts: AttentionParts, head: Tensor) -> str | None:
        """Return what the kernels would compute otherwise; see _list_variants."""
        query, key, value = self._read
        actual = query[..., head], key[..., head], value, self._output
        pairs = zip(_COMPARED, self._compute(parts), actual)
        return next((name for name, *pair in pairs if not _is_close(*pair)), None)

    def _compute(self, parts: AttentionParts) -> Iterator[Tensor]:
        """Compute the tensors of _COMPARED as the kernels do."""
        call, outputs = parts.call, self._outputs
        if parts.order is not None:
            outputs = outputs[:, parts.order.to(outputs.device)]
        if parts.inputs_scale is not None:
            outputs = outputs * parts.inputs_scale.to(outputs.device) / self._factor
        num_queries = call.num_heads * call.key_dim
        queries, rest = outputs[:, :num_queries], outputs[:, num_queries:]
        yield _rotate(queries, parts.query_norm, parts, self._places)
        if call.shares is None:
            num_keys = call.num_kv_heads * call.key_dim
            yield _rotate(rest[:, :num_keys], parts.key_norm, parts, self._places)
            rest = rest if parts.keys_are_values else rest[:, num_keys:]
            num_values = call.num_kv_heads * call.value_dim
            values, rest = rest[:, :num_values], rest[:, num_values:]
            heads = values.reshape(_NUM_TOKENS, -1, call.value_dim)
            yield _normalize(heads, parts.value_norm)
        else:
            yield from self._read[1:]
        yield self._attended * rest.sigmoid() if parts.has_gate else self._attended


class _Finished(Exception):
    """Raised in place of the last product."""


def _give(output: Tensor, states: Tensor) -> Tensor:
    return output


def _count_outputs(found: AttentionParts) -> int:
    return sum(product.out_features for product in found.inputs)


def _rotate(
    states: Tensor, norm: Tensor | None, parts: AttentionParts, places: Tensor
) -> Tensor:
    """Return (num_tokens, num_heads, key_dim), normalized and rotated as the kernels do."""
    heads = _normalize(states.reshape(len(states), -1, parts.call.key_dim), norm)
    cos, sin = (each[places][:, None] for each in (parts.cos, parts.sin))
    rotated, others = heads.split([cos.shape[2], heads.shape[2] - cos.shape[2]], dim=2)
    first, second = rotated.chunk(2, dim=2)
    turned = rotated * cos + torch.cat((-second, first), dim=2) * sin
    return torch.cat((turned, others), dim=2)


def _normalize(heads: Tensor, norm: Tensor | None) -> Tensor:
    return heads if norm is None else functional.rms_norm(heads, norm.shape, norm)


def _is_close(expected: Tensor, actual: Tensor) -> bool:
    return torch.allclose(expected, actual.view(expected.shape), rtol=1e-2, atol=1e-2)
