"""Requests of a server that generates: chats and completions."""

from __future__ import annotations

from dataclasses import dataclass
import json
from typing import Literal

from .deliveries import draw_delivery
from .dice import Dice
from .forms import FORMS, Form
from .plans import RequestPlan

# Prompts begin with some of these, so that they share blocks.
_PREFIXES = (
    "The quick brown fox jumps over the lazy dog. ",
    "The quick brown fox sleeps. ",
    "Once upon a time ",
    "",
)

# The longest prompt has about 50 tokens, so the longest answer fits behind it.
_MAX_TOKENS = 30

Fault = Literal["plugin", "refused", "raises"]
_FAULTS: tuple[Fault, ...] = ("plugin", "refused", "raises")


@dataclass(frozen=True, kw_only=True)
class TextPlan(RequestPlan):
    """A chat or a completion.

    Args:
      stop: a stop string, which the answer may contain.
      form: that the answer must have.
      fault: what breaks while it is answered: "plugin" in the device at some token,
        "refused" and "raises" when a plug-in reads its arguments.
      fails_at: the token that "plugin" breaks.
    """

    is_chat: bool
    is_stream: bool
    reports_usage: bool
    text: str
    n: int
    max_tokens: int
    seed: int
    stop: str | None
    form: Form | None
    priority: int
    max_queue_seconds: float | None
    fault: Fault | None
    fails_at: int

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def write_body(self) -> bytes:
        fields: dict[str, object] = {
            "n": self.n,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "stream": self.is_stream,
            "priority": self.priority,
        }
        if self.is_chat:
            fields["messages"] = [{"role": "user", "content": self.text}]
        else:
            fields["prompt"] = self.text
        if self.stop is not None:
            fields["stop"] = self.stop
        if self.form is not None:
            fields |= self.form.write_field()
        if self.is_stream and self.reports_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.max_queue_seconds is not None:
            fields["max_queue_seconds"] = self.max_queue_seconds
        if self.fault in ("refused", "raises"):
            fields["logits_processors"] = {"breaking": {"how": self.fault}}
        return json.dumps(fields).encode()


def draw_text_request(
    dice: Dice, number: int, *, seed: int, is_http2: bool, resume_seconds: float
) -> TextPlan:
    """Draw a request.

    Args:
      seed: of the history.
      resume_seconds: of the server; 0 for no streams that are taken up again.
    """
    draw = dice.random
    fault = draw.choice(_FAULTS)
    form = draw.choice(FORMS) if dice.chance(0.15) else None
    most = draw.choice([1, 5, draw.randint(1, _MAX_TOKENS)])
    stop = draw.choice("0123456789abcdef") if dice.chance(0.3) else None
    is_stream = dice.chance(0.6)
    return TextPlan(
        is_chat=dice.chance(0.5),
        is_stream=is_stream,
        reports_usage=dice.chance(0.5),
        text=draw.choice(_PREFIXES) + "abc " * draw.randint(0, 5) + f"{number}",
        n=draw.choice([1, 1, 1, 2, 3]),
        max_tokens=most if form is None else draw.choice([most, _MAX_TOKENS]),
        # Room for n sequences between two requests.
        seed=1000 * seed + 10 * number,
        stop=stop if form is None else None,
        form=form,
        priority=draw.choice([0, 0, 1, -1]),
        max_queue_seconds=draw.uniform(0.01, 0.5) if dice.mishap(0.1) else None,
        fault=fault if dice.mishap(0.08) and form is None else None,
        fails_at=draw.randint(0, 10),
        **draw_delivery(
            dice,
            number,
            is_http2=is_http2,
            resume_seconds=resume_seconds if is_stream else 0.0,
        ),
    )
