"""Queries are cut into tiles: each token is in one of them, at its position."""

from __future__ import annotations

from hypothesis import given, strategies as st

from trioserve.kernels.triton.tiles import (
    Tile,
    count_queries,
    count_splits,
    cut_tiles,
    list_rows,
    list_spans,
)
from trioserve.types.plan import StepRow


def make_row(slot: int, start: int, num_tokens: int) -> StepRow:
    return StepRow(
        slot=slot, start=start, num_tokens=num_tokens, new_block_ids=(), sample=True
    )


def list_tokens(tiles: list[Tile]) -> list[tuple[int, int, int]]:
    return [
        (begin + i, slot, position + i)
        for begin, count, slot, position in tiles
        for i in range(count)
    ]


def test_chunks_are_cut_and_the_tiles_that_see_the_most_keys_come_first() -> None:
    rows = [make_row(3, 9, 1), make_row(0, 4, 10), make_row(2, 9, 2)]
    decodes, chunks = cut_tiles(rows, 4)
    assert decodes == [(0, 1, 3, 9)]
    assert chunks == [(9, 2, 0, 12), (5, 4, 0, 8), (11, 2, 2, 9), (1, 4, 0, 4)]


def test_decodes_come_first_and_held_rows_keep_all_but_their_last_token() -> None:
    rows = [make_row(2, 0, 3), make_row(0, 4, 10), make_row(3, 9, 1)]
    expected = [(13, 1, 3, 9, 0), (0, 3, 2, 0, 3), (3, 10, 0, 4, 9)]
    assert list_rows(rows, {0, 3}) == expected


def test_spans_end_at_borders_of_a_sequence_and_single_tokens_have_none() -> None:
    rows = [(0, 1, 5, 200, 1), (1, 66, 3, 63, 66), (67, 128, 4, 64, 127)]
    spans = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert list_spans(rows) == (spans, [0, 3])
    assert list_spans(rows[:1]) == ([], [])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), min_size=1),
    st.integers(1, 16),
)
def test_each_token_is_in_one_tile(
    parts: list[tuple[int, int]], num_queries: int
) -> None:
    rows = [make_row(slot, *part) for slot, part in enumerate(parts)]
    decodes, chunks = cut_tiles(rows, num_queries)
    assert all(count == 1 for _, count, _, _ in decodes)
    assert all(1 <= count <= num_queries for _, count, _, _ in chunks)
    tokens = [(row.slot, row.start + i) for row in rows for i in range(row.num_tokens)]
    assert sorted(list_tokens(decodes + chunks)) == [
        (flat, *token) for flat, token in enumerate(tokens)
    ]


def test_tiles_are_long_if_full_ones_fill_the_device() -> None:
    rows = [make_row(0, 4, 512), make_row(1, 0, 543)]
    # Two programs for each of 132 multiprocessors need 33 tiles, of 8 programs each.
    assert count_queries(rows, 16, 32, 8, 132) == 16
    assert count_queries([*rows, make_row(2, 0, 64)], 16, 32, 8, 132) == 32
    # Decodes and drafts fill no tile.
    others = [make_row(slot, 9, 1 + slot % 8) for slot in range(3, 99)]
    assert count_queries([*rows, *others], 16, 32, 8, 132) == 16
    assert count_queries([make_row(0, 0, 1056)], 16, 32, 8, 132) == 32


def test_keys_are_split_until_the_device_is_full() -> None:
    splits = [count_splits(programs, 132) for programs in (1, 8, 64, 132, 263, 264)]
    assert splits == [32, 32, 8, 2, 2, 1]
    assert [count_splits(programs, 132, most=64) for programs in (1, 8)] == [64, 64]
