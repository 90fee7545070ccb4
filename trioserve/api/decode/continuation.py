"""Whether the model opens a new turn, or goes on with the last message."""

from __future__ import annotations

from ...errors import InvalidParameter


def check_continuation(adds_prompt: bool | None, continues: bool | None) -> None:
    """Refuse a request that both opens a new turn and continues the last one.

    Raises:
      InvalidParameter: both are requested.
    """
    if adds_prompt and continues:
        raise InvalidParameter(
            "continue_final_message", "cannot be combined with add_generation_prompt"
        )


def opens_turn(adds_prompt: bool | None, continues: bool | None) -> bool:
    """Return whether the assistant's turn is opened; not where a message goes on."""
    return not continues if adds_prompt is None else adds_prompt
