"""The heads, columns and rows of one shard of a model."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidConfig
from ...types.stage_place import Shard

# Kernels read columns in groups of this size, so a range begins at a multiple if it can.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSplit:
    """The heads of an attention that a shard has.

    Args:
      queries: heads of queries.
      keys: heads of keys and values. Shards may share a head: each of them keeps its keys.
    """

    queries: range
    keys: range


def split_evenly(size: int, shard: Shard) -> range:
    """Return a shard's part of columns, rows or tokens; parts differ as little as possible.

    The parts of all shards follow each other.

    Raises:
      InvalidConfig: there are fewer than shards.
    """
    unit = _ALIGNMENT
    while size % unit or size // unit < shard.count:
        if unit == 1:
            raise InvalidConfig(
                "tensor_parallel_size",
                f"{shard.count} processes cannot share {size} columns",
            )
        unit //= 2
    begin, end = _cut(size // unit, shard)
    return range(begin * unit, end * unit)


def split_heads(num_heads: int, num_kv_heads: int, shard: Shard) -> HeadSplit:
    """Return the heads that a shard has.

    Heads of queries stay with the head of keys that they read. If there are fewer heads of
    keys than shards, several shards have the same one, each with a part of its queries. If
    their number is not a multiple of the number of shards, some shards have one more.

    Raises:
      InvalidConfig: a shard would read keys of two heads, and not all queries of both.
    """
    group = num_heads // num_kv_heads
    if shard.count <= num_kv_heads:
        begin, end = _cut(num_kv_heads, shard)
        return HeadSplit(
            queries=range(begin * group, end * group), keys=range(begin, end)
        )
    sharing, rest = divmod(shard.count, num_kv_heads)
    if rest or group % sharing:
        raise InvalidConfig(
            "tensor_parallel_size",
            f"{shard.count} processes cannot share {num_heads} heads of queries and "
            f"{num_kv_heads} heads of keys",
        )
    size = group // sharing
    head = shard.index // sharing
    return HeadSplit(
        queries=range(shard.index * size, (shard.index + 1) * size),
        keys=range(head, head + 1),
    )


def _cut(size: int, shard: Shard) -> tuple[int, int]:
    """Return the begin and the end of a part; the first parts may have one more."""
    least, rest = divmod(size, shard.count)
    begin = shard.index * least + min(shard.index, rest)
    return begin, begin + least + (shard.index < rest)
