"""The partition of a model's layers among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
import math
import operator

from ...errors import InvalidConfig

# The part of the output head's parameters that counts as work of the last stage. A layer
# computes every token of a step. The head computes only the rows that sample: one of
# hundreds of tokens in a chunk, but all tokens of a step that decodes. Counted in full, the
# head of SmolLM2-135M would count as 8 of its 30 layers, and the last stage would be idle
# while prompts are read. A quarter is a guess between the two.
HEAD_WEIGHT = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The layers [begin, end) of a model, which belong to one stage.

    Args:
      stage: from 0.
      num_layers: of the whole model.
    """

    stage: int
    num_stages: int
    begin: int
    end: int
    num_layers: int

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == self.num_stages - 1


def partition_layers(
    layer_costs: Sequence[int], *, head_cost: int, num_stages: int
) -> tuple[Partition, ...]:
    """Divide the layers so that the slowest stage has as little work as possible.

    A pipeline is as fast as its slowest stage. Among equally fast partitions, the most
    even one is taken.

    Args:
      layer_costs: parameters of each layer.
      head_cost: parameters of the output head.

    Raises:
      InvalidConfig: there are more stages than layers.
    """
    num_layers = len(layer_costs)
    if not 1 <= num_stages <= num_layers:
        raise InvalidConfig(
            "pipeline_parallel_size",
            f"{num_stages} stages cannot share {num_layers} layers: each needs a layer",
        )
    costs = [float(cost) for cost in layer_costs]
    costs[-1] += HEAD_WEIGHT * head_cost
    ends = _cut(costs, num_stages)
    return tuple(
        Partition(
            stage=stage,
            num_stages=num_stages,
            begin=begin,
            end=end,
            num_layers=num_layers,
        )
        for stage, (begin, end) in enumerate(zip([0, *ends], ends))
    )


def _cut(costs: list[float], num_parts: int) -> list[int]:
    """Return the ends of neighbouring parts.

    The first search finds the least possible cost of the most expensive part. The second
    search keeps to that limit and minimises the sum of squares, which makes parts even.
    """
    sums = [0.0, *accumulate(costs)]
    limit, _ = _search(sums, num_parts, max, lambda cost: cost)
    _, ends = _search(
        sums,
        num_parts,
        operator.add,
        lambda cost: cost * cost if cost <= limit else math.inf,
    )
    return ends


def _search(
    sums: list[float],
    num_parts: int,
    join: Callable[[float, float], float],
    rate: Callable[[float], float],
) -> tuple[float, list[int]]:
    """Return the least rating of all ways to cut, and the ends of its parts.

    Args:
      sums: of the first 0, 1, 2, ... costs.
      join: combines the rating of all parts so far with the rating of one more part.
      rate: cost of a part -> its rating.
    """
    size = len(sums)
    # The best cut of the first `end` costs, for each end: into one part, then two, ...
    best = [(rate(sums[end]), [end]) for end in range(size)]
    for num_done in range(1, num_parts):
        best = [
            min(
                (
                    (join(rating, rate(sums[end] - sums[begin])), [*ends, end])
                    for begin, (rating, ends) in enumerate(best[:end])
                    if begin >= num_done
                ),
                default=(math.inf, []),
            )
            for end in range(size)
        ]
    return best[-1]
