"""Put the layers of a loaded model on the native kernels, if they can run there."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from ...config import ModelConfig
from ...errors import InvalidConfig, shorten_message
from ...kernels.library import NoKernels, open_library
from ..attention.backend import PagedModel
from ..attention.choose import choose_paged_backend
from ..attention.layout import StepInputs
from ..native.check import COMPARED_TOKENS, TOLERANCES, make_check, measure_distance
from ..native.decoder import NativeDecoder
from ..native.parts import NotRecognised, find_parts
from ..slots import SlotTables
from .loaded import LoadedModel

logger = logging.getLogger(__name__)


class LogitsDiffer(Exception):
    """Raised when the kernels compute something else than the modules; those are gone."""


def load_decoder(model: LoadedModel, config: ModelConfig) -> NativeDecoder | None:
    """Pack the weights of a model for the native kernels.

    Args:
      model: its weights are not packed yet. Its products have none any more if this
        returns a decoder, or raises LogitsDiffer.

    Returns:
      None if the model runs by its modules

    Raises:
      InvalidConfig: the configuration wants native kernels, and they cannot run it.
      LogitsDiffer: the model must be loaded again to run by its modules.
    """
    if config.kernels == "torch":
        logger.info("kernels: torch, as --kernels says")
        return None
    try:
        decoder = _make_decoder(model)
    except (NoKernels, NotRecognised, LogitsDiffer) as error:
        if config.kernels == "native":
            raise InvalidConfig("kernels", f"native cannot be used: {error}") from None
        logger.info("kernels: torch, because %s", error)
        if isinstance(error, LogitsDiffer):
            raise
        return None
    logger.info("kernels: %s, %d threads", decoder.name, decoder.num_threads)
    return decoder


@torch.inference_mode()
def _make_decoder(model: LoadedModel) -> NativeDecoder:
    """Make a decoder that computes what a model's modules compute.

    Raises:
      NoKernels, NotRecognised, LogitsDiffer
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
    tables, inputs = make_check(model.info.vocab_size)
    vectors: Tensor = model.model.get_input_embeddings()(inputs.input_ids)[0]
    expected = _run_modules(model, tables, inputs)
    decoder = NativeDecoder(parts, library, torch.get_num_threads())
    layers = decoder.open(tables, num_blocks=tables.block_ids.shape[1])
    distance = measure_distance(expected, layers.run(vectors, inputs, COMPARED_TOKENS))
    # Not a number is no small distance.
    if not distance <= TOLERANCES[model.dtype]:
        raise LogitsDiffer(f"its logits would differ by {distance:.2g} of their size")
    return decoder


def _run_modules(model: LoadedModel, tables: SlotTables, inputs: StepInputs) -> Tensor:
    """Return the logits of COMPARED_TOKENS."""
    paged = PagedModel(
        layers=model.layers,
        num_blocks=tables.block_ids.shape[1],
        block_size=tables.block_size,
        dtype=model.dtype,
        device=model.device,
    )
    attention = choose_paged_backend(paged, tables)
    arguments = {"input_ids": inputs.input_ids, "position_ids": inputs.position_ids}
    with model.attention.use(attention.begin(inputs)):
        return model.compute(arguments, COMPARED_TOKENS)
