"""Put the layers of a loaded model on the native kernels, if they can run there."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from ...config import ModelConfig
from ...errors import InvalidConfig, shorten_message
from ...kernels.library import NoKernels, open_library
from ..attention.backend import PagedModel
from ..attention.choose import choose_paged_backend
from ..native.check import COMPARED_TOKENS, TOLERANCES, make_check, measure_distance
from ..native.decoder import NativeDecoder
from ..native.parts import DecoderParts, NotRecognised, find_parts
from .loaded import LoadedModel

logger = logging.getLogger(__name__)


def load_decoder(model: LoadedModel, config: ModelConfig) -> NativeDecoder | None:
    """Pack the weights of a model for the native kernels.

    Args:
      model: its weights are not packed yet. If this returns a decoder, its products have
        none any more.

    Returns:
      None if the model runs by its modules

    Raises:
      InvalidConfig: the configuration wants native kernels, and they cannot run it.
    """
    if config.kernels == "torch":
        logger.info("kernels: torch, as --kernels says")
        return None
    try:
        parts, decoder = _make_decoder(model, config)
    except (NoKernels, NotRecognised) as error:
        if config.kernels == "native":
            raise InvalidConfig("kernels", f"native cannot be used: {error}") from None
        logger.info("kernels: torch, because %s", error)
        return None
    _drop_weights(parts)
    logger.info("kernels: %s, %d threads", decoder.name, decoder.num_threads)
    return decoder


@torch.inference_mode()
def _make_decoder(
    model: LoadedModel, config: ModelConfig
) -> tuple[DecoderParts, NativeDecoder]:
    """Make a decoder that computes what a model's modules compute.

    Raises:
      NoKernels, NotRecognised
    """
    if model.device.type != "cpu":
        raise NotRecognised(f"they run on CPUs, not on {model.device.type}")
    if model.dtype not in TOLERANCES:
        raise NotRecognised(f"they have no {model.info.dtype}")
    if model.vision is not None:
        raise NotRecognised("they run models of text alone")
    library = open_library()
    try:
        parts = find_parts(model.model, model.layers, model.info.max_model_len)
    except NotRecognised:
        raise
    except Exception as error:
        # Models differ in more ways than anybody can list, and their modules still run.
        raise NotRecognised(shorten_message(error)) from error
    decoder = NativeDecoder(parts, library, torch.get_num_threads())
    _compare(model, decoder)
    return parts, decoder


def _compare(model: LoadedModel, decoder: NativeDecoder) -> None:
    tables, inputs = make_check(model.info.vocab_size)
    num_blocks = tables.block_ids.shape[1]
    paged = PagedModel(
        layers=model.layers,
        num_blocks=num_blocks,
        block_size=tables.block_size,
        dtype=model.dtype,
        device=model.device,
    )
    attention = choose_paged_backend(paged, tables)
    with model.attention.use(attention.begin(inputs)):
        expected = model.compute(
            {"input_ids": inputs.input_ids, "position_ids": inputs.position_ids},
            COMPARED_TOKENS,
        )
    vectors: Tensor = model.model.get_input_embeddings()(inputs.input_ids)[0]
    actual = decoder.open(tables, num_blocks=num_blocks).run(
        vectors, inputs, COMPARED_TOKENS
    )
    distance = measure_distance(expected, actual)
    # Not a number is no small distance.
    if not distance <= TOLERANCES[model.dtype]:
        raise NotRecognised(f"its logits would differ by {distance:.2g} of their size")


def _drop_weights(parts: DecoderParts) -> None:
    """Free the weights of a model's products, which are packed."""
    products = [parts.head]
    for layer in parts.layers:
        products += [*layer.qkv, layer.output, *layer.gate_up, layer.down]
    for product in products:
        weight = product.weight
        # Some models read the type or the shape of a weight.
        empty = weight.new_empty(()).expand(weight.shape)
        product.weight = nn.Parameter(empty, requires_grad=False)
