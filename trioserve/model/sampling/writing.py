"""Sample the next tokens from logits, and report the log probabilities of prompts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch import Tensor

from ...types.plan import StepPlan, StepRow
from ..device.tensors import send_ids
from ..runtimes.loaded import LoadedModel
from ..step.layout import StepInputs
from ..step.plain import ChosenTokens, StepOutput
from ..step.scans import Scans, TorchScans
from ..step.slots import SlotTables
from .choose_operators import choose_operators
from .extensions import Extensions
from .launched import LaunchedStep, Sampled, SampledIds
from .logprobs import LogprobReports
from .sampler import Sampler
from .selecting import LogitRows, LogitSelector

# Rows of logits turned to float32 at once for prompts' log probabilities.
_LOGPROB_ROWS = 256


class SamplingWriter:
    """Samples the next token of every row with `sample`.

    Args:
      tables: keep the sampled tokens.
      extensions: plug-ins and grammars that sequences may use.

    Raises:
      InvalidConfig: a plug-in cannot be made.
    """

    def __init__(
        self,
        model: LoadedModel,
        tables: SlotTables,
        extensions: Extensions = Extensions(),
    ) -> None:
        self._model = model
        self._tables = tables
        self._scans = _make_scans(model)
        self._sampler = Sampler(
            vocab_size=model.info.vocab_size,
            device=model.device,
            logits_processors=extensions.logits_processors,
            scans=self._scans,
            operators=choose_operators(
                self._scans,
                model.device,
                model.info.vocab_size,
                wants_native=model.wants_native,
            ),
            load_tokenizer=extensions.load_tokenizer,
        )
        self._selector = LogitSelector(tables)
        # The places, among the rows of the present step that sample, of the skipped ones.
        self._skipped: tuple[int, ...] | None = None

    def begin(self, plan: StepPlan) -> None:
        self._sampler.end(plan.ends)
        self._selector.begin(plan)
        for start in plan.starts:
            self._sampler.start(start)

    def find_skipped(self, plan: StepPlan) -> Collection[int]:
        rows = [row for row in plan.rows if row.sample]
        self._skipped = self._list_late(
            plan, [row.slot for row in rows], self._tables.count_outputs(rows)
        )
        return [rows[i].slot for i in self._skipped]

    @property
    def is_capturable(self) -> bool:
        return self._sampler.is_capturable

    def select(self, plan: StepPlan, inputs: StepInputs) -> LogitRows:
        rows = self._selector.select(plan, inputs)
        if not rows.sampled or inputs.has_chunks or not self.is_capturable:
            return rows
        plain = self._sampler.find_plain(rows.slots, rows.num_outputs)
        return rows if plain is None else replace(rows, plain=plain)

    def write(
        self, plan: StepPlan, rows: LogitRows, output: StepOutput
    ) -> LaunchedStep:
        if isinstance(output, ChosenTokens):
            self._skipped = None
            return LaunchedStep(
                step_id=plan.step_id,
                slots=tuple(rows.slots.tolist()),
                sampled=Sampled(ids=SampledIds(output.token_ids, in_turn=True)),
            )
        num_sampled = len(rows.sampled)
        launched = self._sample(plan, rows, output[:num_sampled])
        return replace(
            launched,
            prompt_reports=self._report_prompts(rows.prompts, output[num_sampled:]),
            late=self._sampler.list_waiting(launched.slots),
        )

    def _sample(self, plan: StepPlan, rows: LogitRows, logits: Tensor) -> LaunchedStep:
        slots: list[int] = rows.slots.tolist()
        num_outputs: list[int] = rows.num_outputs.tolist()
        skipped, self._skipped = self._skipped, None
        if skipped is None:
            skipped = self._list_late(plan, slots, num_outputs)
        if skipped:
            kept = [i for i in range(len(slots)) if i not in skipped]
            slots = [slots[i] for i in kept]
            num_outputs = [num_outputs[i] for i in kept]
            logits = logits[send_ids(kept, logits.device)]
        sampled = None
        if slots:
            sampled = self._sampler.sample(slots, num_outputs, logits)
            self._tables.keep_sampled(
                send_ids(slots, logits.device), sampled.ids.on_device
            )
        return LaunchedStep(
            step_id=plan.step_id, slots=tuple(slots), sampled=sampled, skipped=skipped
        )

    def _list_late(
        self, plan: StepPlan, slots: list[int], num_outputs: list[int]
    ) -> tuple[int, ...]:
        """Return the places of rows, among those that sample, without a mask in time."""
        return self._sampler.list_late(
            slots, num_outputs, has_others=len(slots) < len(plan.rows)
        )

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
                    part,
                    part_targets,
                    [self._selector.num_prompt_top[row.slot]] * len(part),
                    self._scans,
                )
                for part, part_targets in zip(
                    rows.split(_LOGPROB_ROWS), targets.split(_LOGPROB_ROWS)
                )
            ]
        return reports


def _make_scans(model: LoadedModel) -> Scans:
    return TorchScans() if model.native is None else model.native.make_scans()
