"""Put the layers of a loaded model on the native kernels, if they can run there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...config import ModelConfig
from ...kernels.library import open_library
from ..attention.gather import GatherAttention
from ..device.choose import on_device
from ..runtimes.choice import NotRecognised, OutputDiffers, try_kernels
from ..runtimes.consensus import agreeing, pack_together
from ..runtimes.deepstack import ADDED
from ..runtimes.description import (
    BesideParts,
    Body,
    DecoderParts,
    LookupParts,
    MixtureParts,
    find_mixture,
    list_stored,
)
from ..runtimes.loaded import LoadedModel
from ..runtimes.modules.layers import ModuleLayers
from ..runtimes.modules.packing import pack_products
from ..runtimes.native.decoder import NativeDecoder
from ..runtimes.native.packer import NUMBERS
from ..runtimes.on_kernels import DecoderOnKernels, LayersOnKernels
from ..runtimes.quantise_parts import quantise_parts
from ..runtimes.recognise.decoder import find_parts
from ..self_check.compare import describe_failure
from ..self_check.steps import (
    NUM_CHECKED,
    NUM_CHECKED_WITH_STATES,
    CheckedStep,
    compare_decoders,
    draw_hidden,
    make_steps,
)
from ..shards.group import StageLost, TensorGroup
from ..step.slots import SlotTables

Loaded = TypeVar("Loaded", bound=LoadedModel)


def load_on_kernels(
    load: Callable[[], Loaded],
    config: ModelConfig,
    load_plain: Callable[[], Loaded] | None = None,
) -> Loaded:
    """Load a model, and put its layers on the native kernels if they can run there.

    Args:
      load: loads the modules of a model, or of one stage of it. It is called again if the
        kernels and the modules compute different numbers.
      load_plain: is called in its place then, and wherever modules run: they compute with
        dequantised weights. None if `load` keeps no quantised ones.

    Returns:
      the model, whose other products are packed for PyTorch

    Raises:
      InvalidConfig: the configuration wants native kernels, and they cannot run it.
      Any error of load.
    """
    tried = _try_kernels(load, config, keeps=load_plain is not None)
    # Apart, because the error that says so holds the frames in which the weights are.
    loaded, native = ((load_plain or load)(), None) if tried is None else tried
    pack_products(loaded.model)
    if native is None:
        return loaded
    info = replace(loaded.info, kernels=native.name)
    return replace(loaded, native=native, info=info)


def _try_kernels(
    load: Callable[[], Loaded], config: ModelConfig, *, keeps: bool
) -> tuple[Loaded, DecoderOnKernels | None] | None:
    """Load a model and put it on the kernels; None if it must be loaded again.

    Args:
      keeps: it may have quantised weights. All processes that share its layers say the same,
        and load again together.
    """
    loaded = load()
    try:
        native = try_kernels(partial(_make_decoder, loaded, config), config)
    except OutputDiffers:
        return None
    return None if native is None and keeps else (loaded, native)


def _make_decoder(model: LoadedModel, config: ModelConfig) -> DecoderOnKernels:
    with agreeing(model.tensor_group, model.device):
        pack = _choose_kernels(model, config)
    with on_device(model.device):
        return make_decoder(
            model,
            pack,
            int8=config.quantization != "none",
            format=_find_format(model, config),
        )


@torch.inference_mode()
def make_decoder(
    model: LoadedModel,
    pack: Callable[[DecoderParts], DecoderOnKernels],
    *,
    int8: bool,
    format: str | None = None,
) -> DecoderOnKernels:
    """Make a decoder that computes the same as a model's modules.

    Args:
      model: its weights are not packed yet. Its products have none any more if this
        returns a decoder, or raises OutputDiffers.
      pack: makes the decoder; it may raise NotRecognised.
      int8: the decoder has weights of eight bits.
      format: to which plain weights are quantised before the modules run; None leaves them.

    Raises:
      NotRecognised, OutputDiffers
      StageLost: a process that shares the layers is gone.
    """
    with agreeing(model.tensor_group, model.device):
        parts = _find_parts(model)
        if model.tensor_group is not None:
            _check_split(parts, model.tensor_group)
        if format is not None:
            quantise_parts(parts, format)
    tables, steps = make_steps(
        *(model.info.vocab_size, model.device, model.dtype),
        has_states=bool(model.states),
        joins_images=model.info.joins_images,
    )
    rounds_scales = model.device.type == "cpu" and any(list_stored(parts))
    reads = [_read(model, parts, step) for step in steps]
    expected = _run_modules(model, tables, reads)
    decoder = pack_together(partial(pack, parts), model.tensor_group, model.device)
    layers = decoder.open(
        tables, num_blocks=tables.block_ids.numel(), kv_dtype=model.kv_dtype
    )
    if not model.states:
        # In most steps with prompts only last tokens are wanted, and the kernels leave out others.
        [whole] = reads
        last = replace(whole.step, tokens=whole.step.tokens[-1:])
        reads.append(replace(whole, step=last))
        expected = torch.cat((expected, expected[-1:]))
    try:
        actual = torch.cat([_run_kernels(model, layers, read) for read in reads])
    except StageLost:
        raise
    except Exception as error:
        # Kernels for GPUs are compiled now, for a device that nobody here may know.
        raise OutputDiffers(describe_failure(error)) from error
    given = None
    if not model.has_head:
        read_vectors = [read.vectors[[*read.step.tokens]].float() for read in reads]
        given = torch.cat(read_vectors) * parts.embedding_scale
    if problem := compare_decoders(
        *(expected, actual, model.dtype),
        int8=int8,
        rounds_scales=rounds_scales,
        int8_cache=model.kv_dtype == torch.int8,
        routes=any(find_mixture(body) is not None for body in parts.bodies),
        given=given,
    ):
        raise OutputDiffers(problem)
    decoder.round_inputs()
    return decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """What the layers read in a step.

    Args:
      vectors: (num_tokens, hidden_size)
      positions: as LayersOnKernels.run takes them.
      has_tokens: the modules read tokens in place of vectors.
      deepstack: added behind the first layers; None if nothing is.
    """

    step: CheckedStep
    vectors: Tensor
    positions: Tensor
    has_tokens: bool
    deepstack: Tensor | None


def _read(model: LoadedModel, parts: DecoderParts, step: CheckedStep) -> _Read:
    inputs = step.inputs
    if model.begin:
        vectors = draw_hidden(inputs, parts.hidden_size).to(model.dtype)
    else:
        vectors = model.model.get_input_embeddings()(inputs.input_ids)[0]
    positions = inputs.position_ids
    if _has_plane(model):
        positions = torch.stack((positions, positions // 3, positions % 3))
    return _Read(
        step=step,
        vectors=vectors,
        positions=positions,
        has_tokens=parts.look_up is not None,
        deepstack=None if model.deepstack is None else model.deepstack.fake(vectors),
    )


def _choose_kernels(
    model: LoadedModel, config: ModelConfig
) -> Callable[[DecoderParts], DecoderOnKernels]:
    """Return the function that packs a model's parts for the kernels of its device.

    Raises:
      NoKernels, NotRecognised
    """
    if model.device.type == "cuda":
        return partial(_fuse, config=config, group=model.tensor_group)
    if model.device.type != "cpu":
        raise NotRecognised(f"they do not run on {model.device.type}")
    if model.dtype not in NUMBERS:
        raise NotRecognised(f"they have no {model.info.dtype}")
    library, num_threads = open_library(), torch.get_num_threads()
    int8 = config.quantization == "int8"
    return lambda parts: NativeDecoder(
        parts, library, num_threads, int8=int8, group=model.tensor_group
    )


def _find_format(model: LoadedModel, config: ModelConfig) -> str | None:
    """Return the format to which a GPU's plain weights are quantised; kernels on CPUs do it."""
    quantises = model.device.type == "cuda" and config.quantization != "none"
    return config.quantization if quantises else None


def _fuse(
    parts: DecoderParts, *, config: ModelConfig, group: TensorGroup | None
) -> DecoderOnKernels:
    try:
        from ..runtimes.fused.decoder import FusedDecoder
        from ..runtimes.fused.graphs import CudaGraphs
    except ImportError:
        raise NotRecognised("triton is not installed") from None
    return FusedDecoder(
        parts,
        CudaGraphs if config.cuda_graphs else None,
        group=group,
    )


def _find_parts(model: LoadedModel) -> DecoderParts:
    num_checked = NUM_CHECKED_WITH_STATES if model.states else NUM_CHECKED
    try:
        return find_parts(
            model.model,
            model.layers,
            max(model.info.max_model_len, num_checked),
            begin=model.begin,
            end=model.end,
            has_plane=_has_plane(model),
        )
    except NotRecognised:
        raise
    except Exception as error:
        raise NotRecognised.hide(error) from error


def _check_split(parts: DecoderParts, group: TensorGroup) -> None:
    """Refuse layers with a whole part: the kernels add up what sublayers add.

    Raises:
      NotRecognised
    """
    for body in parts.bodies:
        if not all(map(group.sums, _list_summed(body))):
            raise NotRecognised("a part of its layers is whole on each process")


def _list_summed(body: Body) -> list[nn.Module]:
    """Return the modules whose outputs are added to the hidden states.

    Raises:
      NotRecognised: outputs change before they are added.
    """
    if isinstance(body, LookupParts):
        raise NotRecognised("every layer looks up the tokens again")
    if isinstance(body, BesideParts):
        raise NotRecognised("experts and a network are normalized apart")
    if not isinstance(body, MixtureParts):
        return [body.output]
    if body.output is not None:
        raise NotRecognised(
            "its experts read fewer numbers than its hidden states have"
        )
    shared = [] if body.shared is None else [body.shared.output]
    return [body.experts, *shared]


def _run_kernels(model: LoadedModel, layers: LayersOnKernels, read: _Read) -> Tensor:
    """Return the logits of a step's compared tokens, or their hidden states."""
    step = read.step
    output = layers.run(
        *(read.vectors, step.inputs, step.tokens, read.positions), read.deepstack
    )
    return model.join_logits(output) if model.has_head else output[[*step.tokens]]


def _run_modules(
    model: LoadedModel, tables: SlotTables, reads: Sequence[_Read]
) -> Tensor:
    """Return the logits of the compared tokens of all steps, or their hidden states."""
    layers = ModuleLayers(model, tables, tables.block_ids.numel(), GatherAttention)
    outputs = []
    for read in reads:
        inputs, tokens = read.step.inputs, read.step.tokens
        arguments = {"position_ids": read.positions}
        if read.has_tokens:
            arguments |= {"input_ids": inputs.input_ids}
        else:
            arguments |= model.enter(read.vectors)
        if read.deepstack is not None:
            arguments[ADDED] = read.deepstack
        output = layers.begin(inputs).compute(arguments, tokens)
        outputs.append(output if model.has_head else output[[*tokens]])
    return torch.cat(outputs)


def _has_plane(model: LoadedModel) -> bool:
    return model.vision is not None and model.vision.has_grid_positions
