"""Run one step: plan in, tokens out.

    inputs  ->  layers, with their paged cache  ->  logits  ->  sampled tokens

A stage of a pipeline differs in its two ends alone (ends/): it receives its input from
the stage before, or sends its output to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..types.adapter import AdapterFacts, AdapterSource
from ..types.ids import BlockId
from ..types.logits import LogitsProcessor
from ..types.output import StepResult
from ..types.plan import SlotStart, StepPlan, StepRow
from ..types.sampling import SamplingParams
from .adapters.part import ModelPart
from .adapters.read import AdapterReader, ReadGguf
from .device.choose import on_device
from .device.torch_threads import torch_threads
from .ends.protocols import StepEnds
from .ends.whole import WholeModelEnds
from .inputs.grid import GridPositions
from .runtimes.layers import KernelLayers, Layers
from .runtimes.loaded import LoadedModel
from .runtimes.modules.layers import ModuleLayers
from .sampling.extensions import Extensions
from .sampling.grammars import LoadTokenizer
from .sampling.launched import LaunchedStep
from .step.joined_images import JoinedImages
from .step.layout import StepInputs, lay_out
from .step.slots import SlotTables

# Enough for a matrix product of the kind that chunks need.
_WARM_UP_TOKENS = 32


class ModelRunner:
    """A model with its KV cache, and the state of its slots.

    Args:
      model: no other runner may step it at the same time.
      num_blocks: blocks of the cache; the ids in plans are smaller.
      num_window_blocks: blocks of layers with windows; None if these have the same blocks as
        all others.
      block_size: tokens in one block.
      max_num_seqs: number of slots.
      max_model_len: tokens of prompt and output that a slot can hold.
      num_checkpoints: copies of states that plans may name.
      logits_processors: plug-ins that sequences may name; no stage but the last one of a
        pipeline needs them.
      load_tokenizer: makes the tokenizer of grammars, at the first one; the same stages
        need none.
      ends: the two ends of a step, if the model is a stage of a pipeline; by default a
        step reads tokens and samples.
      read_gguf_adapter: see AdapterReader.

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
        num_checkpoints: int = 0,
        num_window_blocks: int | None = None,
        logits_processors: Sequence[type[LogitsProcessor]] = (),
        load_tokenizer: LoadTokenizer | None = None,
        ends: StepEnds | None = None,
        read_gguf_adapter: ReadGguf | None = None,
    ) -> None:
        self._model = model
        # A model's modules look for theirs.
        self._device = model.device
        self._tables = SlotTables(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            block_size=block_size,
            device=self._device,
            num_checkpoints=num_checkpoints,
            has_windows=num_window_blocks is not None,
        )
        ends = ends or WholeModelEnds()
        self._reader = ends.make_reader(model, self._tables)
        extensions = Extensions(
            logits_processors=logits_processors, load_tokenizer=load_tokenizer
        )
        with on_device(self._device):
            self._writer = ends.make_writer(model, self._tables, extensions)
        self._grid = _make_grid(model)
        joins_images = any(layer.joins_images for layer in model.layers)
        self._images = JoinedImages() if joins_images else None
        self._open_layers = partial(
            _make_layers, model, self._tables, num_blocks, num_window_blocks
        )
        self._layers = self._open_layers()
        self._make_reader = partial(_make_reader, model, read_gguf=read_gguf_adapter)
        self._adapters = self._make_reader(self._layers)
        # For the next layers, after a sleep.
        self._loaded_adapters: dict[int, Any] = {}
        self._block_size = block_size
        fewest = min(num_blocks, num_window_blocks or num_blocks)
        self._max_warm_up_tokens = min(max_model_len, fewest * block_size) - 1

    def step(self, plan: StepPlan) -> StepResult:
        """Run a plan; blocks until its tokens are known."""
        return self.launch(plan).finish()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Give the work of a plan to the device; a CPU has done it when this returns.

        Call it in one thread at a time, in the order of the plans. Earlier steps need not
        be finished.
        """
        with on_device(self._device):
            if self._model.native is None:
                return self._launch(plan)
            with torch_threads(1):
                return self._launch(plan)

    def _launch(self, plan: StepPlan) -> LaunchedStep:
        self._reader.begin(plan)
        self._writer.begin(plan)
        for start in plan.starts:
            self._tables.start(start)
            if self._grid is not None:
                self._grid.start(start)
            if self._images is not None:
                self._images.start(start)
        copies = self._layers.copies
        if copies is not None:
            copies.restore(plan.starts)
        if not plan.rows:
            return LaunchedStep(step_id=plan.step_id)
        self._tables.append_blocks(plan.rows)
        # A state cannot be computed twice, so it must be known now which rows are skipped.
        held = self._writer.find_skipped(plan) if self._model.states else ()
        inputs = lay_out(
            *(plan, self._tables, self._layers.order, self._device),
            *(held, self._images),
        )
        # Before the input is read: a later stage of a pipeline waits for it.
        layers = self._layers.begin(inputs)
        # Images are encoded here, with the attention of their own encoder.
        arguments = self._read(plan, inputs)
        rows = self._writer.select(plan, inputs)
        output = layers.compute(arguments, rows.tokens, rows.plain)
        if copies is not None:
            copies.save(plan.rows)
        return self._writer.write(plan, rows, output)

    def read_adapter(self, source: AdapterSource) -> tuple[AdapterFacts, Any]:
        """Read an adapter for `add_adapter`; in any thread, while steps run.

        Raises:
          InvalidAdapter: its files are wrong, or the layers cannot run it.
        """
        with on_device(self._device):
            return self._adapters.read(source)

    def add_adapter(self, number: int, weights: Any) -> None:
        """Let the rows of later plans use an adapter; between two steps."""
        with on_device(self._device):
            self._layers.adapters.add(number, weights)
        self._loaded_adapters[number] = weights

    def remove_adapter(self, number: int) -> None:
        """Forget an adapter; between two steps."""
        self._layers.adapters.remove(number)
        del self._loaded_adapters[number]

    def release_cache(self) -> None:
        """Give the memory of KV blocks and states back, between two steps."""
        for number in self._loaded_adapters:
            self._layers.adapters.remove(number)
        del self._layers, self._adapters
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def restore_cache(self) -> None:
        """Allocate KV blocks and states again, empty, and add all adapters; between two steps."""
        self._layers = self._open_layers()
        self._adapters = self._make_reader(self._layers)
        for number, weights in self._loaded_adapters.items():
            self._layers.adapters.add(number, weights)
        self._prepare()

    def warm_up(self) -> None:
        """Run a chunk and a decode before any sequence comes.

        The first calls in a process choose and prepare the device's routines, and no
        client should wait for that. All stages of a pipeline warm up at the same time.
        """
        num_tokens = min(_WARM_UP_TOKENS, self._max_warm_up_tokens)
        if num_tokens < 1:
            return
        start = SlotStart(
            slot=0,
            prompt_token_ids=(0,) * num_tokens,
            output_token_ids=(),
            sampling=SamplingParams(),
            seed=0,
        )
        blocks = tuple(BlockId(i) for i in range(num_tokens // self._block_size + 1))
        chunk = StepRow(
            slot=0,
            start=0,
            num_tokens=num_tokens,
            new_block_ids=blocks,
            new_window_ids=blocks,
            sample=True,
        )
        decode = StepRow(
            slot=0, start=num_tokens, num_tokens=1, new_block_ids=(), sample=False
        )
        # Smaller than the step ids of any scheduler, which begin at 1.
        self.step(StepPlan(step_id=-2, starts=(start,), rows=(chunk,)))
        self.step(StepPlan(step_id=-1, starts=(), rows=(decode,)))
        self._prepare()

    @torch.inference_mode()
    def _prepare(self) -> None:
        with on_device(self._device):
            self._layers.prepare(
                len(self._tables.last_token_ids), chooses=self._writer.is_capturable
            )

    def _read(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        """Return the model's arguments, besides the tokens of the step at their places."""
        arguments = self._reader.read(plan, inputs)
        if self._grid is not None:
            placed = self._grid.place(plan, inputs)
            if placed is not None:
                arguments["position_ids"] = placed
        return arguments


def _make_grid(model: LoadedModel) -> GridPositions | None:
    if model.vision is None or not model.vision.has_grid_positions:
        return None
    return GridPositions(model.model.config.vision_config.spatial_merge_size)


def _make_layers(
    model: LoadedModel,
    tables: SlotTables,
    num_blocks: int,
    num_window_blocks: int | None,
) -> Layers:
    """Make the layers of a model, and allocate their KV cache.

    Raises:
      InvalidConfig: the attention backend that the options name cannot run it.
    """
    with on_device(model.device):
        if model.native is None:
            return ModuleLayers(
                model, tables, num_blocks, num_window_blocks=num_window_blocks
            )
        layers = model.native.open(
            tables,
            num_blocks=num_blocks,
            num_window_blocks=num_window_blocks,
            kv_dtype=model.kv_dtype,
        )
    return KernelLayers(model, layers)


def _make_reader(
    model: LoadedModel, layers: Layers, read_gguf: ReadGguf | None
) -> AdapterReader:
    """Make the reader of adapters."""
    return AdapterReader(
        ModelPart(layers.adapters, model.cuts, has_all=model.has_all_layers),
        architecture=model.info.architecture,
        head_dim=model.layers[0].key_dim if model.layers else 0,
        read_gguf=read_gguf,
    )
