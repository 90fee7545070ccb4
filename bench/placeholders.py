"""Does a step cost the host more as outputs grow longer?

Question
  The history of outputs has placeholders for tokens that are still on the device. They
  are filled in later. vLLM once searched for the first of them from the front of each
  request's list, which took 10.9 ms a step at 60,000 tokens and 128 requests, so the
  GPU had to wait (#42938). Here placeholders are counted. How much time does a step of
  128 sequences cost the host as outputs grow?

Machine
  Any; no device and no model.

How to read it
  scheduler   one `schedule` and one `update`, with another step in flight.
  history     the work of the device's thread for a plug-in that needs all output tokens
              of all sequences: it fills in the tokens of the last step, and records
              the tokens of this step.
  forward     the defect: each sequence has a list with a placeholder at its end. The
              list is searched from the front by `list.index`, the fastest way in
              Python.
  backward    vLLM's repair: the same lists, searched from the end.
  Medians of the rounds' medians in ms; the lines of the first two should be flat. Each
  round has all lengths in a new order, and measures all kinds at each length.

    python bench/placeholders.py [--plot placeholders.png] [--json placeholders.json]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
import statistics
import time

from kit.options import add_outputs, read_positive
from kit.rounds import shuffle, take_medians
from kit.tables import write_markdown
import torch

from trioserve.model.sampling.launched import SampledIds
from trioserve.model.sampling.processors import LogitsProcessors
from trioserve.programs.bench.measuring.plot import add_legend, dress, open_figure
from trioserve.programs.bench.measuring.report import save
from trioserve.programs.bench.measuring.table import write_ratio
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.types.ids import SequenceId
from trioserve.types.logits import LogitsProcessor, LogitsRow
from trioserve.types.output import StepResult
from trioserve.types.plan import SlotStart, StepPlan
from trioserve.types.sampling import SamplingParams

NUM_SEQUENCES = 128
LENGTHS = (100, 1000, 5000, 10_000, 20_000, 40_000, 60_000)
BLOCK_SIZE = 16
PLACEHOLDER = -1

Step = Callable[[], None]


def open_scheduler(num_output: int) -> Step:
    """Return a step of a scheduler whose sequences have written so many tokens."""
    max_model_len = LENGTHS[-1] + 4096
    scheduler = Scheduler(
        num_blocks=NUM_SEQUENCES * max_model_len // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_num_seqs=NUM_SEQUENCES,
        max_num_batched_tokens=2**24,
        max_model_len=max_model_len,
        # The default of a server on a CPU; the scheduler learns the cost of steps.
        max_step_seconds=0.25,
    )
    for number in range(NUM_SEQUENCES):
        scheduler.add(
            Scheduled(
                sequence_id=SequenceId(number),
                prompt_token_ids=(number, 1, 2),
                sampling=SamplingParams(max_tokens=LENGTHS[-1] + 2048),
                seed=number,
                arrival=number,
            )
        )
    plan = scheduler.schedule()
    assert plan is not None
    # One step reports all tokens, so that the bench need not take thousands of steps.
    written = tuple(i % 49_000 for i in range(num_output))
    rows = (written,) * NUM_SEQUENCES
    scheduler.update(plan, StepResult(step_id=plan.step_id, sampled=rows))
    in_flight: deque[StepPlan] = deque()
    one_each = tuple((7,) for _ in range(NUM_SEQUENCES))

    def step() -> None:
        plan = scheduler.schedule()
        assert plan is not None
        in_flight.append(plan)
        if len(in_flight) == 2:
            plan = in_flight.popleft()
            result = StepResult(step_id=plan.step_id, sampled=one_each)
            scheduler.update(plan, result, seconds=0.02)

    return step


class Reader(LogitsProcessor):
    """A plug-in that needs all output tokens, and does nothing with them."""

    name = "reader"
    needs_output_token_ids = True

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        pass


def open_history(num_output: int) -> Step:
    """Return the work of a step for plug-ins that want the tokens of all sequences."""
    device = torch.device("cpu")
    processors = LogitsProcessors([Reader], vocab_size=8, device=device)
    for slot in range(NUM_SEQUENCES):
        processors.start(
            SlotStart(
                slot=slot,
                prompt_token_ids=(1, 2, 3),
                output_token_ids=(7,) * num_output,
                sampling=SamplingParams(logits_processors=(("reader", {}),)),
                seed=slot,
            )
        )
    scores = torch.zeros((NUM_SEQUENCES, 8))
    slots = list(range(NUM_SEQUENCES))
    count = num_output
    sampled = torch.full((NUM_SEQUENCES,), 7)

    def step() -> None:
        nonlocal count
        processors.apply(scores, slots, [count] * NUM_SEQUENCES)
        processors.append(slots, SampledIds(sampled))
        count += 1

    return step


class Scan:
    """Lists that are searched for the placeholders at their ends."""

    def __init__(self, num_output: int, *, forward: bool) -> None:
        written = [i % 49_000 for i in range(num_output)]
        self.outputs = [[*written, PLACEHOLDER] for _ in range(NUM_SEQUENCES)]
        self._find = self._find_forward if forward else self._find_backward

    def step(self) -> None:
        for output in self.outputs:
            output[self._find(output) :] = [7]
            output.append(PLACEHOLDER)

    @staticmethod
    def _find_forward(output: list[int]) -> int:
        return output.index(PLACEHOLDER)

    @staticmethod
    def _find_backward(output: list[int]) -> int:
        index = len(output)
        while output[index - 1] == PLACEHOLDER:
            index -= 1
        return index


KINDS: dict[str, Callable[[int], Step]] = {
    "scheduler": open_scheduler,
    "history": open_history,
    "forward": lambda num_output: Scan(num_output, forward=True).step,
    "backward": lambda num_output: Scan(num_output, forward=False).step,
}


def measure(num_output: int, steps: int) -> dict[str, float]:
    """Return the median of each kind's milliseconds a step."""
    medians = {}
    for kind, make in KINDS.items():
        step = make(num_output)
        # The first steps plan the written tokens, which are not computed yet.
        for _ in range(4):
            step()
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            times.append(1000 * (time.perf_counter() - begin))
        medians[kind] = statistics.median(times)
    return medians


def save_plot(results: dict[int, dict[str, float]], path: Path) -> None:
    """Draw a line for each kind, into a PNG file."""
    with open_figure(path, (7, 4.2)) as figure:
        axes = figure.subplots()
        for kind in KINDS:
            points = [results[length][kind] for length in LENGTHS]
            style = "--" if kind in ("forward", "backward") else "-"
            axes.plot(LENGTHS, points, style, marker="o", label=kind)
        dress(axes, "The cost of placeholders: counted, and searched")
        axes.set_yscale("log")
        axes.set_xlabel("tokens that each of 128 sequences has written")
        axes.set_ylabel("ms of the host a step (median)")
        add_legend(figure)


def write_report(results: dict[int, dict[str, float]]) -> Iterator[str]:
    """Write the table, and how much each kind grows from its first row to its last."""
    yield f"{NUM_SEQUENCES} sequences, median ms of the host a step"
    rows = [["tokens written", *KINDS]]
    for length in LENGTHS:
        rows.append([str(length)] + [f"{results[length][kind]:.3f}" for kind in KINDS])
    yield from write_markdown(rows)
    first, last = LENGTHS[0], LENGTHS[-1]
    for kind in KINDS:
        ratio = write_ratio(results[last][kind], results[first][kind])
        yield f"{kind}: {ratio} times at {last} tokens what it takes at {first}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=read_positive, default=5)
    parser.add_argument("--steps", type=read_positive, default=48)
    add_outputs(parser)
    options = parser.parse_args()
    rounds: dict[int, list[dict[str, float]]] = {length: [] for length in LENGTHS}
    for _, length in shuffle(LENGTHS, options.rounds):
        rounds[length].append(measure(length, options.steps))
    results = {length: take_medians(rounds[length]) for length in LENGTHS}
    print("\n".join(write_report(results)))
    save(options.json, results)
    if options.plot is not None:
        save_plot(results, options.plot)


if __name__ == "__main__":
    main()
