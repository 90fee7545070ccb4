"""Systems take turns in each round, and their ratios are taken round by round."""

from __future__ import annotations

import argparse
from pathlib import Path

from kit import options, rounds
import pytest


def test_calls_take_turns_in_alternating_order() -> None:
    order: list[str] = []
    calls = {
        name: lambda name=name: float(order.append(name) or len(order)) for name in "ab"
    }
    assert rounds.take_turns(2, calls) == {"a": [1.0, 4.0], "b": [2.0, 3.0]}
    assert order == ["a", "b", "b", "a"]


def test_every_round_has_every_name_and_runs_repeat_the_order() -> None:
    turns = list(rounds.shuffle("abc", 2))
    assert sorted(turns) == [(n, name) for n in range(2) for name in "abc"]
    assert turns == list(rounds.shuffle("abc", 2))


def test_a_median_leaves_out_rounds_without_the_figure() -> None:
    seen = [{"x": 1.0}, {"x": 5.0, "y": 2.0}, {"x": 3.0}]
    assert rounds.take_medians(seen) == {"x": 3.0, "y": 2.0}


def test_ratios_are_taken_round_by_round() -> None:
    ratios = rounds.list_ratios([1.0, 6.0, 4.0], [2.0, 3.0, 4.0])
    assert rounds.describe_ratios(ratios) == "1.00 times (0.50 to 2.00)"


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (options.read_positive, "0"),
        (options.read_count, "-1"),
        (options.read_seconds, "0"),
        (options.read_seconds, "inf"),
        (lambda text: options.read_choice(text, ("a", "b")), "a,c"),
    ],
)
def test_wrong_values_of_options_are_refused(read: object, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)


def test_names_are_read_with_commas_in_the_order_given() -> None:
    assert options.read_choice("b,a", ("a", "b", "c")) == ("b", "a")


def test_an_output_file_in_a_missing_folder_is_refused_before_the_run(
    tmp_path: Path,
) -> None:
    assert options.read_output(str(tmp_path / "fine.json")) == tmp_path / "fine.json"
    with pytest.raises(argparse.ArgumentTypeError, match="gone is not a folder"):
        options.read_output(str(tmp_path / "gone" / "x"))
