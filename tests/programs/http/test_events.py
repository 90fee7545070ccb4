"""Streams of answers are cut into events."""

from __future__ import annotations

import pytest

from trioserve.programs.http.events import EventReader, EventsUnreadable


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_read_for_any_division_of_the_bytes(
    step: int, newline: bytes
) -> None:
    stream = (
        b": a comment\n\nevent: x\n"
        b'data: {"choices": [{"text": "a"}]}\n\n'
        b'data:{"choices": [{"delta": {"reasoning_content": "b"}}], "usage": null}\n\n'
        b"data: [DONE]\n\n"
    ).replace(b"\n", newline)
    reader = EventReader()
    events = [
        event
        for start in range(0, len(stream), step)
        for event in reader.feed(stream[start : start + step])
    ]
    assert [event.choices[0].has_text() for event in events] == [True, True]
    assert reader.has_ended


@pytest.mark.parametrize(
    "line",
    [b"data: what\n", b"data: \xff\n", b'data: {"choices": 3}\n', b"x" * 17_000_000],
)
def test_other_streams_are_refused(line: bytes) -> None:
    with pytest.raises(EventsUnreadable):
        list(EventReader().feed(line))


def test_half_a_character_can_be_read() -> None:
    line = b'data: {"choices": [{"text": "\\ud83d"}]}\n'
    [event] = EventReader().feed(line)
    assert event.choices[0].text == "\ud83d"
