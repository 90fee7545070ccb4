"""The memory that steps need: the largest step is tried before the KV cache is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
import gc
from itertools import accumulate
import logging
from typing import Protocol

import torch

from ..errors import NotEnoughMemory
from ..types.ids import BlockId
from ..types.plan import SlotStart, StepPlan, StepRow
from ..types.sampling import EACH_RULE, SamplingParams
from .runner import ModelRunner
from .runtimes.loaded import LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Bytes at one moment.

    Args:
      free: that nobody has.
      reserved: that torch has, used or not. Graphs keep theirs as long as they exist.
      peak: the most that torch has had since the memory was cleared.
    """

    free: int
    reserved: int
    peak: int

    def count_since(self, before: MemoryReading, kept: int) -> int:
        """Return the bytes that work in between has needed at its peak.

        Args:
          before: the reading before the work.
          kept: bytes that the work allocated and that do not count.
        """
        by_torch = self.peak - before.reserved - kept
        # Compiled kernels, graphs themselves, the workspaces of libraries. If something else
        # has given memory back meanwhile, the gain is not ours.
        taken = before.free - self.free
        by_others = taken - (self.reserved - before.reserved)
        return max(0, by_torch) + max(0, by_others)


class DeviceMemory(Protocol):
    """Reads the memory of a device."""

    def clear(self) -> None:
        """Give unused memory back, and forget the peak."""

    def read(self) -> MemoryReading:
        """Wait for the device, and read."""


class CudaMemory:
    """The DeviceMemory of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def clear(self) -> None:
        # Graphs are parts of cycles.
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> MemoryReading:
        torch.cuda.synchronize(self._device)
        free, _ = torch.cuda.mem_get_info(self._device)
        return MemoryReading(
            free=free,
            reserved=torch.cuda.memory_reserved(self._device),
            peak=torch.cuda.max_memory_reserved(self._device),
        )


# Smaller than the ids of all other steps.
_STEP_ID = -3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """The limits of steps.

    Args:
      max_num_seqs: sequences of a step.
      max_num_tokens: tokens of a step; at least max_num_seqs.
      max_model_len: tokens of a sequence.
      max_logprobs: most alternatives to a token in log probabilities.
      block_size: tokens in one block.
    """

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    max_logprobs: int
    block_size: int


def plan_largest_step(limits: StepLimits) -> StepPlan:
    """Plan a step of as many sequences and tokens as there can be.

    Each sequence is a prompt, has log probabilities for it, and samples by all rules that take
    memory for a whole vocabulary.
    """
    counts = _share(limits.max_num_tokens, limits.max_num_seqs, limits.max_model_len)
    num_blocks = [-(-count // limits.block_size) for count in counts]
    ends = accumulate(num_blocks)
    sampling = SamplingParams(
        **EACH_RULE,
        logprobs=limits.max_logprobs,
        prompt_logprobs=limits.max_logprobs,
    )
    return StepPlan(
        step_id=_STEP_ID,
        starts=tuple(
            SlotStart(
                slot=slot,
                prompt_token_ids=(0,) * count,
                output_token_ids=(),
                sampling=sampling,
                seed=slot,
            )
            for slot, count in enumerate(counts)
        ),
        rows=tuple(
            StepRow(
                slot=slot,
                start=0,
                num_tokens=count,
                new_block_ids=tuple(map(BlockId, range(end - blocks, end))),
                sample=True,
            )
            for slot, (count, blocks, end) in enumerate(zip(counts, num_blocks, ends))
        ),
    )


def _share(num_tokens: int, num_rows: int, most: int) -> list[int]:
    """Share tokens among rows, most for each at most."""
    each, rest = divmod(min(num_tokens, num_rows * most), num_rows)
    return [each + (row < rest) for row in range(num_rows)]


def measure_steps(
    model: LoadedModel, limits: StepLimits, memory: DeviceMemory | None = None
) -> int:
    """Return the bytes that steps need besides the KV cache; 0 on a CPU.

    The graphs of decodes count, too. Images do not, and neither does the context that is
    copied where the attention backend is gather.

    Args:
      memory: by default the memory of the model's GPU.

    Raises:
      NotEnoughMemory: the largest step does not fit.
    """
    if memory is None:
        if model.device.type != "cuda":
            return 0
        memory = CudaMemory(model.device)
    plan = plan_largest_step(limits)
    num_blocks = sum(len(row.new_block_ids) for row in plan.rows)
    memory.clear()
    before = memory.read()
    try:
        with _logging_nothing():
            after = _run(model, plan, num_blocks, limits, memory)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemory(
            f"a step of {plan.num_tokens} tokens and {len(plan.rows)} sequences does not "
            "fit beside the weights; lower --max-num-batched-tokens or --max-num-seqs"
        ) from error
    memory.clear()
    info = model.info
    cache_bytes = num_blocks * limits.block_size * info.kv_bytes_per_token
    cache_bytes += (limits.max_num_seqs + 1) * info.state_bytes
    return after.count_since(before, cache_bytes)


@contextmanager
def _logging_nothing() -> Iterator[None]:
    """The runner that stays logs the same choices of kernels."""
    log = logging.getLogger(__package__)
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _run(
    model: LoadedModel,
    plan: StepPlan,
    num_blocks: int,
    limits: StepLimits,
    memory: DeviceMemory,
) -> MemoryReading:
    runner = ModelRunner(
        model,
        num_blocks=num_blocks,
        block_size=limits.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=limits.max_model_len,
    )
    runner.warm_up()
    # Its result is not read: the lists would take the host longer than the step.
    runner.launch(plan)
    return memory.read()
