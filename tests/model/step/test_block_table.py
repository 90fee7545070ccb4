"""New blocks wait on the host until somebody reads their table, or takes them."""

from __future__ import annotations

import torch

from trioserve.model.step.block_table import BlockTable
from trioserve.types.ids import BlockId


def make(*ids: int) -> tuple[BlockId, ...]:
    return tuple(map(BlockId, ids))


def test_blocks_are_in_the_table_when_it_is_read() -> None:
    table = BlockTable(2, 4, torch.device("cpu"))
    table.append([(0, make(5, 6)), (1, make(7))])
    # Nobody has read the first ones.
    table.append([(1, ()), (0, make(8))])
    assert table.read().tolist() == [[5, 6, 8, 0], [7, 0, 0, 0]]
    table.start(0)
    table.start(1, 2)
    table.append([(0, make(1)), (1, make(2))])
    assert table.read().tolist() == [[1, 6, 8, 0], [7, 0, 2, 0]]


def test_new_blocks_are_taken_once_and_only_if_they_are_few() -> None:
    table = BlockTable(2, 4, torch.device("cpu"))
    table.append([(1, make(3)), (0, make(9))])
    assert table.take_new(2) == ([4, 0], [3, 9])
    assert table.take_new(2) == ([], [])
    assert not table.read().any(), "who takes them writes them"
    table.append([(1, make(4, 5)), (0, make(6))])
    assert table.take_new(2) == ([], [])
    assert table.read().tolist() == [[0, 6, 0, 0], [0, 4, 5, 0]]
