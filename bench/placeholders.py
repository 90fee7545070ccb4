"""Does a step cost more the longer outputs already are?

Question
  Tokens that are still on the device have to be filled in where somebody keeps the
  history of outputs. vLLM once looked for the first of them from the front of each
  request's list, which took 10.9 ms a step at 60,000 tokens and 128 requests and starved
  the GPU (#42938). Here they are counted. What does a step of 128 sequences cost the host
  as outputs grow?

Machine
  Any; no device and no model.

How to read it
  scheduler   one `schedule` and one `update`, with another step in flight.
  history     what the device's thread does for a plug-in that wants all output tokens of
              all sequences: fill in the last step's, take note of this one's.
  forward     stands for the defect: a list with a placeholder at its end each, searched
              from the front by `list.index`, the fastest way that Python has.
  backward    how it was mended: searched from the end.
  Medians of the rounds' medians in ms; the lines of the first two are to be flat. In
  each round all lengths are visited in another order, and all kinds at each.

    python bench/placeholders.py [--plot placeholders.png] [--json placeholders.json]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
import json
from pathlib import Path
import random
import statistics
import sys
import time

import torch

from trioserve.model.sampling.processors import LogitsProcessors
from trioserve.model.sampling.sampled import SampledIds
from trioserve.scheduler import Scheduler, Sequence as Scheduled
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
        # As a server on a CPU; the cost of each step is learned.
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
    # A device that tells them all at once spares us the steps.
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
    """Wants every token and does nothing with them."""

    name = "reader"
    needs_output_token_ids = True

    def apply(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        pass


def open_history(num_output: int) -> Step:
    """Return what a step does for plug-ins that want the tokens of all sequences."""
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
        # Of the first ones, tokens are planned that nobody has computed yet.
        for _ in range(4):
            step()
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            step()
            times.append(1000 * (time.perf_counter() - begin))
        medians[kind] = statistics.median(times)
    return medians


def draw(results: dict[int, dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    for kind in KINDS:
        points = [results[length][kind] for length in LENGTHS]
        style = "--" if kind in ("forward", "backward") else "-"
        axes.plot(LENGTHS, points, style, marker="o", label=kind)
    axes.set_yscale("log")
    axes.set_xlabel("tokens that each of 128 sequences has written")
    axes.set_ylabel("ms of the host a step (median)")
    axes.set_title("What placeholders cost: counted, and searched")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(KINDS))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    rounds: dict[int, list[dict[str, float]]] = {length: [] for length in LENGTHS}
    chance = random.Random(0)
    for _ in range(options.rounds):
        for length in chance.sample(LENGTHS, len(LENGTHS)):
            rounds[length].append(measure(length, options.steps))
    results = {
        length: {
            kind: statistics.median(figures[kind] for figures in rounds[length])
            for kind in KINDS
        }
        for length in LENGTHS
    }
    print(f"{NUM_SEQUENCES} sequences, median ms of the host a step")
    print("| tokens written | " + " | ".join(KINDS) + " |")
    print("| --- |" + " --- |" * len(KINDS))
    for length in LENGTHS:
        cells = " | ".join(f"{results[length][kind]:.3f}" for kind in KINDS)
        print(f"| {length} | {cells} |")
    for kind in KINDS:
        ratio = results[LENGTHS[-1]][kind] / results[LENGTHS[0]][kind]
        print(
            f"{kind}: {ratio:.2f} times at {LENGTHS[-1]} what it takes at {LENGTHS[0]}"
        )
    if options.json:
        options.json.write_text(json.dumps(results))
    if options.plot:
        draw(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
