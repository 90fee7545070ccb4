"""Stop strings: the first complete one ends the text, for any division of it."""

from __future__ import annotations

from hypothesis import given, strategies as st

from trioserve.render.text.stop import MAX_STOP_CHARACTERS, StopScanner

# Few letters, so that strings overlap, nest and nearly match.
LETTERS = "aab\n你"
texts = st.text(LETTERS, max_size=40)
stop_strings = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=5).map(tuple)
pieces = st.lists(texts, max_size=8)


def find_naively(text: str, stop: tuple[str, ...], start: int = 0) -> tuple[int, str]:
    """Return end and name of the first complete stop string that ends after start."""
    for end in range(start + 1, len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        if found:
            return end, max(found, key=len)
    return len(text), ""


def count_held_naively(text: str, stop: tuple[str, ...]) -> int:
    """Count the characters at the text's end that begin a longer stop string."""
    beginnings = {s[:size] for s in stop for size in range(1, len(s))}
    return max((len(b) for b in beginnings if text.endswith(b)), default=0)


@given(pieces, stop_strings, st.booleans())
def test_the_text_ends_where_a_full_search_ends_it(
    pieces: list[str], stop: tuple[str, ...], include: bool
) -> None:
    scanner = StopScanner(stop, include=include)
    released = ""
    for piece in pieces:
        released += scanner.scan(piece)
        if scanner.stop is not None:
            break
    end, name = find_naively("".join(pieces), stop)
    assert (scanner.stop or "") == name
    if not name:
        released += scanner.release()
    cut = 0 if include else len(name)
    assert released == "".join(pieces)[: end - cut]


@given(pieces, stop_strings)
def test_nothing_is_held_back_but_the_beginning_of_a_stop_string(
    pieces: list[str], stop: tuple[str, ...]
) -> None:
    scanner = StopScanner(stop)
    released = seen = ""
    for piece in pieces:
        seen += piece
        released += scanner.scan(piece, armed=False)
        assert released == seen[: len(seen) - count_held_naively(seen, stop)]
    assert scanner.stop is None


@given(texts, texts, stop_strings)
def test_a_stop_string_that_is_complete_before_arming_is_text(
    before: str, after: str, stop: tuple[str, ...]
) -> None:
    scanner = StopScanner(stop)
    released = scanner.scan(before, armed=False) + scanner.scan(after)
    end, name = find_naively(before + after, stop, start=len(before))
    assert (scanner.stop or "") == name
    if not name:
        released += scanner.release()
    expected = (before + after)[: end - len(name)]
    # Text released before arming stays released: a match that begins earlier removes
    # only held text.
    assert released == expected


def test_the_longest_of_those_that_end_together_wins() -> None:
    scanner = StopScanner(("b", "ab"))
    assert scanner.scan("xab") == "x"
    assert scanner.stop == "ab"


def test_the_first_that_is_complete_wins_over_one_that_began_earlier() -> None:
    scanner = StopScanner(("abc", "b"))
    assert scanner.scan("xabc") == "xa"
    assert scanner.stop == "b"


def test_a_false_beginning_is_released_in_the_end() -> None:
    scanner = StopScanner(("</answer>",))
    assert scanner.scan("1 < 2</ans") == "1 < 2"
    assert scanner.scan("wers") == "</answers"
    assert scanner.scan("<") == ""
    assert scanner.release() == "<"
    assert scanner.num_held == 0


def test_a_string_that_was_complete_before_arming_does_not_end_the_next_piece() -> None:
    """Its text is still held back, because it begins a longer stop string."""
    scanner = StopScanner(("a", "ab"))
    assert scanner.scan("a", armed=False) == ""
    assert scanner.scan("ca") == "ac"
    assert scanner.stop == "a"


def test_stop_strings_of_the_greatest_length_are_accepted() -> None:
    scanner = StopScanner(("x" * MAX_STOP_CHARACTERS,))
    assert scanner.scan("x" * (MAX_STOP_CHARACTERS - 1)) == ""
    assert scanner.scan("xy") == ""
    assert scanner.stop == "x" * MAX_STOP_CHARACTERS
