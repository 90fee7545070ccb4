"""What a step gives once its last layer is computed.

A step is launched and finished. To launch it is to give the device all its work; its
tokens stay there for the next step to go on with, and are on their way to the host, where
`finish` waits for them. So the next step is launched before this one is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from ..types.logits import LogitsProcessor
from ..types.output import StepResult
from ..types.plan import SlotStart, StepPlan, StepRow
from .attention.layout import StepInputs
from .loading.loading import LoadedModel
from .sampling.logprobs import LogprobReports
from .sampling.sampled import Sampled
from .sampling.sampler import Sampler
from .slots import SlotTables
from .tensors import send_ids

# Rows of logits turned to float32 at once for prompts' log probabilities.
_LOGPROB_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStep:
    """A step that the device has, or has done.

    Args:
      slots: those of the rows that sample, in batch order.
      sampled: what was chosen for them; None if there are none.
      prompt_reports: slot -> log probabilities of its prompt, in parts.
    """

    step_id: int
    slots: tuple[int, ...] = ()
    sampled: Sampled | None = None
    prompt_reports: dict[int, list[LogprobReports]] = field(default_factory=dict)

    def finish(self) -> StepResult:
        """Wait for what the step gives; any thread may."""
        sampled = self.sampled
        reports = {} if sampled is None else sampled.read_reports()
        return StepResult(
            step_id=self.step_id,
            sampled=() if sampled is None else tuple(zip(sampled.ids.read())),
            logprobs={self.slots[row]: (report,) for row, report in reports.items()},
            prompt_logprobs={
                slot: tuple(report for part in parts for report in part.read())
                for slot, parts in self.prompt_reports.items()
            },
        )


class StepWriter(Protocol):
    """Runs a model on what it reads, and makes something of what its last layer gives."""

    def start(self, start: SlotStart) -> None:
        """Take what a sequence wants; what the slot's former one wanted is forgotten."""

    def write(
        self, plan: StepPlan, inputs: StepInputs, read: dict[str, Tensor]
    ) -> LaunchedStep:
        """Compute a step that has rows.

        Args:
          read: the model's arguments.
        """


class SamplingWriter:
    """Samples the next token of every row that asks for it.

    Args:
      tables: keep what was sampled.
      logits_processors: plug-ins that sequences may name.

    Raises:
      InvalidConfig: a plug-in cannot be made.
    """

    def __init__(
        self,
        model: LoadedModel,
        tables: SlotTables,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self._model = model
        self._tables = tables
        self._sampler = Sampler(
            vocab_size=model.info.vocab_size,
            device=model.device,
            logits_processors=logits_processors,
        )
        # Slot -> alternatives to report, for slots that asked for prompt_logprobs.
        self._num_prompt_top: dict[int, int] = {}

    def start(self, start: SlotStart) -> None:
        self._sampler.start(start)
        self._num_prompt_top.pop(start.slot, None)
        if start.sampling.prompt_logprobs is not None:
            self._num_prompt_top[start.slot] = start.sampling.prompt_logprobs

    def write(
        self, plan: StepPlan, inputs: StepInputs, read: dict[str, Tensor]
    ) -> LaunchedStep:
        last_tokens = [
            token for row, token in zip(plan.rows, inputs.last_tokens) if row.sample
        ]
        prompt_spans = self._find_prompt_spans(plan, inputs)
        prompt_tokens = [token for span in prompt_spans.values() for token in span]
        logits = self._compute_logits(read, last_tokens + prompt_tokens)
        num_sampled = len(last_tokens)
        return LaunchedStep(
            step_id=plan.step_id,
            slots=tuple(row.slot for row in plan.rows if row.sample),
            sampled=self._sample(plan, logits[:num_sampled]) if num_sampled else None,
            prompt_reports=self._report_prompts(prompt_spans, logits[num_sampled:]),
        )

    def _compute_logits(self, read: dict[str, Tensor], wanted: list[int]) -> Tensor:
        """Return the logits of some of the step's tokens.

        Args:
          wanted: their indices among the flat tokens.

        Returns:
          (len(wanted), vocab_size)
        """
        index = send_ids(wanted, self._model.device)
        takes_index = self._model.takes_logits_to_keep
        output = self._model.model(
            **read,
            use_cache=False,
            **({"logits_to_keep": index} if takes_index else {}),
        )
        logits: Tensor = output.logits[0]
        return logits if takes_index else logits[index]

    def _sample(self, plan: StepPlan, logits: Tensor) -> Sampled:
        rows = [row for row in plan.rows if row.sample]
        slots = [row.slot for row in rows]
        num_outputs = [self._tables.count_outputs(row) for row in rows]
        sampled = self._sampler.sample(slots, num_outputs, logits)
        self._tables.keep_sampled(
            send_ids(slots, self._model.device), sampled.ids.on_device
        )
        return sampled

    def _find_prompt_spans(
        self, plan: StepPlan, inputs: StepInputs
    ) -> dict[StepRow, range]:
        """Return the flat tokens that are followed by a token of their prompt."""
        spans = {}
        for row, first in zip(plan.rows, inputs.first_tokens):
            if row.slot in self._num_prompt_top:
                last_target = self._tables.num_prompt_tokens[row.slot] - 1
                end = min(row.end, last_target)
                if row.start < end:
                    spans[row] = range(first, first + end - row.start)
        return spans

    def _report_prompts(
        self, spans: dict[StepRow, range], logits: Tensor
    ) -> dict[int, list[LogprobReports]]:
        reports, begin = {}, 0
        for row, span in spans.items():
            rows = logits[begin : begin + len(span)]
            begin += len(span)
            # The token at a position is predicted by the one before.
            targets = self._tables.read_tokens(
                row.slot, row.start + 1, row.start + 1 + len(span)
            ).to(rows.device, non_blocking=True)
            reports[row.slot] = [
                LogprobReports(
                    part, part_targets, [self._num_prompt_top[row.slot]] * len(part)
                )
                for part, part_targets in zip(
                    rows.split(_LOGPROB_ROWS), targets.split(_LOGPROB_ROWS)
                )
            ]
        return reports
