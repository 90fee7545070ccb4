"""How much time does it take to encode one chunk of a streamed chat?

Question
  How long does each of three ways take?
      cut        only the text is encoded, the rest beforehand: trioserve's way for
                 chunks of plain text
      whole      a msgspec struct is encoded: its way for all other chunks
      pydantic   a pydantic model is encoded

Machine
  Any; one core is used. Needs pydantic, which trioserve itself does not.

How to read the answer
  Microseconds a chunk, medians over rounds in which the three take turns. chunk_ratio
  is the time of "pydantic" over the time of "cut".

    python bench/chunk_encoding.py [--rounds 7]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
import statistics

from kit.options import read_positive
from kit.rounds import take_turns, time_calls
import pydantic

from trioserve.api.chat.events import ChatChunks
from trioserve.api.shared.chunks import StreamHeader
from trioserve.http.record.usage import Usage

CHUNKS_PER_ROUND = 20_000


class Delta(pydantic.BaseModel):
    """The text of a chunk."""

    content: str


class ChunkChoice(pydantic.BaseModel):
    """The choice of a chunk."""

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


def compare_encoding(num_rounds: int, num_chunks: int) -> Iterator[str]:
    """Yield a line for each way, and one for the ratio of "pydantic" to "cut"."""
    header = StreamHeader(id="chatcmpl-" + "0" * 32, created=1, model="m")
    chunks = ChatChunks(header)
    usage = Usage.of(num_prompt_tokens=9, num_output_tokens=9, num_cached_tokens=0)

    def write_pydantic() -> bytes:
        choice = ChunkChoice(index=0, delta=Delta(content=" token"))
        chunk = Chunk(id=header.id, created=1, model="m", choices=[choice])
        return f"data: {chunk.model_dump_json()}\n\n".encode()

    ways: dict[str, Callable[[], object]] = {
        "cut": partial(chunks.text, " token"),
        "whole": partial(chunks.text, " token", usage=usage),
        "pydantic": write_pydantic,
    }
    calls = {name: partial(time_calls, way, num_chunks) for name, way in ways.items()}
    seconds = take_turns(num_rounds, calls)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    for name, value in medians.items():
        yield f"chunk_{name}: {value * 1e6:.2f} us"
    yield f"chunk_ratio: {medians['pydantic'] / medians['cut']:.1f} x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive, default=7)
    options = parser.parse_args()
    print("\n".join(compare_encoding(options.rounds, CHUNKS_PER_ROUND)))


if __name__ == "__main__":
    main()
