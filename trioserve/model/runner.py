"""Run one step: plan in, tokens out.

    reader  -- tokens, vectors -->  layers, with their cache  -- states -->  writer

A whole model reads tokens and writes tokens. A stage of a pipeline differs in these two
ends alone (stages/first_last.py): what it does not read or write, it has from its neighbours,
or gives them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..config import CacheConfig
from ..types.ids import BlockId
from ..types.logits import LogitsProcessor
from ..types.output import StepResult
from ..types.plan import SlotStart, StepPlan, StepRow
from ..types.sampling import SamplingParams
from .attention.bridge import AttentionCall
from .attention.gather import Kernel, choose_kernel
from .attention.kv_cache import (
    LayerCache,
    allocate,
    count_fitting_blocks,
    count_kv_bytes,
)
from .attention.layout import LayoutRules, StepInputs, lay_out
from .attention.probe import LayerSpec
from .inputs.grid import GridPositions
from .inputs.reading import StepReader, TokenReader
from .loading.loading import LoadedModel
from .slots import SlotTables
from .stages import StageLinks
from .stages.first_last import make_reader, make_writer
from .writing import LaunchedStep, SamplingWriter, StepWriter

# Gathered keys and values should still lie in a core's cache when they are read: of 0.6
# to 10 MiB, 2.5 was the fastest on a CPU with 1 MiB of L2 a core. A GPU wants few large
# calls; its number is a guess.
_GATHER_BYTES = {"cpu": 3 * 2**20, "cuda": 256 * 2**20}

# Long enough for a matrix product of the kind that chunks have.
_WARM_UP_TOKENS = 32


def count_blocks(
    model: LoadedModel,
    config: CacheConfig,
    *,
    max_num_seqs: int,
    max_model_len: int,
    num_sharing: int = 1,
) -> int:
    """How many KV blocks to give a ModelRunner.

    What fits into the memory that `config` allows, but no more than `max_num_seqs`
    sequences of `max_model_len` tokens could use. It may be too little for one such
    sequence, though not for one of 512 tokens: then the caller lowers max_model_len to
    num_blocks * block_size.

    Args:
      num_sharing: processes that share the device's memory, if that is a CPU's.

    Raises:
      InvalidConfig: the memory does not hold 512 tokens, or the device has it not.
    """
    return count_fitting_blocks(
        model.info.kv_bytes_per_token,
        config,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        device=model.device,
        num_sharing=num_sharing,
    )


class ModelRunner:
    """A model with its KV cache and what its slots hold.

    Args:
      model: must not be stepped by another runner at the same time.
      num_blocks: blocks of the cache; ids in plans lie below.
      block_size: tokens in one.
      max_num_seqs: slots.
      max_model_len: tokens of prompt and output that a slot can hold.
      logits_processors: plug-ins that sequences may name; only who samples has them.
      links: to the other stages, where the model is one of several.

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
        links: StageLinks | None = None,
    ) -> None:
        self._model = model
        self._tables = SlotTables(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=block_size,
            device=model.device,
        )
        self._reader: StepReader
        self._writer: StepWriter
        if links is None:
            self._reader = TokenReader(model, self._tables)
            self._writer = SamplingWriter(model, self._tables, logits_processors)
        else:
            self._reader = make_reader(model, self._tables, links)
            self._writer = make_writer(model, self._tables, links, logits_processors)
        self._grid = _make_grid(model)
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
        self._reader.begin(plan)
        for start in plan.starts:
            self._tables.start(start)
            self._writer.start(start)
            if self._grid is not None:
                self._grid.start(start)
        if not plan.rows:
            return LaunchedStep(step_id=plan.step_id)
        self._tables.append_blocks(plan.rows)
        inputs = lay_out(plan, self._tables, self._rules)
        # Images are encoded here, before the model's own attention is sent anywhere.
        read = self._read(plan, inputs)
        attention = _StepAttention(
            self._model.layers, self._caches, inputs, self._kernel
        )
        with self._model.door.use(attention):
            return self._writer.write(plan, inputs, read)

    def warm_up(self) -> None:
        """Run a chunk and a decode before any sequence comes.

        The first calls of a process choose and prepare the device's routines; no
        client should wait for that. All stages of a pipeline do it at the same time.
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
        # Before those of any scheduler, whose first one is 1.
        self.step(StepPlan(step_id=-2, starts=(start,), rows=(chunk,)))
        self.step(StepPlan(step_id=-1, starts=(), rows=(decode,)))

    def _read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        """Return what the model gets: what it reads, and where that stands."""
        positions = inputs.position_ids
        if self._grid is not None:
            positions = self._grid.place(plan, inputs)
        return {**self._reader.read(plan, inputs), "position_ids": positions}


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
