"""Run one step: plan in, tokens out.

A step is launched and finished. To launch it is to give the device all its work; its
tokens stay there for the next step to go on with, and are on their way to the host, where
`finish` waits for them. So the next step is launched before this one is finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..config import CacheConfig
from ..logits import LogitsProcessor
from ..steps import (
    BlockId,
    SamplingParams,
    SlotStart,
    StepPlan,
    StepResult,
    StepRow,
)
from .attention import AttentionCall
from .grid import GridPositions
from .inputs import EmbeddedInputs
from .kernels import Kernel, choose_kernel
from .kv_cache import (
    LayerCache,
    allocate,
    count_fitting_blocks,
    count_kv_bytes,
)
from .layout import LayoutRules, StepInputs, lay_out
from .loading import LoadedModel
from .logprobs import LogprobReports
from .probe import LayerSpec
from .sampled import Sampled
from .sampler import Sampler
from .slots import SlotTables
from .tensors import send_ids

# Gathered keys and values should still lie in a core's cache when they are read: of 0.6
# to 10 MiB, 2.5 was the fastest on a CPU with 1 MiB of L2 a core. A GPU wants few large
# calls; its number is a guess.
_GATHER_BYTES = {"cpu": 3 * 2**20, "cuda": 256 * 2**20}

# Long enough for a matrix product of the kind that chunks have.
_WARM_UP_TOKENS = 32

# Rows of logits turned to float32 at once for prompts' log probabilities.
_LOGPROB_ROWS = 256


def count_blocks(
    model: LoadedModel, config: CacheConfig, *, max_num_seqs: int, max_model_len: int
) -> int:
    """How many KV blocks to give a ModelRunner.

    What fits into the memory that `config` allows, but no more than `max_num_seqs`
    sequences of `max_model_len` tokens could use. It may be too little for one such
    sequence: then the caller lowers max_model_len to num_blocks * block_size.

    Raises:
      InvalidConfig: the memory does not hold one block, or the device has it not.
    """
    return count_fitting_blocks(
        model.info.kv_bytes_per_token,
        config,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        device=model.device,
    )


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
    prompt_reports: dict[int, list[LogprobReports]]

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


class ModelRunner:
    """A model with its KV cache and what its slots hold.

    Args:
      model: must not be stepped by another runner at the same time.
      num_blocks: blocks of the cache; ids in plans lie below.
      block_size: tokens in one.
      max_num_seqs: slots.
      max_model_len: tokens of prompt and output that a slot can hold.
      logits_processors: plug-ins that sequences may name.

    Raises:
      InvalidConfig: a plug-in cannot be made.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self._model = model
        self._tables = SlotTables(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=block_size,
            device=model.device,
        )
        self._sampler = Sampler(
            vocab_size=model.info.vocab_size,
            device=model.device,
            logits_processors=logits_processors,
        )
        self._embedded = EmbeddedInputs(model)
        self._grid = _make_grid(model)
        # Slot -> alternatives to report, for slots that asked for prompt_logprobs.
        self._num_prompt_top: dict[int, int] = {}
        self._rules = _make_rules(model, block_size)
        self._kernel = choose_kernel(model.device)
        self._caches = allocate(
            model.layers,
            num_blocks=num_blocks,
            block_size=block_size,
            dtype=model.dtype,
            device=model.device,
        )
        self._max_warm_up_tokens = min(max_model_len, num_blocks * block_size) - 1

    def step(self, plan: StepPlan) -> StepResult:
        """Compute a plan; blocks until its tokens are known."""
        return self.launch(plan).finish()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Give the device a plan's work; a CPU has done it when this returns.

        Call it from one thread at a time, in the order of the plans. Steps before it need
        not be finished.
        """
        self._embedded.drop(plan.ends)
        for start in plan.starts:
            self._start(start)
        if not plan.rows:
            return LaunchedStep(step_id=plan.step_id, prompt_reports={})
        self._tables.append_blocks(plan.rows)
        inputs = lay_out(plan, self._tables, self._rules)
        self._put_in_sampled(inputs)
        last_tokens = [
            token for row, token in zip(plan.rows, inputs.last_tokens) if row.sample
        ]
        prompt_spans = self._find_prompt_spans(plan, inputs)
        prompt_tokens = [token for span in prompt_spans.values() for token in span]
        logits = self._forward(plan, inputs, last_tokens + prompt_tokens)
        num_sampled = len(last_tokens)
        return LaunchedStep(
            step_id=plan.step_id,
            slots=tuple(row.slot for row in plan.rows if row.sample),
            sampled=self._sample(plan, logits[:num_sampled]) if num_sampled else None,
            prompt_reports=self._report_prompts(prompt_spans, logits[num_sampled:]),
        )

    def warm_up(self) -> None:
        """Run a chunk and a decode before any sequence comes.

        The first calls of a process choose and prepare the device's routines; no
        client should wait for that.
        """
        num_tokens = min(_WARM_UP_TOKENS, self._max_warm_up_tokens)
        if num_tokens < 1:
            return
        size = self._rules.block_size
        start = SlotStart(
            slot=0,
            prompt_token_ids=(0,) * num_tokens,
            output_token_ids=(),
            sampling=SamplingParams(),
            seed=0,
        )
        blocks = tuple(BlockId(i) for i in range(num_tokens // size + 1))
        chunk = StepRow(
            slot=0, start=0, num_tokens=num_tokens, new_block_ids=blocks, sample=True
        )
        decode = StepRow(
            slot=0, start=num_tokens, num_tokens=1, new_block_ids=(), sample=False
        )
        self.step(StepPlan(step_id=0, starts=(start,), rows=(chunk,)))
        self.step(StepPlan(step_id=0, starts=(), rows=(decode,)))

    def _start(self, start: SlotStart) -> None:
        self._tables.start(start)
        self._sampler.start(start)
        self._embedded.start(start)
        if self._grid is not None:
            self._grid.start(start)
        self._num_prompt_top.pop(start.slot, None)
        if start.sampling.prompt_logprobs is not None:
            self._num_prompt_top[start.slot] = start.sampling.prompt_logprobs

    def _put_in_sampled(self, inputs: StepInputs) -> None:
        """Complete the input with tokens that the host may not have read yet."""
        sampled = self._tables.last_token_ids.index_select(0, inputs.sampled_slots)
        inputs.input_ids[0].index_copy_(0, inputs.sampled_tokens, sampled)

    def _forward(self, plan: StepPlan, inputs: StepInputs, wanted: list[int]) -> Tensor:
        """Return the logits of some of the step's tokens.

        Args:
          wanted: their indices among the flat tokens.

        Returns:
          (len(wanted), vocab_size)
        """
        index = send_ids(wanted, self._rules.device)
        takes_index = self._model.takes_logits_to_keep
        # Images are encoded here, before the model's own attention is sent anywhere.
        read = self._read(plan, inputs)
        attention = _StepAttention(
            self._model.layers, self._caches, inputs, self._kernel
        )
        with self._model.door.served_by(attention):
            output = self._model.model(
                **read,
                use_cache=False,
                **({"logits_to_keep": index} if takes_index else {}),
            )
        logits: Tensor = output.logits[0]
        return logits if takes_index else logits[index]

    def _read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        """Return what the first layer gets: tokens or vectors, and where they stand."""
        embeds = self._embedded.embed(plan, inputs)
        positions = inputs.position_ids
        if self._grid is not None:
            positions = self._grid.place(plan, inputs)
        if embeds is None:
            return {"input_ids": inputs.input_ids, "position_ids": positions}
        return {"inputs_embeds": embeds, "position_ids": positions}

    def _sample(self, plan: StepPlan, logits: Tensor) -> Sampled:
        rows = [row for row in plan.rows if row.sample]
        slots = [row.slot for row in rows]
        num_outputs = [self._tables.count_outputs(row) for row in rows]
        sampled = self._sampler.sample(slots, num_outputs, logits)
        self._tables.keep_sampled(
            send_ids(slots, self._rules.device), sampled.ids.on_device
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


class _StepAttention:
    """The AttentionBackend of one step: each call goes to the next layer's cache."""

    def __init__(
        self,
        layers: tuple[LayerSpec, ...],
        caches: tuple[LayerCache, ...],
        inputs: StepInputs,
        kernel: Kernel,
    ) -> None:
        self._layers = iter(zip(layers, caches, strict=True))
        self._inputs = inputs
        self._kernel = kernel

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        # Invariant: a model calls attention in the order that the probe saw.
        layer, cache = next(self._layers)
        return self._kernel(
            query,
            key,
            value,
            cache,
            self._inputs.slot_mapping,
            self._inputs.by_window[layer.window],
            call,
        )


def _make_grid(model: LoadedModel) -> GridPositions | None:
    if model.vision is None or not model.vision.has_grid_positions:
        return None
    return GridPositions(model.model.config.vision_config.spatial_merge_size)


def _make_rules(model: LoadedModel, block_size: int) -> LayoutRules:
    token_bytes = max(count_kv_bytes((layer,), model.dtype) for layer in model.layers)
    return LayoutRules(
        block_size=block_size,
        windows=tuple({layer.window for layer in model.layers}),
        gather_limit=_GATHER_BYTES[model.device.type] // token_bytes,
        explicit_masks=any(layer.needs_scores for layer in model.layers),
        dtype=model.dtype,
        device=model.device,
    )
