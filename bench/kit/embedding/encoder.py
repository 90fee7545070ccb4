"""sentence-transformers in a process of its own.

It shares neither memory nor threads with the server or the load generator. open_encoder
runs it, as `python -m kit.embedding.encoder MODEL MAX_MODEL_LEN NUM_THREADS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
import importlib.util
import os
import sys
import time
from typing import Any, BinaryIO, Literal, TypeVar

from kit.embedding.cases import Load, Vocabulary
from kit.process import BENCH_FOLDER, Child, find_on_path, open_child
import msgspec

from trioserve.programs.bench.measuring.texts import WORDS

# sentence-transformers' own default.
ENCODE_BATCH_SIZE = 32

# For a good guess, calls are repeated until they took this long together.
QUICK_SECONDS = 1.0

AnswerT = TypeVar("AnswerT")


class Question(msgspec.Struct, kw_only=True):
    """A line that the process reads."""

    task: Literal["encode", "forward", "vectors"]
    texts: list[str]


class Greeting(msgspec.Struct, kw_only=True):
    """The first line that the process writes, once the model is loaded."""

    about: str
    vocabulary: Vocabulary


class Timing(msgspec.Struct, kw_only=True):
    """The answer to encode and forward."""

    seconds: float


class Vectors(msgspec.Struct, kw_only=True):
    """The answer to vectors."""

    vectors: list[list[float]]


# ---- the parent's side --------------------------------------------------------------


class Encoder:
    """The parent's handle of the process.

    Attributes:
      about: versions of the libraries, and the dtype.
    """

    def __init__(self, child: Child, greeting: Greeting) -> None:
        self._child = child
        self.about = greeting.about
        self.vocabulary = greeting.vocabulary

    async def time(self, task: Literal["encode", "forward"], texts: list[str]) -> float:
        """Encode texts, or run only the model on them; return the seconds."""
        return (await self._ask(task, texts, Timing)).seconds

    async def embed(self, texts: list[str]) -> list[list[float]]:
        return (await self._ask("vectors", texts, Vectors)).vectors

    async def guess_seconds(self, texts: list[str]) -> float:
        """Guess the time to encode these texts after a warm-up."""
        # The first calls take many times as long.
        guesses: list[float] = []
        while len(guesses) < 5 and sum(guesses) < QUICK_SECONDS:
            guesses.append(await self.time("encode", texts))
        return min(guesses)

    async def _ask(
        self,
        task: Literal["encode", "forward", "vectors"],
        texts: list[str],
        kind: type[AnswerT],
    ) -> AnswerT:
        line = msgspec.json.encode(Question(task=task, texts=texts))
        return msgspec.json.decode(await self._child.ask(line), type=kind)


def write_encoder_command(load: Load) -> list[str]:
    """Write the command that runs this module as the process."""
    command = [sys.executable, "-m", "kit.embedding.encoder", load.model]
    return [*command, str(load.max_model_len), str(load.num_threads)]


def check_installed() -> None:
    """Refuse a run without sentence-transformers.

    Raises:
      ValueError: it is not installed.
    """
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ValueError(
            "sentence-transformers, the system to compare with, is missing: "
            "pip install sentence-transformers"
        )


@asynccontextmanager
async def open_encoder(command: Sequence[str]) -> AsyncIterator[Encoder]:
    """Run sentence-transformers' process until the block is left."""
    async with open_child(
        command,
        name="the process of sentence-transformers",
        environment=find_on_path(BENCH_FOLDER),
    ) as child:
        greeting = msgspec.json.decode(await child.read(), type=Greeting)
        yield Encoder(child, greeting)


# ---- the process's side -------------------------------------------------------------


def serve_encoder(load: Load) -> None:
    """Load the model, write a greeting, and answer questions until the input ends."""
    with os.fdopen(os.dup(1), "wb") as answers:
        # Libraries may print to stdout; their lines go to stderr.
        os.dup2(2, 1)
        encoder = LocalEncoder(load)
        write_line(answers, encoder.greet())
        for line in sys.stdin.buffer:
            question = msgspec.json.decode(line, type=Question)
            write_line(answers, encoder.answer(question))


def write_line(file: BinaryIO, message: msgspec.Struct) -> None:
    file.write(msgspec.json.encode(message) + b"\n")
    file.flush()


class LocalEncoder:
    """The model in this process."""

    def __init__(self, load: Load) -> None:
        # The import takes five seconds, and only this process needs it.
        from sentence_transformers import SentenceTransformer
        import torch
        from transformers.utils import logging

        from trioserve.weights import resolve_weights

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        torch.set_num_threads(load.num_threads)
        folder = resolve_weights(load.model).folder
        self._encoder = SentenceTransformer(str(folder), device="cpu")
        # The server has the same limit.
        self._encoder.max_seq_length = load.max_model_len
        self._model: Any = self._encoder[0].auto_model

    def greet(self) -> Greeting:
        # Each word is counted behind another one: some tokenizers encode the first
        # word of a text in another way.
        alone = self._count_tokens("time")
        return Greeting(
            about=self._describe(),
            vocabulary=Vocabulary(
                words=[
                    word
                    for word in WORDS
                    if self._count_tokens(f"time {word}") == alone + 1
                ],
                num_special_tokens=self._count_tokens(""),
            ),
        )

    def answer(self, question: Question) -> Timing | Vectors:
        if question.task == "encode":
            return Timing(seconds=self._time_encode(question.texts))
        if question.task == "forward":
            return Timing(seconds=self._time_forward(question.texts))
        return Vectors(vectors=self._encode(question.texts).tolist())

    def _count_tokens(self, text: str) -> int:
        return len(self._encoder.tokenizer(text)["input_ids"])

    def _describe(self) -> str:
        from importlib.metadata import version

        names = ("sentence-transformers", "transformers", "torch")
        dtype = str(self._model.dtype).removeprefix("torch.")
        return ", ".join((*(f"{name} {version(name)}" for name in names), dtype))

    def _encode(self, texts: list[str]) -> Any:
        return self._encoder.encode(
            texts, batch_size=ENCODE_BATCH_SIZE, show_progress_bar=False
        )

    def _time_encode(self, texts: list[str]) -> float:
        began = time.perf_counter()
        self._encode(texts)
        return time.perf_counter() - began

    def _time_forward(self, texts: list[str]) -> float:
        import torch

        tokens = self._encoder.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            began = time.perf_counter()
            self._model(**tokens)
            return time.perf_counter() - began


def main(arguments: Sequence[str]) -> None:
    model, max_model_len, num_threads = arguments
    serve_encoder(
        Load(
            model=model, max_model_len=int(max_model_len), num_threads=int(num_threads)
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
