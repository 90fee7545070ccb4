"""Parts of heads and columns, and the weights that are read for them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, strategies as st
import pytest
import torch

from trioserve.errors import InvalidConfig
from trioserve.model.shards.cuts import Cut, WrongShape
from trioserve.model.shards.split import split_evenly, split_heads
from trioserve.types.stage_place import Shard, StagePlace


def list_shards(count: int) -> list[Shard]:
    return [Shard(index=index, count=count) for index in range(count)]


@given(size=st.integers(1, 5000), count=st.integers(1, 16))
def test_parts_of_columns_follow_each_other_and_are_alike(
    size: int, count: int
) -> None:
    shards = list_shards(count)
    if size < count:
        with pytest.raises(InvalidConfig, match="cannot share"):
            split_evenly(size, shards[0])
        return
    parts = [split_evenly(size, shard) for shard in shards]
    assert [place for part in parts for place in part] == [*range(size)]
    # The kernels read 64 columns at once.
    assert max(map(len, parts)) - min(map(len, parts)) <= 64


@given(
    num_kv_heads=st.integers(1, 12), group=st.integers(1, 8), count=st.integers(1, 16)
)
def test_heads_stay_with_the_keys_that_they_read(
    num_kv_heads: int, group: int, count: int
) -> None:
    num_heads = num_kv_heads * group
    try:
        splits = [
            split_heads(num_heads, num_kv_heads, shard) for shard in list_shards(count)
        ]
    except InvalidConfig:
        assert count > num_kv_heads and (
            count % num_kv_heads or group % (count // num_kv_heads)
        )
        return
    assert [head for split in splits for head in split.queries] == [*range(num_heads)]
    for split in splits:
        assert {head // group for head in split.queries} == {*split.keys}
        # Attention finds the keys of a head by their numbers alone.
        assert len(split.queries) % len(split.keys) == 0


def test_ranks_of_shards_follow_each_other() -> None:
    places = [StagePlace.of_rank(rank, num_stages=2, num_shards=2) for rank in range(4)]
    assert [place.rank for place in places] == [0, 1, 2, 3]
    names = ["stage 0 shard 0", "stage 0 shard 1", "stage 1 shard 0", "stage 1 shard 1"]
    assert [place.name for place in places] == names
    assert [place.samples for place in places] == [False, False, True, False]


WHOLE = torch.arange(24.0).reshape(6, 4)


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (Cut(axis=-2, kept=range(2, 4), size=6), WHOLE[2:4]),
        (Cut(axis=-1, kept=range(1, 3), size=4), WHOLE[:, 1:3]),
        # Two weights in one, and each of them by itself.
        (Cut(axis=-2, kept=range(1, 2), size=3, num_parts=2), WHOLE[[1, 4]]),
        (Cut(axis=-2, kept=range(1, 2), size=6, num_parts=2), WHOLE[1:2]),
        (Cut(is_kept=True), WHOLE),
        (Cut(is_kept=False), torch.zeros(6, 4)),
    ],
)
def test_a_part_of_a_weight_is_read(cut: Cut, expected: torch.Tensor) -> None:
    assert torch.equal(cut.take("weight", WHOLE), expected)


@pytest.mark.parametrize(
    "cut",
    [
        lambda: Cut(axis=-2, kept=range(5, 7), size=7),
        # A part of a weight with more places would be taken for another weight's part.
        lambda: Cut(axis=-2, kept=range(0, 2), size=4),
        lambda: Cut(axis=-2, kept=range(0, 1), size=2, num_parts=2),
    ],
)
def test_a_weight_of_another_shape_is_refused(cut: Callable[[], Cut]) -> None:
    with pytest.raises(WrongShape, match="weight has 6 places on axis -2"):
        cut().take("weight", WHOLE)
