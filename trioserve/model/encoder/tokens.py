"""The arguments of a forward pass: token ids, positions and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types.pooling import PoolingInput


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The arguments that a model needs for each token.

    Args:
      device: the model's.
      fill_id: the token that fills rectangles up.
      padding_id: for models of RoBERTa's kind, the token that has no position of its own;
        other positions are counted from padding_id + 1. None counts from 0.
      type_ids: the model needs the number of the text in a pair for each token.
    """

    device: torch.device
    fill_id: int = 0
    padding_id: int | None = None
    type_ids: bool = False


def place_spans(
    inputs: Sequence[PoolingInput], order: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return [begin, end) of each input's tokens when they are laid flat in an order."""
    spans, end = [(0, 0)] * len(inputs), 0
    for index in order:
        begin, end = end, end + inputs[index].num_tokens
        spans[index] = begin, end
    return tuple(spans)


def lay_flat(inputs: Sequence[PoolingInput], rules: TokenRules) -> dict[str, Tensor]:
    """Return a model's arguments for inputs that are laid flat, in this order.

    Returns:
      input_ids       (1, num_tokens) int64
      position_ids    (1, num_tokens) int64
      token_type_ids  (1, num_tokens) int64, if the model has them
    """
    token_ids = _join_ids(inputs)
    lengths = torch.tensor([i.num_tokens for i in inputs])
    ends = lengths.cumsum(0)
    arguments = {
        "input_ids": token_ids,
        "position_ids": _count_positions(token_ids, ends - lengths, lengths, rules),
    }
    if rules.type_ids:
        arguments["token_type_ids"] = _number_texts(inputs, ends.tolist())
    return {name: value[None].to(rules.device) for name, value in arguments.items()}


def lay_rectangle(
    inputs: Sequence[PoolingInput], rules: TokenRules
) -> tuple[dict[str, Tensor], Tensor]:
    """Return a model's arguments for inputs that are padded to the longest.

    Returns:
      input_ids       (num_inputs, longest) int64
      attention_mask  (num_inputs, longest) int64
      token_type_ids  (num_inputs, longest) int64, if the model has them
      and the places that hold tokens, (num_inputs, longest) bool
    """
    lengths = torch.tensor([i.num_tokens for i in inputs])
    columns = torch.arange(int(lengths.max()))
    is_token = columns < lengths[:, None]  # (num_inputs, longest)
    num_seen = torch.tensor([i.num_tokens - i.num_unseen for i in inputs])
    input_ids = torch.full(is_token.shape, rules.fill_id)
    input_ids[is_token] = _join_ids(inputs)
    arguments = {
        "input_ids": input_ids,
        "attention_mask": (columns < num_seen[:, None]).long(),
    }
    if rules.type_ids:
        type_ids = torch.zeros_like(input_ids)
        type_ids[is_token] = _number_texts(inputs, lengths.cumsum(0).tolist())
        arguments["token_type_ids"] = type_ids
    on_device = {name: value.to(rules.device) for name, value in arguments.items()}
    return on_device, is_token.to(rules.device)


def _join_ids(inputs: Sequence[PoolingInput]) -> Tensor:
    # A bytearray, because torch warns of read-only memory.
    joined = bytearray().join([i.token_ids for i in inputs])
    return torch.frombuffer(joined, dtype=torch.int32).long()


def _count_positions(
    token_ids: Tensor, begins: Tensor, lengths: Tensor, rules: TokenRules
) -> Tensor:
    if rules.padding_id is None:
        return torch.arange(len(token_ids)) - begins.repeat_interleave(lengths)
    # As in create_position_ids_from_input_ids in transformers' modeling_roberta.py.
    has_position = token_ids != rules.padding_id
    counts = has_position.cumsum(0)
    counts_before = (counts - has_position.long())[begins].repeat_interleave(lengths)
    return (counts - counts_before) * has_position + rules.padding_id


def _number_texts(inputs: Sequence[PoolingInput], ends: list[int]) -> Tensor:
    type_ids = torch.zeros(ends[-1], dtype=torch.int64)
    for item, end in zip(inputs, ends):
        if item.second_begin:
            type_ids[end - item.num_tokens + item.second_begin : end] = 1
    return type_ids
