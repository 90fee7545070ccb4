"""Joining the deltas of a sequence: text, and the pieces of its tool calls."""

from __future__ import annotations

from trioserve.types.output import TextDelta, ToolCallDelta


def test_pieces_of_a_call_are_joined_by_its_index() -> None:
    """A joined delta has one piece of each call, in the order of the calls."""
    first = ToolCallDelta(index=0, id="call_a", name="read", arguments='{"pa')
    rest = ToolCallDelta(index=0, arguments='th": 1}')
    second = ToolCallDelta(index=1, id="call_b", name="write")
    arguments = ToolCallDelta(index=1, arguments="{}")

    joined = TextDelta.join(
        [
            TextDelta(text="Wait.", tool_calls=(first,)),
            TextDelta(tool_calls=(rest, second)),
            TextDelta(tool_calls=(arguments,), finish_reason="stop"),
        ]
    )

    assert joined == TextDelta(
        text="Wait.",
        tool_calls=(
            ToolCallDelta(index=0, id="call_a", name="read", arguments='{"path": 1}'),
            ToolCallDelta(index=1, id="call_b", name="write", arguments="{}"),
        ),
        finish_reason="stop",
    )


def test_joining_in_two_steps_is_joining_at_once() -> None:
    """Deltas of a slow reader may be joined again and again."""
    deltas = [
        TextDelta(tool_calls=(ToolCallDelta(index=0, id="call_a", name="read"),)),
        TextDelta(tool_calls=(ToolCallDelta(index=0, arguments="{"),)),
        TextDelta(text="Done.", tool_calls=(ToolCallDelta(index=0, arguments="}"),)),
    ]

    in_two_steps = TextDelta.join([TextDelta.join(deltas[:2]), deltas[2]])

    assert in_two_steps == TextDelta.join(deltas)
