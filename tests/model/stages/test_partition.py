"""Layers are divided so that no stage has more work than necessary."""

from __future__ import annotations

from itertools import combinations
import random

import pytest

from trioserve.errors import InvalidConfig
from trioserve.model.stages.partition import HEAD_WEIGHT, partition_layers


def count(costs: list[int], num_stages: int, head_cost: int = 0) -> list[int]:
    shares = partition_layers(costs, head_cost=head_cost, num_stages=num_stages)
    assert [partition.stage for partition in shares] == list(range(num_stages))
    assert [partition.begin for partition in shares] == [
        0,
        *(s.end for s in shares[:-1]),
    ]
    assert shares[-1].end == len(costs)
    return [partition.end - partition.begin for partition in shares]


def test_equal_layers_are_spread_evenly() -> None:
    assert count([5] * 12, 4) == [3, 3, 3, 3]
    assert sorted(count([5] * 30, 4)) == [7, 7, 8, 8]
    assert count([5] * 3, 3) == [1, 1, 1]
    assert count([5] * 7, 1) == [7]


def test_a_quarter_of_the_head_counts_as_the_last_stages() -> None:
    # SmolLM2-135M.
    layer, head = 3_540_096, 49_152 * 576
    assert count([layer] * 30, 2, head) == [16, 14]
    # A head that outweighs all layers leaves the last stage one of them.
    assert count([1] * 6, 2, 400) == [5, 1]


@pytest.mark.parametrize("seed", range(20))
def test_no_other_spread_has_a_cheaper_most_expensive_stage(seed: int) -> None:
    rng = random.Random(seed)
    costs = [rng.randint(1, 9) for _ in range(rng.randint(4, 9))]
    head_cost, num_stages = rng.randint(0, 60), rng.randint(2, 4)

    def most(ends: tuple[int, ...]) -> float:
        stages = zip((0, *ends), (*ends, len(costs)))
        sums = [float(sum(costs[begin:end])) for begin, end in stages]
        sums[-1] += HEAD_WEIGHT * head_cost
        return max(sums)

    shares = partition_layers(costs, head_cost=head_cost, num_stages=num_stages)
    assert most(tuple(partition.end for partition in shares[:-1])) == min(
        most(ends) for ends in combinations(range(1, len(costs)), num_stages - 1)
    )


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="--pipeline-parallel-size: 4 stages"):
        partition_layers([1, 1, 1], head_cost=0, num_stages=4)
