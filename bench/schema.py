"""Which library should decode requests, and what does a streamed chunk cost?

Question: msgspec or pydantic? A body is decoded in one call that holds the GIL, so
that its time is a pause of every stream, in whichever thread it runs. Three bodies:
a completion with 20 MB of text, one with 20 MB of token ids, and a chat of 200
messages. Both sides check the same types and lengths: for msgspec trioserve's own
requests, for pydantic the models below. Then one chunk of a streamed chat: with its
prefix encoded beforehand (what trioserve does), as a whole msgspec struct, and as a
pydantic model.

Machine: any; one core is used. Needs pydantic, which trioserve itself does not.

How to read it: medians over alternating rounds, so that a busy machine slows both
sides; "x" is how many times as long pydantic takes. Read the milliseconds first: they
are how long every other stream waits for one such request.

    python bench/schema.py [--rounds 7]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import random
import statistics
import time
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from trioserve.http.decode.requests import ChatRequest, CompletionRequest
from trioserve.http.decode.schema import decode_body
from trioserve.http.wire.chunks import ChatChunks, StreamHeader
from trioserve.http.wire.responses import Usage

if TYPE_CHECKING:
    import pydantic
else:
    try:
        import pydantic
    except ImportError:
        raise SystemExit(
            "bench/schema.py compares with pydantic: pip install pydantic"
        ) from None

BODY_BYTES = 20_000_000
NUM_MESSAGES = 200
CHUNKS_PER_ROUND = 20_000

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


class Delta(pydantic.BaseModel):
    """What a chunk adds."""

    content: str


class ChunkChoice(pydantic.BaseModel):
    """A chunk's choice."""

    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: str | None = None


class Chunk(pydantic.BaseModel):
    """A chunk of a streamed chat."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]


def measure(rounds: int, **calls: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each call; the calls take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


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


def compare_decoding(rounds: int) -> None:
    for name, body in build_bodies().items():
        is_chat = name == "chat"
        ours = ChatRequest if is_chat else CompletionRequest
        theirs = Chat if is_chat else Completion
        # A small body is decoded many times a round.
        repeat = 200 if is_chat else 1

        def decode_ours() -> None:
            for _ in range(repeat):
                decode_body(ours, body)

        def decode_theirs() -> None:
            for _ in range(repeat):
                theirs.model_validate_json(body)

        seconds = measure(rounds, msgspec=decode_ours, pydantic=decode_theirs)
        for library, value in seconds.items():
            print(f"decode_{name}_{library}: {value / repeat * 1e3:.3f} ms")
        ratio = seconds["pydantic"] / seconds["msgspec"]
        print(f"decode_{name}_ratio: {ratio:.1f} x ({len(body) / 1e6:.2f} MB)")


def compare_chunks(rounds: int) -> None:
    header = StreamHeader(id="chatcmpl-" + "0" * 32, created=1, model="m")
    chunks = ChatChunks(header)
    usage = Usage.of(num_prompt_tokens=9, num_output_tokens=9, num_cached_tokens=0)

    def write_cut() -> None:
        for _ in range(CHUNKS_PER_ROUND):
            chunks.text(" token")

    def write_whole() -> None:
        for _ in range(CHUNKS_PER_ROUND):
            chunks.text(" token", usage=usage)

    def write_pydantic() -> None:
        for _ in range(CHUNKS_PER_ROUND):
            choice = ChunkChoice(index=0, delta=Delta(content=" token"))
            chunk = Chunk(id=header.id, created=1, model="m", choices=[choice])
            f"data: {chunk.model_dump_json()}\n\n".encode()

    seconds = measure(rounds, cut=write_cut, whole=write_whole, pydantic=write_pydantic)
    for name, value in seconds.items():
        print(f"chunk_{name}: {value / CHUNKS_PER_ROUND * 1e6:.2f} us")
    print(f"chunk_ratio: {seconds['pydantic'] / seconds['cut']:.1f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    compare_decoding(arguments.rounds)
    compare_chunks(arguments.rounds)


if __name__ == "__main__":
    main()
