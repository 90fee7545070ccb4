"""Which library should decode requests?

Question
  msgspec or pydantic? A body is decoded in one call that holds the GIL, in any thread,
  so every stream pauses for that time. There are three bodies: a completion with 20 MB
  of text, one with 20 MB of token ids, and a chat of 200 messages. Both libraries check
  the same types and lengths: msgspec with trioserve's own requests, pydantic with the
  models below.

Machine
  Any; one core is used. Needs pydantic, which trioserve itself does not.

How to read the answer
  Medians over rounds in which the two take turns; a ratio is pydantic's time over
  msgspec's. Read the milliseconds first: every other stream waits for that time.

    python bench/schema.py [--rounds 7]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
import random
import statistics
from typing import Annotated, Any, Literal

from kit.options import read_positive
from kit.rounds import take_turns, time_calls
import msgspec
import pydantic

from trioserve.api.chat.body import CHAT_BODY
from trioserve.api.completions.body import COMPLETION_BODY

BODY_BYTES = 20_000_000
NUM_MESSAGES = 200

TokenId = Annotated[int, pydantic.Field(strict=True, ge=0, le=2**31 - 1)]
Text = Annotated[str, pydantic.Field(strict=True, min_length=1)]


class Sampling(pydantic.BaseModel):
    """The fields that both kinds of requests share, as in trioserve's requests."""

    model: str | None = None
    stream: bool | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None


class Completion(Sampling):
    """The body of /v1/completions."""

    prompt: Text | list[TokenId] | list[Text] | list[list[TokenId]]


class Part(pydantic.BaseModel):
    """A part of a message."""

    type: str
    text: str | None = None


class Message(pydantic.BaseModel):
    """A message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None


class Chat(Sampling):
    """The body of /v1/chat/completions."""

    messages: list[Message]


def build_bodies() -> dict[str, bytes]:
    """Make the three bodies, the same in every run."""
    draw = random.Random(0)
    words = ["lorem", "ipsum", "dolor", "sit", "amet,", "na\u00efve", "caf\u00e9"]
    text = " ".join(draw.choices(words, k=BODY_BYTES // 6))
    # Six digits and a comma each.
    ids = [draw.randrange(100_000, 200_000) for _ in range(BODY_BYTES // 7)]
    roles = ("user", "assistant")
    messages = [
        {"role": roles[i % 2], "content": " ".join(draw.choices(words, k=60))}
        for i in range(NUM_MESSAGES)
    ]
    sampling = {"model": "m", "temperature": 0.5, "max_tokens": 64, "stream": True}
    encode = msgspec.json.encode
    return {
        "text": encode({"prompt": text, **sampling}),
        "token_ids": encode({"prompt": ids, **sampling}),
        "chat": encode({"messages": messages, **sampling}),
    }


def compare_decoding(rounds: int, bodies: dict[str, bytes]) -> Iterator[str]:
    """Yield a line for each body and library, and one for their ratio."""
    for name, body in bodies.items():
        is_chat = name == "chat"
        ours: Any = (CHAT_BODY if is_chat else COMPLETION_BODY).decode
        theirs = (Chat if is_chat else Completion).model_validate_json
        # A small body is decoded many times a round.
        repeat = 200 if is_chat else 1
        seconds = take_turns(
            rounds,
            {
                "msgspec": partial(time_calls, partial(ours, body), repeat),
                "pydantic": partial(time_calls, partial(theirs, body), repeat),
            },
        )
        medians = {each: statistics.median(taken) for each, taken in seconds.items()}
        for library, value in medians.items():
            yield f"decode_{name}_{library}: {value * 1e3:.3f} ms"
        ratio = medians["pydantic"] / medians["msgspec"]
        yield f"decode_{name}_ratio: {ratio:.1f} x ({len(body) / 1e6:.2f} MB)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive, default=7)
    options = parser.parse_args()
    for line in compare_decoding(options.rounds, build_bodies()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
