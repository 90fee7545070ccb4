"""The keys that queries see, read from the functions by which transformers would build masks.

transformers builds no masks for trioserve's attention. So a model whose layers pass no
window, because the mask has it, would see all keys, and answer worse without an error.
While a model is probed, transformers is given a function that builds no mask either, but
keeps the rule for it. The rule is a function of two positions, so it can be asked about
positions beyond every window, however few tokens the probe has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
import threading
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionMaskInterface, PreTrainedModel, masking_utils

from .bridge import AttentionContext
from .probe import LayerSpec, Reach, UnfitLayer, probe_layers
from .registered import IMPLEMENTATION

# transformers' masks see a key if rule(batch, head, query, key) is true.
_Rule = Callable[[int, int, Tensor, Tensor], Tensor]

# Positions that rules are asked about: more than the longest window of a model.
_NUM_POSITIONS = 2**20


def probe_decoder(
    model: PreTrainedModel,
    context: AttentionContext,
    run: Callable[[Tensor, Tensor], object] | None = None,
    *,
    has_others: bool = False,
) -> tuple[LayerSpec, ...]:
    """Return a decoder's calls of attention, with the reach of its masks; as probe_layers."""
    with _recording_masks() as rules:
        return probe_layers(model, context, run, rules.find, has_others=has_others)


class _MaskRules:
    """The rules of the masks that a model would have built."""

    def __init__(self) -> None:
        self._rules: list[tuple[_Rule, torch.device]] = []
        self._reaches: dict[int, Reach] = {}

    def make_mark(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        mask_function: _Rule,
        device: torch.device,
        **others: object,
    ) -> Tensor:
        """Keep a rule; return a mark in place of a mask.

        The mark has the rule's number everywhere, because some models cut their masks.
        """
        self._rules.append((mask_function, device))
        number = float(len(self._rules) - 1)
        return torch.full((batch_size, 1, q_length, kv_length), number, device="cpu")

    def find(self, mark: Tensor, unread: Reach) -> Reach | None:
        """Return the reach of a mask; None if another function has built it.

        Args:
          unread: the result if the rule has tensors on the device `meta`, without numbers.

        Raises:
          UnfitLayer: no backend here knows the rule.
        """
        if mark.device.type != "cpu" or not mark.numel():
            return None
        number = int(mark.flatten()[0])
        if number not in range(len(self._rules)) or (mark != number).any():
            return None
        if number not in self._reaches:
            rule, device = self._rules[number]
            try:
                self._reaches[number] = read_rule(rule)
            except UnfitLayer:
                raise
            except Exception as error:
                # Rules of chunks hold such a tensor. They are read again with the weights.
                if device.type == "meta":
                    return unread
                raise UnfitLayer("the rule of its mask cannot be read") from error
        return self._reaches[number]


@contextmanager
def _recording_masks() -> Iterator[_MaskRules]:
    """Keep the rules of masks that this thread's models build inside the block."""
    rules = _MaskRules()
    with _replacing_functions():
        _here.rules = rules
        try:
            yield rules
        finally:
            del _here.rules


# The rules that a thread records.
_here = threading.local()


def _make_mark(*arguments: Any, **named: Any) -> Tensor | None:
    rules: _MaskRules | None = getattr(_here, "rules", None)
    return None if rules is None else rules.make_mark(*arguments, **named)


_lock = threading.Lock()
_num_blocks = 0
_replaced: dict[str, Any] = {}


@contextmanager
def _replacing_functions() -> Iterator[None]:
    """Replace functions of transformers inside the block; several threads may be inside."""
    global _num_blocks
    with _lock:
        _num_blocks += 1
        if _num_blocks == 1:
            AttentionMaskInterface.register(IMPLEMENTATION, _make_mark)
            for name, function in _OF_ONE_TEXT.items():
                _replaced[name] = getattr(masking_utils, name)
                setattr(masking_utils, name, function)
    try:
        yield
    finally:
        with _lock:
            _num_blocks -= 1
            if not _num_blocks:
                del AttentionMaskInterface._global_mapping[IMPLEMENTATION]
                for name, function in _replaced.items():
                    setattr(masking_utils, name, function)


# The probe's tokens are one sequence, without images. These functions of transformers would
# read that from tensors, which have no numbers on the device `meta` and end at the last token.
_OF_ONE_TEXT: dict[str, Callable[..., Any]] = {
    "find_packed_sequence_indices": lambda position_ids: None,
    "blockwise_overlay": lambda block_sequence_ids: _see_nothing,
}


def _see_nothing(batch: int, head: int, query: Tensor, key: Tensor) -> Tensor:
    return query.new_zeros((), dtype=torch.bool)


def read_rule(rule: _Rule) -> Reach:
    """Return the keys that queries see by the rule of a mask.

    Raises:
      UnfitLayer: not all earlier keys, and not those of a window or a chunk.
    """
    reach = _guess(rule)
    border = reach.window or reach.chunk or 4
    # Before and behind the borders of windows and chunks, and far behind them.
    borders = [border * n + more for n in (1, 2) for more in (-1, 0, 1)]
    queries = torch.tensor([1, 2, *borders, 100, 5000, _NUM_POSITIONS // 5])
    for query in queries.clamp(max=_NUM_POSITIONS - 3):
        keys = torch.arange(int(query) + 3)
        if not torch.equal(_ask(rule, query, keys), reach.sees(query, keys)):
            raise UnfitLayer(
                "its mask is neither causal, nor of a window, nor of chunks"
            )
    return reach


def _guess(rule: _Rule) -> Reach:
    first = torch.tensor(0)
    if _ask(rule, first, torch.tensor([1])).all():
        return Reach(is_causal=False)
    # The first key is lost at the end of a window, or of a chunk.
    sees_first = _ask(rule, torch.arange(_NUM_POSITIONS), first)
    if sees_first.all():
        return Reach()
    border = int(sees_first.to(torch.int8).argmin())
    # There, a window has lost one key, and a chunk has lost all but the query's own.
    if (
        border > 1
        and _ask(rule, torch.tensor(border), torch.tensor([border - 1])).all()
    ):
        return Reach(window=border)
    return Reach(chunk=border) if border > 1 else Reach(window=border)


def _ask(rule: _Rule, queries: Tensor, keys: Tensor) -> Tensor:
    answer = torch.as_tensor(rule(0, 0, queries, keys))
    return answer.expand(torch.broadcast_shapes(queries.shape, keys.shape))
