"""The inputs of captured decodes: all numbers of a step in one buffer of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ....kernels.triton.tiles import (
    ADAPTER_NUMBERS,
    ROW_NUMBERS,
    TILE_NUMBERS,
    AdapterTiles,
    Tiles,
)
from ...device.numbers import Numbers, Packing, find_sender
from ...step.layout import StepInputs
from ...step.plain import NUM_SETTINGS, PlainRows
from ...step.slots import SlotTables

# Slot of a row that is padding; the kernels write nothing for it.
NO_SLOT = -1

# Place of a number that goes nowhere.
_NOWHERE = -1

# Different rows of a trial: a small power of two.
_NUM_KINDS = 8


class DecodeInputs:
    """The tensors that a graph reads, at the same places in each replay.

    Args:
      size: of the batch.
      tables: the blocks of each slot; all sizes share them.
      vectors: (size, hidden_size), if the graph gets the vectors of tokens
      has_states: some layers keep states.
      has_adapters: rows have adapters.

    Attributes:
      numbers: by name; the rows behind those of a step are padding
        tokens          (size,) int64, SAMPLED where the slot has the token
        block_places    (size,) int64, of new blocks in the flat table; below 0 for none
        block_ids       (size,) int64; window_places and window_ids, if there are such layers
        places          (size,) int32, of the rows' tokens among the chosen; below 0 for none
        temperatures    (size,) float32, and keys, (size,) int64, as in PlainRows
        settings        (size, NUM_SETTINGS) float64, as in PlainRows; greedy if it has none
      tiles: one tile for each row.
    """

    def __init__(
        self,
        size: int,
        tables: SlotTables,
        vectors: Tensor | None = None,
        *,
        has_states: bool = False,
        has_adapters: bool = False,
    ) -> None:
        self.size = size
        self.vectors = vectors
        window_tables = tables.window_ids
        padding = _make_padding(
            size,
            has_windows=window_tables is not None,
            has_states=has_states,
            has_adapters=has_adapters,
        )
        packing = Packing(padding.values())
        self._step = np.zeros(packing.num_bytes, dtype=np.uint8)
        self._arrays = dict(zip(padding, packing.list_arrays(self._step)))
        for name, values in padding.items():
            self._arrays[name][...] = values
        self._padding = self._step.copy()
        device = tables.last_token_ids.device
        self._sender = find_sender(device)
        # A copy, because a CPU would share the memory.
        self._buffer = torch.from_numpy(self._padding.copy()).to(
            device, non_blocking=True
        )
        numbers = dict(zip(padding, packing.list_tensors(self._buffer)))
        self.numbers: Mapping[str, Tensor] = numbers
        self.tiles = Tiles(
            tables=tables.block_ids,
            window_tables=window_tables,
            slots=numbers["slots"],
            positions=numbers["positions"],
            decodes=numbers["decodes"],
            chunks=numbers["decodes"][:0],
            rows=numbers.get("rows"),
            adapters=(
                AdapterTiles(
                    numbers=numbers["adapters"], slots=numbers["adapter_slots"]
                )
                if has_adapters
                else None
            ),
        )

    def fill(
        self, numbers: Mapping[str, Numbers], vectors: Tensor | None = None
    ) -> None:
        """Take the numbers of a step; the rows behind them become padding.

        Args:
          numbers: by name, of as many rows as there are.
          vectors: (num_rows, hidden_size), if the graph gets them
        """
        self._step[:] = self._padding
        for name, values in numbers.items():
            self._arrays[name][: len(values)] = values
        # In one piece, because views of other memory in each step would cost more.
        memory = self._sender.take(len(self._step))
        memory.bytes[:] = self._step
        self._sender.send(memory, self._buffer)
        if vectors is not None:
            assert self.vectors is not None, "the graph gets vectors"
            self.vectors[: len(vectors)].copy_(vectors)


def _make_padding(
    size: int, *, has_windows: bool, has_states: bool, has_adapters: bool
) -> dict[str, Numbers]:
    """Return numbers of rows that write nothing."""

    def make(value: int, *shape: int) -> Numbers:
        return np.full((size, *shape), value, dtype=np.int32 if shape else np.int64)

    padding: dict[str, Numbers] = {
        "tokens": make(0),
        "slots": make(NO_SLOT),
        "positions": make(0),
        # No tokens.
        "decodes": make(0, TILE_NUMBERS),
        "block_places": make(_NOWHERE),
        "block_ids": make(0),
        "places": make(_NOWHERE).astype(np.int32),
        "temperatures": make(0).astype(np.float32),
        "keys": make(0),
        "settings": make(0, NUM_SETTINGS).astype(np.float64),
    }
    if has_windows:
        padding |= {"window_places": make(_NOWHERE), "window_ids": make(0)}
    if has_states:
        padding["rows"] = make(0, ROW_NUMBERS)
    if has_adapters:
        # Slot 0 changes nothing.
        padding["adapters"] = make(0, ADAPTER_NUMBERS)
        padding["adapter_slots"] = make(0).astype(np.int32)
    return padding


def list_trial(
    size: int, tables: SlotTables, num_blocks: int, *, has_states: bool
) -> dict[str, Numbers]:
    """Return the numbers of a step in which each slot begins a text.

    The step writes to slots, states and blocks, so nobody may use them.

    Args:
      size: of the batch.
      num_blocks: blocks that all layers have.
    """
    rows, zeros = np.arange(size), np.zeros(size, dtype=np.int64)
    # Rows that share a block write the same to it.
    kinds = rows % min(_NUM_KINDS, num_blocks)
    tile = rows, zeros + 1, rows, zeros
    blocks = {"places": rows * tables.block_ids.shape[1], "ids": kinds}
    numbers = {
        "tokens": kinds,
        "slots": rows,
        "positions": zeros,
        "decodes": np.stack(tile, axis=1),
        "places": rows,
        **{f"block_{name}": values for name, values in blocks.items()},
    }
    if tables.window_blocks is not None:
        numbers |= {f"window_{name}": values for name, values in blocks.items()}
    if has_states:
        numbers["rows"] = np.stack((*tile, zeros + 1), axis=1)
    return numbers


def list_tokens(inputs: StepInputs) -> dict[str, Numbers]:
    """Return the numbers of a step's tokens, one for each row."""
    num_rows = len(inputs.slots)
    tiles = np.ones((num_rows, TILE_NUMBERS), dtype=np.int32)
    tiles[:, 0], tiles[:, 2] = np.arange(num_rows), inputs.slots
    tiles[:, 3] = inputs.positions
    return {
        "tokens": inputs.tokens,
        "slots": inputs.slots,
        "positions": inputs.positions,
        "decodes": tiles,
    }


def list_new_blocks(tables: SlotTables, most: int) -> dict[str, Numbers]:
    """Take the new blocks of a step's rows, at most so many of each table."""
    places, block_ids = tables.blocks.take_new(most)
    numbers = {"block_places": np.array(places), "block_ids": np.array(block_ids)}
    if tables.window_blocks is not None:
        places, block_ids = tables.window_blocks.take_new(most)
        numbers |= {
            "window_places": np.array(places),
            "window_ids": np.array(block_ids),
        }
    return numbers


def list_choices(
    plain: PlainRows, tokens: Sequence[int], num_rows: int
) -> dict[str, Numbers]:
    """Return the numbers by which rows choose their next tokens.

    Args:
      tokens: the flat tokens of `plain`, in the order in which tokens are chosen.
    """
    rows: dict[str, Numbers] = {"places": np.arange(len(plain.keys))}
    if plain.settings is None:
        rows |= {"temperatures": plain.temperatures, "keys": plain.keys}
    else:
        # They have all numbers.
        rows["settings"] = plain.settings
    if [*tokens] == [*range(num_rows)]:
        # So it is in most steps.
        return rows
    index = np.array(tokens)
    spread = {"places": np.full(num_rows, _NOWHERE)}
    for name, values in rows.items():
        spread.setdefault(name, np.zeros((num_rows, *values.shape[1:]), values.dtype))
        spread[name][index] = values
    return spread
