"""The choice of the sampler's operators: Triton's on a GPU, if they sample as torch does.

Kernels for GPUs are compiled where they run, for devices that nobody here may know. Kernels
that fail there, or sample something else, must not be found out by clients.
"""

from __future__ import annotations

import importlib.util
import logging

import torch

from ...types.plan import SlotStart
from ...types.sampling import EACH_RULE, SamplingParams
from ..device.tensors import send_ids
from ..self_check.compare import agree_singly, describe_failure
from ..step.scans import Scans
from .choice import prepare_choice
from .operators import RepeatedTokens, SamplingOperators, TorchOperators

logger = logging.getLogger(__name__)

_PENALTIES = ((1.3, 0.5, 0.0), (1.0, 0.0, -1.5), (0.7, -0.5, 0.25))

# Each is drawn from other logits, with other noise.
_SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    *(SamplingParams(**{name: value}) for name, value in EACH_RULE.items()),
    SamplingParams(**EACH_RULE),
)
_ROUNDS = 2


def choose_operators(
    scans: Scans, device: torch.device, vocab_size: int, *, wants_native: bool = True
) -> SamplingOperators:
    """Make the fastest operators for a device, and log the choice if there is one.

    Args:
      scans: of torch's operators.
      wants_native: whether the options let this project's kernels run.
    """
    operators = TorchOperators(scans, device)
    # Elsewhere, only Triton's interpreter could run its kernels.
    if device.type != "cuda":
        return operators
    obstacle: str | None = "the options say so"
    if wants_native:
        obstacle = find_obstacle(vocab_size)
    if obstacle is None:
        from .triton_operators import TritonOperators

        found = TritonOperators(device)
        obstacle = find_disagreement(found, operators, device, vocab_size)
        if obstacle is None:
            logger.info("sampling: triton")
            return found
    logger.info("sampling: torch (not triton: %s)", obstacle)
    return operators


def find_obstacle(vocab_size: int) -> str | None:
    """Return why Triton's kernels cannot sample from a vocabulary; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "it is not installed"
    from ...kernels.triton.sampling import MAX_VOCABULARY

    if vocab_size > MAX_VOCABULARY:
        return f"the vocabulary has more than {MAX_VOCABULARY} tokens"
    return None


@torch.inference_mode()
def find_disagreement(
    operators: SamplingOperators,
    oracle: SamplingOperators,
    device: torch.device,
    vocab_size: int,
) -> str | None:
    """Return the difference of operators to an oracle; None if they agree."""
    generator = torch.Generator().manual_seed(0)
    choices = [
        prepare_choice(
            SlotStart(
                slot=0,
                prompt_token_ids=(),
                output_token_ids=(),
                sampling=sampling,
                seed=seed,
            ),
            vocab_size,
            device,
        )
        for seed, sampling in enumerate(_SAMPLINGS * _ROUNDS)
    ]
    logits = 3.0 * torch.randn((len(choices), vocab_size), generator=generator)
    tables = torch.randint(3, (len(_PENALTIES), vocab_size), generator=generator)
    numbers = torch.tensor(_PENALTIES).mT.contiguous()
    repeated = RepeatedTokens(
        places=send_ids([2, 0, 3], device),
        rows=send_ids([1, 0, 2], device),
        counts=tables.int().to(device, non_blocking=True),
        seen=(tables > 0).to(device, non_blocking=True),
        penalties=numbers.to(device, non_blocking=True),
    )
    try:
        lowered, chosen = [], []
        for each in (oracle, operators):
            scores = logits.to(device, non_blocking=True, copy=True)
            each.penalize(scores, repeated)
            lowered.append(scores.clone())
            chosen.append(each.choose(scores, choices, [0] * len(choices)))
            plain = [choice for choice in choices if not choice.plain_from]
            counts = [0] * len(plain)
            chosen.append(each.choose_plain(lowered[-1][: len(plain)], plain, counts))
        if not agree_singly(*lowered):
            return "its penalties differ"
        expected, actual = (torch.cat(chosen[i : i + 2]).tolist() for i in (0, 2))
    except Exception as error:
        return describe_failure(error)
    if expected != actual:
        return "it samples other tokens"
    return None
