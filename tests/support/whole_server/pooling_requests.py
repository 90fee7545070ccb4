"""Requests of a server that embeds texts."""

from __future__ import annotations

from dataclasses import dataclass
import json

from .deliveries import draw_delivery
from .dice import Dice
from .plans import RequestPlan

# No model of a history reads so many tokens.
_TOO_LONG = 200


@dataclass(frozen=True, kw_only=True)
class EmbeddingPlan(RequestPlan):
    """Texts, or one conversation with the text as its only message.

    Args:
      texts: one if it is a conversation.
      is_too_long: a text is longer than the model reads.
    """

    texts: tuple[str, ...]
    is_chat: bool
    is_too_long: bool
    priority: int

    @property
    def path(self) -> str:
        return "/v1/embeddings"

    def write_body(self) -> bytes:
        fields: dict[str, object] = {"priority": self.priority}
        if self.is_chat:
            fields["messages"] = [{"role": "user", "content": self.texts[0]}]
        else:
            fields["input"] = list(self.texts)
        return json.dumps(fields).encode()

    @property
    def read_texts(self) -> list[str]:
        """The texts that the model reads."""
        if not self.is_chat:
            return list(self.texts)
        return [f"<|im_start|>user\n{self.texts[0]}<|im_end|>\n"]


def draw_embedding(dice: Dice, number: int, *, is_http2: bool) -> EmbeddingPlan:
    """Draw a request."""
    draw = dice.random
    is_chat = dice.chance(0.3)
    # Long batches take several steps.
    num_texts = 1 if is_chat else draw.choice([1, 2, draw.randint(3, 40)])
    is_too_long = dice.mishap(0.05)
    texts = [_draw_text(dice, number, index) for index in range(num_texts)]
    if is_too_long:
        texts[draw.randrange(num_texts)] = "abc " * _TOO_LONG
    return EmbeddingPlan(
        texts=tuple(texts),
        is_chat=is_chat,
        is_too_long=is_too_long,
        priority=draw.choice([0, 0, 1, -1]),
        **draw_delivery(dice, number, is_http2=is_http2, resume_seconds=0.0),
    )


def _draw_text(dice: Dice, number: int, index: int) -> str:
    return f"{number} {index} " + "the dog sleeps " * dice.random.randint(0, 8)
