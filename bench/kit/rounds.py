"""Rounds in which systems take turns, so that a slow minute affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
import random
import statistics
import time
from typing import Any, TypeVar, cast

from trioserve.programs.bench.measuring.statistics import Spread

T = TypeVar("T")


def alternate(names: Sequence[T], number: int) -> Sequence[T]:
    """Return the names in order, or in reversed order in every other round."""
    return names[::-1] if number % 2 else names


def shuffle(names: Sequence[T], num_rounds: int) -> Iterator[tuple[int, T]]:
    """Yield (round, name); each round has a random order, the same in every run."""
    chance = random.Random(0)
    for number in range(num_rounds):
        for name in chance.sample(names, len(names)):
            yield number, name


def take_turns(
    num_rounds: int, calls: Mapping[str, Callable[[], float]]
) -> dict[str, list[float]]:
    """Call all in turns, and list the result of each in each round."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(num_rounds):
        for name in alternate(list(calls), number):
            found[name].append(calls[name]())
    return found


def time_calls(call: Callable[[], object], num_calls: int) -> float:
    """Make so many calls in a row, and return the mean seconds of a call."""
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    return (time.perf_counter() - began) / num_calls


def take_medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each figure's median over the rounds that have it."""
    names = dict.fromkeys(name for figures in rounds for name in figures)
    return {
        name: statistics.median(each[name] for each in rounds if name in each)
        for name in names
    }


def list_ratios(over: Iterable[float], under: Iterable[float]) -> list[float]:
    """Divide round by round."""
    return [each / other for each, other in zip(over, under)]


def describe_ratios(ratios: Sequence[float]) -> str:
    """Write the median of the rounds' ratios, with the least and the largest."""
    median = statistics.median(ratios)
    return f"{median:.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"


def take_median_spread(spreads: Iterable[Spread | None]) -> Spread | None:
    """Take the median of each percentile over rounds; counts add up.

    None when no round has a spread.
    """
    seen = [each for each in spreads if each is not None]
    if not seen:
        return None
    percentiles = {
        each.name: statistics.median(getattr(one, each.name) for one in seen)
        for each in fields(Spread)
        if each.name != "count"
    }
    return Spread(**percentiles, count=sum(each.count for each in seen))


FiguresT = TypeVar("FiguresT")


def find_medians(rounds: Sequence[FiguresT], **others: object) -> FiguresT:
    """Make figures whose fields are the medians of several rounds' fields.

    Args:
      rounds: dataclasses of one kind, whose fields are numbers or spreads.
      others: values of the fields that have no median.
    """
    found: dict[str, Any] = {}
    for each in fields(cast(Any, rounds[0])):
        values = [getattr(figures, each.name) for figures in rounds]
        if each.name in others:
            found[each.name] = others[each.name]
        elif all(value is None or isinstance(value, Spread) for value in values):
            found[each.name] = take_median_spread(values)
        else:
            found[each.name] = statistics.median(values)
    return cast(FiguresT, replace(cast(Any, rounds[0]), **found))
