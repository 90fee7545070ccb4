"""A tiny model with windows of 8 tokens, its runner, and a scheduler with window blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trioserve.model.runner import ModelRunner
from trioserve.model.runtimes.loaded import LoadedModel
from trioserve.scheduler.generation.scheduler import Scheduler
from trioserve.scheduler.generation.sequence import Sequence as Scheduled
from trioserve.types.ids import SequenceId
from trioserve.types.sampling import SamplingParams

from .planning import run_steps

BLOCK_SIZE = 4


class WindowedServer:
    """A runner and its scheduler, with a pool of window blocks.

    Args:
      num_blocks, num_window_blocks: sizes of the pools.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int = 120,
        num_window_blocks: int,
        max_num_seqs: int = 4,
    ) -> None:
        sizes: dict[str, Any] = {
            "num_blocks": num_blocks,
            "num_window_blocks": num_window_blocks,
            "block_size": BLOCK_SIZE,
            "max_num_seqs": max_num_seqs,
            "max_model_len": 120,
        }
        self.runner = ModelRunner(model, **sizes)
        assert model.info.windows is not None
        window = model.info.windows.window
        assert window == 8
        self.scheduler = Scheduler(**sizes, window=window, max_num_batched_tokens=17)
        self.runner.warm_up()
        self._num_added = 0

    def answer(self, *prompts: Sequence[int], num_tokens: int = 20) -> list[list[int]]:
        """Return the greedy answers to prompts beside each other."""
        sequences = []
        for prompt in prompts:
            self._num_added += 1
            sequence = Scheduled(
                sequence_id=SequenceId(self._num_added),
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(temperature=0.0, max_tokens=num_tokens),
                seed=0,
                arrival=self._num_added,
            )
            self.scheduler.add(sequence)
            sequences.append(sequence)
        for _ in run_steps(self.scheduler, self.runner.launch, depth=2):
            pass
        return [sequence.output_token_ids for sequence in sequences]
