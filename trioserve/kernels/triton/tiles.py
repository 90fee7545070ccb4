"""The queries of a step, cut into the tiles that kernels for GPUs take.

    flat tokens | decode | decode | chunk ..................... | chunk ......... |
    tiles       |   1    |   1    |  tile  |  tile  |  tile | 5 |  tile  |  tile  |

A tile has neighbours of one sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from torch import Tensor

# A first token, a number of tokens, a slot, and the position of the first token.
Tile = tuple[int, int, int, int]
TILE_NUMBERS = 4

# A first token, a number of tokens, a slot, the position of the first token, and the number of
# tokens whose state the slot keeps.
ROW_NUMBERS = 5

# The positions of a sequence in one product of layers with states.
SPAN_TOKENS = 64

# A first token, a number of tokens, and the slot of an adapter.
ADAPTER_NUMBERS = 3

# Most tokens of a tile of an adapter: of single tokens, and of a step with chunks.
_FEW_TOKENS, _MANY_TOKENS = 16, 64

# Splits of the keys of one decode. More of them cost more to put together than they save.
_MAX_SPLITS = 32


class Row(Protocol):
    """The part of a step that belongs to one sequence; kernels take it from any server."""

    @property
    def slot(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterTiles:
    """The tokens of a step that have adapters.

    Attributes:
      numbers: (num_tiles, 3) int32, as `cut_adapters` cuts them
      slots: (num_tokens,) int32, the slots of adapters; None if no experts read these tokens
      num_tokens: most tokens of a tile.
    """

    numbers: Tensor
    slots: Tensor | None = None
    num_tokens: int = _FEW_TOKENS


@dataclass(frozen=True, slots=True)
class Spans:
    """The parts of a step's chunks that layers with states run by products.

    Attributes:
      numbers: (num_spans, 2) int32, as `list_spans` lists them
      firsts: (num_chunks,) int32, the first span of each row with several tokens
    """

    numbers: Tensor
    firsts: Tensor


class ChunkTiles(NamedTuple):
    """The tiles of chunks.

    Attributes:
      num_queries: most tokens of a tile.
      numbers: (num_tiles, 4) int32, as `cut_tiles` cuts them
    """

    num_queries: int
    numbers: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The tokens of a step, as all its layers attend from them.

    Attributes:
      tables: (max_num_seqs, max_blocks) int64, the blocks of each slot
      window_tables: the same for layers with windows; None if they have the same blocks
      slots, positions: (num_tokens,) int64
      decodes, chunks: (num_tiles, 4) int32, as `cut_tiles` cuts them
      num_queries: most tokens of a tile of a chunk
      larger_chunks: PagedLayer.chunk_queries -> the same chunks in other tiles, for layers whose
        programs have room for more tokens.
      rows: (num_rows, 5) int32, as `list_rows` lists them; None if no layer has states
      spans: of the rows with several tokens; None if layers with states run token by token
      key_ends: (num_tokens,) int32, the ends of the keys that tokens see in layers that join
        images; None if all of them are behind the tokens
    """

    tables: Tensor
    slots: Tensor
    positions: Tensor
    decodes: Tensor
    chunks: Tensor
    num_queries: int = 1
    window_tables: Tensor | None = None
    rows: Tensor | None = None
    spans: Spans | None = None
    key_ends: Tensor | None = None
    adapters: AdapterTiles | None = None
    larger_chunks: Mapping[int, ChunkTiles] = field(default_factory=dict)

    def keep(
        self, places: Tensor, decodes: Tensor, adapters: AdapterTiles | None
    ) -> Tiles:
        """Return the tiles of some tokens alone, each the last one of its row.

        Layers with states get no more of them.

        Args:
          places: (num_kept,) int64, of the tokens
          decodes: (num_kept, 4) int32, a tile of each
        """
        return replace(
            self,
            slots=self.slots[places],
            positions=self.positions[places],
            decodes=decodes,
            chunks=decodes[:0],
            rows=None,
            spans=None,
            # Nothing of a row is behind its last token.
            key_ends=None,
            adapters=adapters,
            larger_chunks={},
        )

    def get_chunks(self, chunk_queries: int) -> ChunkTiles:
        """Return the tiles of chunks for a layer."""
        own = self.larger_chunks.get(chunk_queries)
        return ChunkTiles(self.num_queries, self.chunks) if own is None else own

    def get_table(self, is_windowed: bool) -> Tensor:
        """Return the table of the blocks that a layer has."""
        if not is_windowed:
            return self.tables
        assert self.window_tables is not None, "layers with windows have own blocks"
        return self.window_tables


def cut_tiles(rows: Sequence[Row], num_queries: int) -> tuple[list[Tile], list[Tile]]:
    """Return the tiles of decodes, of one token each, and the tiles of chunks.

    Args:
      rows: in the order of the flat tokens.
      num_queries: most tokens of a tile of a chunk.
    """
    decodes: list[Tile] = []
    chunks: list[Tile] = []
    begin = 0
    for row in rows:
        if row.num_tokens == 1:
            decodes.append((begin, 1, row.slot, row.start))
        else:
            chunks += _cut_chunk(row, begin, num_queries)
        begin += row.num_tokens
    # The tiles that see the most keys come first: none of them should begin as the last.
    chunks.sort(key=_count_keys, reverse=True)
    return decodes, chunks


def _count_keys(tile: Tile) -> int:
    _, num_tokens, _, position = tile
    return position + num_tokens


def count_queries(
    rows: Sequence[Row], few: int, many: int, num_parts: int, num_cores: int
) -> int:
    """Return the most tokens of a tile of a chunk.

    Many are faster, if full tiles still have two programs for each multiprocessor.

    Args:
      num_parts: programs of a tile.
      num_cores: multiprocessors of the device.
    """
    num_tiles = sum(row.num_tokens // many for row in rows if row.num_tokens > 1)
    return many if num_tiles * num_parts >= 2 * num_cores else few


def _cut_chunk(row: Row, begin: int, num_queries: int) -> Iterator[Tile]:
    for offset in range(0, row.num_tokens, num_queries):
        count = min(num_queries, row.num_tokens - offset)
        yield begin + offset, count, row.slot, row.start + offset


def count_adapter_tokens(has_chunks: bool) -> int:
    """Return the most tokens of a tile of an adapter."""
    return _MANY_TOKENS if has_chunks else _FEW_TOKENS


def cut_adapters(
    runs: Iterable[tuple[int, int, int]], num_tokens: int
) -> list[list[int]]:
    """Return the numbers of tiles whose tokens have the same adapter.

    Args:
      runs: slots of adapters, the first token, and the one behind the last
      num_tokens: most tokens of a tile.
    """
    return [
        [first, min(num_tokens, end - first), slot]
        for slot, begin, end in runs
        for first in range(begin, end, num_tokens)
    ]


def list_rows(rows: Sequence[Row], held: Collection[int]) -> list[tuple[int, ...]]:
    """Return the rows of a step for layers with states: decodes, then chunks.

    Args:
      rows: in the order of the flat tokens.
      held: slots whose last token comes again, so that the slot must not keep it.
    """
    decodes: list[tuple[int, ...]] = []
    chunks: list[tuple[int, ...]] = []
    begin = 0
    for row in rows:
        kept = row.num_tokens - (row.slot in held)
        numbers = begin, row.num_tokens, row.slot, row.start, kept
        (decodes if row.num_tokens == 1 else chunks).append(numbers)
        begin += row.num_tokens
    return decodes + chunks


def list_spans(
    rows: Iterable[tuple[int, ...]],
) -> tuple[list[tuple[int, int]], list[int]]:
    """Cut the rows with several tokens into spans.

    They end at multiples of SPAN_TOKENS of a sequence's positions. So chunks that end there give a
    text the same bits.

    Args:
      rows: from `list_rows`.

    Returns:
      the row of each span and its place in the row; and the first span of each row that has some
    """
    spans: list[tuple[int, int]] = []
    firsts: list[int] = []
    for row, (_, num_tokens, _, start, _) in enumerate(rows):
        if num_tokens > 1:
            firsts.append(len(spans))
            end = start % SPAN_TOKENS + num_tokens
            spans += [(row, place) for place in range(-(-end // SPAN_TOKENS))]
    return spans, firsts


def count_splits(num_programs: int, num_cores: int, most: int = _MAX_SPLITS) -> int:
    """Return the number of parts into which the keys of each decode are divided.

    It depends on the size of the batch and not on lengths, so that a captured graph with
    this number is right for sequences of any length.

    Args:
      num_programs: tiles times heads of keys.
      num_cores: multiprocessors of the device.
      most: a power of two.

    Returns:
      a power of two, so that few kernels are compiled
    """
    splits = 1
    while splits < most and num_programs * splits < 2 * num_cores:
        splits *= 2
    return splits
