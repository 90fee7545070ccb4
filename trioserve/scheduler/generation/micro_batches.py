"""The micro-batches of a pipeline: the decoding sequences of each step.

In a pipeline of N stages a token that the last stage samples in step s reaches the first
stage when that stage has done steps s to s + N - 1, and not before:

    step             s     s + 1   s + 2   s + 3
    stage 0          A     B       C       A: reads what stage 2 has just sampled
    stage 1                A       B       C
    stage 2                        A       B

So a sequence is planned again in step s + N at the earliest, or once its token is known.
Each step takes 1/N of the decoding sequences, rounded up. If one step took all of them,
N - 1 empty steps would follow it.

The sequence with the oldest last token goes first; equals go in their order. Without
this rule the same sequences would be left over every time. Chunks of prompts do not
depend on sampled tokens and go into every step.
"""

from __future__ import annotations

import operator

from .sequence import Sequence

_get_order = operator.attrgetter("order")
_get_sampled_in = operator.attrgetter("sampled_in")


class MicroBatches:
    """Chooses the sequences of each step of a pipeline.

    Args:
      num_stages: stages of the pipeline; 1 is a device by itself.
    """

    def __init__(self, num_stages: int) -> None:
        if num_stages < 1:
            raise ValueError("a pipeline has at least one stage")
        self._num_stages = num_stages

    def choose(
        self, step_id: int, decoding: list[Sequence], prompts: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        """Return the decoding sequences and the prompts that the step may have.

        Args:
          step_id: the step that is planned.
          decoding, prompts: running sequences, in order.
        """
        if self._num_stages == 1:
            return decoding, prompts
        ready = self._list_known(step_id, decoding)
        # Stable: equals keep their order.
        ready.sort(key=_get_sampled_in)
        chosen = ready[: -(-len(decoding) // self._num_stages)]
        return sorted(chosen, key=_get_order), self._list_known(step_id, prompts)

    def _list_known(self, step_id: int, sequences: list[Sequence]) -> list[Sequence]:
        """Return the sequences whose last token the first stage has in this step."""
        first_absent = step_id + 1 - self._num_stages
        return [
            sequence
            for sequence in sequences
            if not sequence.num_placeholders or sequence.sampled_in < first_absent
        ]
