"""Which sampling makes the default model presentable?

Question
  A small model with 4-bit weights begins to repeat itself, above all in greedy answers, and
  then it writes to the end of its context. Of 50 everyday questions, how many answers hit
  a limit of 500 tokens, how many repeat themselves, and how many of the simple questions
  of fact are answered rightly?

      nice python bench/default_sampling.py --run temperature=0 \\
          --run temperature=0,repetition_penalty=1.1

  Each --run has fields of sampling. All questions are asked at once, through one engine.

Machine
  Any; the figures do not depend on its speed.

How to read the answer
  length       answers that hit the limit.
  repetition   answers that the default model's --stop-repetition has ended. Nearly all of
               them would hit the limit without it.
  sentences    answers with a sentence of four words or more that stands there three times
               or more, whatever stands between.
  right        answers with the expected word, of those questions that expect one.
  tokens       mean length of an answer.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
import re
import statistics

from kit.options import make_parser, read_output, read_positive
from kit.process import tell
from kit.runs import run_and_save
from kit.tables import write_markdown
import trio

import trioserve
from trioserve.config import DEFAULT_MODEL, DEFAULT_MODEL_REPETITION
from trioserve.errors import TrioserveError
from trioserve.programs.bench.measuring.report import describe_machine, write_now

# A question, and a word of each right answer; "" where many answers are right.
QUESTIONS: tuple[tuple[str, str], ...] = (
    ("What is the sea?", ""),
    ("What is the capital of France?", "paris"),
    ("What is the capital of Italy?", "rome"),
    ("What is the largest planet of the solar system?", "jupiter"),
    ("Who wrote Romeo and Juliet?", "shakespeare"),
    ("Which language do people speak in Brazil?", "portuguese"),
    ("How many days does a week have?", "seven|7"),
    ("What colour is the sky on a clear day?", "blue"),
    ("What do bees make?", "honey"),
    ("At which temperature does water boil?", "100|212"),
    ("What is the opposite of hot?", "cold"),
    ("Which animal says meow?", "cat"),
    ("On which continent is Egypt?", "africa"),
    ("What is the chemical formula of water?", "h2o|h₂o"),
    ("Who painted the Mona Lisa?", "leonardo|vinci"),
    ("Which planet do we live on?", "earth"),
    ("What is the currency of Japan?", "yen"),
    ("How many legs does a spider have?", "eight|8"),
    ("Which organ pumps blood?", "heart"),
    ("What is 2 plus 2?", "4|four"),
    ("What is frozen water called?", "ice"),
    ("Hello! How are you?", ""),
    ("Tell me a joke.", ""),
    ("Give me a recipe for pancakes.", ""),
    ("How do I boil an egg?", ""),
    ("Write a short poem about autumn.", ""),
    ("What should I do on a rainy day?", ""),
    ("Why is the sky blue?", ""),
    ("How does a bicycle stay upright?", ""),
    ("Explain photosynthesis to a child.", ""),
    ("Write an email to my boss: I am ill today.", ""),
    ("What are good names for a cat?", ""),
    ("How can I sleep better?", ""),
    ("List five fruits.", ""),
    ("Plan a weekend in Rome for two.", ""),
    ("What is the difference between a frog and a toad?", ""),
    ("How do I learn to play the guitar?", ""),
    ("Write a Python function that adds two numbers.", ""),
    ("What is a computer?", ""),
    ("Tell me a bedtime story about a dragon.", ""),
    ("How do vaccines work?", ""),
    ("What can I cook with rice and tomatoes?", ""),
    ("Why do leaves fall in autumn?", ""),
    ("Give me three tips for a job interview.", ""),
    ("How do I remove a coffee stain?", ""),
    ("What is money?", ""),
    ("Describe the city of London.", ""),
    ("How do aeroplanes fly?", ""),
    ("What is a good present for my mother?", ""),
    ("Translate 'good morning' into Spanish.", "buenos"),
)

# The end of a sentence, or of a line.
_END = re.compile(r"[.!?](?:\s|$)|\n")
# Numbers and signs before a sentence of a list.
_MARK = re.compile(r"^[\W\d_]+")
_SHORTEST_SENTENCE = 4
_TIMES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    question: str
    expected: str
    text: str
    num_tokens: int
    finish_reason: str

    @property
    def is_right(self) -> bool:
        return any(word in self.text.lower() for word in self.expected.split("|"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One setting."""

    label: str
    length: int
    repetition: int
    sentences: int
    right: int
    tokens: float
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole run, as --json writes it."""

    created: str
    machine: str
    max_tokens: int
    settings: tuple[Figures, ...]


async def measure(
    settings: Sequence[Mapping[str, float]], max_tokens: int
) -> tuple[Figures, ...]:
    """Ask all questions with each setting, one setting after the other."""
    found = []
    async with trioserve.open_engine(
        DEFAULT_MODEL,
        # The settings are the only defaults.
        generation_config="none",
        stop_repetition=DEFAULT_MODEL_REPETITION,
    ) as engine:
        for setting in settings:
            label = ", ".join(f"{name} {value:g}" for name, value in setting.items())
            tell(label)
            found.append(summarise(label, await ask_all(engine, setting, max_tokens)))
    return tuple(found)


async def ask_all(
    engine: trioserve.TextEngine, sampling: Mapping[str, float], max_tokens: int
) -> list[Answer]:
    answers: dict[int, Answer] = {}

    async def ask(number: int, question: str, expected: str) -> None:
        async with engine.open_chat(
            [{"role": "user", "content": question}],
            max_tokens=max_tokens,
            seed=number,
            **sampling,
        ) as stream:
            [whole] = await stream.collect()
        answers[number] = Answer(
            question=question,
            expected=expected,
            text=whole.text,
            num_tokens=len(whole.token_ids),
            finish_reason=whole.finish_reason or "",
        )

    async with trio.open_nursery() as nursery:
        for number, pair in enumerate(QUESTIONS):
            nursery.start_soon(ask, number, *pair)
    return [answers[number] for number in range(len(QUESTIONS))]


def summarise(label: str, answers: Sequence[Answer]) -> Figures:
    reasons = Counter(each.finish_reason for each in answers)
    return Figures(
        label=label,
        length=reasons["length"],
        repetition=reasons["repetition"],
        sentences=sum(repeats_a_sentence(each.text) for each in answers),
        right=sum(each.is_right for each in answers if each.expected),
        tokens=statistics.fmean(each.num_tokens for each in answers),
        answers=tuple(answers),
    )


def repeats_a_sentence(text: str) -> bool:
    """Return whether a sentence stands there three times or more."""
    sentences = (_MARK.sub("", part).lower() for part in _END.split(text))
    counts = Counter(
        each for each in sentences if len(each.split()) >= _SHORTEST_SENTENCE
    )
    return any(count >= _TIMES for count in counts.values())


# ---- the table ----------------------------------------------------------------------


def render(report: Report) -> str:
    """Write the report as Markdown: the table, and a note."""
    note = f"{report.machine}; {report.created}; at most {report.max_tokens} tokens"
    return "\n".join([*write_markdown(build_table(report)), "", note])


def build_table(report: Report) -> Iterator[list[str]]:
    """Lay out a row for each setting."""
    num_expected = sum(bool(expected) for _, expected in QUESTIONS)
    yield ["sampling", "length", "repetition", "sentences", "right", "tokens"]
    for each in report.settings:
        yield [
            each.label,
            *map(str, (each.length, each.repetition, each.sentences)),
            f"{each.right} of {num_expected}",
            f"{each.tokens:.0f}",
        ]


# ---- the command line ---------------------------------------------------------------


def read_sampling(text: str) -> dict[str, float]:
    """Read NAME=VALUE,NAME=VALUE."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {name: float(value) for name, value in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError("must be NAME=VALUE,NAME=VALUE") from None


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--run",
        action="append",
        type=read_sampling,
        required=True,
        metavar="NAME=VALUE,...",
        help="the sampling of one setting",
    )
    add("--max-tokens", type=read_positive, default=500)
    add("--json", type=read_output, metavar="FILE", help="save all answers, too")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> Report:
    """Run the bench as the options say.

    Raises:
      TrioserveError, TypeError: a setting is not possible.
    """
    return Report(
        created=write_now(),
        machine=describe_machine(),
        max_tokens=options.max_tokens,
        settings=trio.run(measure, options.run, options.max_tokens),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options = parse_arguments(arguments)
    expected = (TrioserveError, TypeError)
    return run_and_save(partial(run, options), render, expected, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
