"""The part of bench/gpu.py that measures the choice of tokens, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
import time

from kit.gpu_parts import Figures, Load, find_device
import torch
from torch import Tensor

from trioserve.model.sampling.choice import Choice, prepare_choice
from trioserve.model.sampling.choose_operators import choose_operators
from trioserve.model.sampling.operators import SamplingOperators, TorchOperators
from trioserve.model.step.scans import TorchScans
from trioserve.types.plan import SlotStart
from trioserve.types.sampling import SamplingParams

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(),
    "min_p 0.05": SamplingParams(min_p=0.05),
    "top_p 0.95": SamplingParams(top_p=0.95),
    "top_k 50": SamplingParams(top_k=50),
    "all three": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.05),
}
_CALLS = 15 if torch.cuda.is_available() else 3
_NUM_LIKELY = 50
# Keeps a GPU busy until the host has launched a whole call.
_FILLER_CYCLES = 4_000_000


@torch.inference_mode()
def measure_sampling(
    vocab_size: int, load: Load, emit: Callable[[Figures], None]
) -> None:
    """Measure the operators for GPUs beside torch's, and compare tokens with a CPU's.

    Times are of the whole call, and of its work on the device. Of peaked logits 50 are
    likely; flat ones are normal, so that top-p keeps most of the vocabulary.
    """
    device, cpu = find_device(), torch.device("cpu")
    rivals: dict[str, SamplingOperators] = {
        "torch": TorchOperators(TorchScans(), device)
    }
    chosen = choose_operators(TorchScans(), device, vocab_size)
    if device.type == "cuda":
        from trioserve.model.sampling.triton_operators import TritonOperators

        rivals["kernels"] = TritonOperators(device)
    oracle = TorchOperators(TorchScans(), cpu)
    tables: dict[str, Figures] = {"peaked": {}, "flat": {}}
    different: dict[str, Figures] = {"peaked": {}, "flat": {}}
    figures: Figures = {
        "chosen": type(chosen).__name__,
        "sampling": tables,
        "different": different,
    }
    for kind in tables:
        for name, sampling in SAMPLINGS.items():
            rows = tables[kind][name] = {}
            different[kind][name] = {}
            logits = draw_logits(max(load.batches), vocab_size, kind)
            few = min(32, len(logits))
            expected = _choose(
                oracle, logits[:few], _prepare(sampling, vocab_size, few, cpu)
            )
            sent = logits.to(device)
            for rival, operators in rivals.items():
                tokens = _choose(
                    operators, sent[:few], _prepare(sampling, vocab_size, few, device)
                )
                wrong = sum(map(int.__ne__, tokens, expected))
                different[kind][name][rival] = [wrong, few]
                for count in load.batches:
                    choices = _prepare(sampling, vocab_size, count, device)
                    times = _time(operators, sent[:count], choices)
                    rows.setdefault(str(count), {})[rival] = times
            emit(figures)


def draw_logits(num_rows: int, vocab_size: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    logits = torch.randn((num_rows, vocab_size), generator=generator)
    if kind == "peaked":
        places = torch.rand((num_rows, vocab_size), generator=generator)
        places = places.topk(min(_NUM_LIKELY, vocab_size)).indices
        logits.scatter_(1, places, 12.0 + 2.0 * logits.gather(1, places))
    return logits


def _prepare(
    sampling: SamplingParams, vocab_size: int, count: int, device: torch.device
) -> list[Choice]:
    return [
        prepare_choice(
            SlotStart(
                slot=seed,
                prompt_token_ids=(),
                output_token_ids=(),
                sampling=sampling,
                seed=seed,
            ),
            vocab_size,
            device,
        )
        for seed in range(count)
    ]


def _choose(
    operators: SamplingOperators, logits: Tensor, choices: Sequence[Choice]
) -> list[int]:
    tokens: list[int]
    tokens = _call(operators, logits.clone(), choices, [0] * len(choices)).tolist()
    return tokens


def _call(
    operators: SamplingOperators,
    scores: Tensor,
    choices: Sequence[Choice],
    numbers: list[int],
) -> Tensor:
    """Choose as the sampler does."""
    if any(choice.plain_from for choice in choices):
        return operators.choose(scores, choices, numbers)
    return operators.choose_plain(scores, choices, numbers)


def _time(
    operators: SamplingOperators, logits: Tensor, choices: Sequence[Choice]
) -> list[float | None]:
    """Return the median seconds of a call and, on a GPU, of its work there."""
    whole, own = [], []
    is_gpu = logits.device.type == "cuda"
    numbers = [3] * len(choices)
    for call in range(_CALLS + 2):
        scores = logits.clone()
        _wait(is_gpu)
        began = time.perf_counter()
        _call(operators, scores, choices, numbers)
        _wait(is_gpu)
        # The first calls compile.
        if call >= 2:
            whole.append(time.perf_counter() - began)
    if not is_gpu:
        return [median(whole), None]
    for _ in range(_CALLS):
        scores = logits.clone()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_FILLER_CYCLES)
        begin.record()
        _call(operators, scores, choices, numbers)
        end.record()
        end.synchronize()
        own.append(1e-3 * begin.elapsed_time(end))
    return [median(whole), median(own)]


def _wait(is_gpu: bool) -> None:
    if is_gpu:
        torch.cuda.synchronize()
