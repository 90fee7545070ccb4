"""Load a model from a folder, or say in one sentence why it cannot be served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import inspect
import logging
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from ...config import ModelConfig
from ...errors import UnsupportedModel, shorten_message
from ...types.model_info import ModelInfo
from ..attention.cache_memory import choose_kv_dtype, count_kv_bytes
from ..attention.probe import LayerSpec, UnfitLayer
from ..attention.windows import find_windows
from ..runtimes.deepstack import Deepstack
from ..runtimes.loaded import LoadedModel
from ..states.spec import StateSpec, count_state_bytes
from .adapt.embeddings import scale_in_embedding
from .adapt.indexers import leave_out_indexers
from .adapt.latents import keep_latents
from .adapt.rotary import freeze_rotary
from .adapt.step_limits import follow_step_limits
from .adapt.temperature import follow_positions
from .check_modules import check_modules
from .choose_runtime import load_on_kernels
from .files.config_file import check_dequantisation
from .files.facts import ModelFacts, read_facts
from .files.generation_config import find_eos
from .obstacle import find_obstacle
from .outline import find_dtype, watch_outline
from .pruning import choose_class
from .watching import watch_model
from .weights import read_weights

logger = logging.getLogger(__name__)

Loaded = TypeVar("Loaded", bound=LoadedModel)


def load_model(folder: Path, config: ModelConfig, *, name: str) -> LoadedModel:
    """Load the model in `folder`, a folder in Hugging Face layout.

    Args:
      folder: holds config.json and the weights.
      config: type, device and limits.
      name: the model's name for clients.

    Raises:
      UnsupportedModel: its architecture cannot run on paged attention.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option does not fit the model or the machine.
      UnsupportedQuantization: its weights cannot be read, or need --dequantize.
    """
    return load_keeping(
        folder,
        config,
        lambda config, facts: load_modules(folder, config, facts, name),
    )


def load_keeping(
    folder: Path,
    config: ModelConfig,
    load: Callable[[ModelConfig, ModelFacts], Loaded],
) -> Loaded:
    """Load a model; quantised weights stay as they are if the kernels run it.

    Args:
      load: loads the modules of a model, or of one stage of it.

    Raises: the errors of load_model.
    """
    facts = read_facts(folder, config)
    if not _can_keep(folder, config, facts):
        facts = replace(facts, keeps_weights=False)
        return load_on_kernels(lambda: load(config, facts), config)
    keeping = config
    if config.dtype == "auto" and find_dtype(facts, config) != facts.config.dtype:
        keeping = replace(config, dtype="bfloat16")
        logger.info("quantised weights run in bfloat16; config.json names float16")
    dequantised = replace(config, dequantize=True)
    plain = replace(facts, keeps_weights=False)
    return load_on_kernels(
        lambda: load(keeping, facts), keeping, lambda: load(dequantised, plain)
    )


def _can_keep(folder: Path, config: ModelConfig, facts: ModelFacts) -> bool:
    """Return whether the kernels can run the model with its quantised weights.

    Raises:
      UnsupportedQuantization: they cannot, and the weights are not dequantised unasked.
    """
    if not facts.keeps_weights:
        return False
    dtype = find_dtype(facts, config) or torch.float32
    obstacle = find_obstacle(facts, watch_outline(facts), dtype)
    if obstacle is not None:
        check_dequantisation(folder, config, obstacle)
    return obstacle is None


def load_modules(
    folder: Path, config: ModelConfig, facts: ModelFacts, name: str
) -> LoadedModel:
    """Load the modules of a model, and watch their attention."""
    model = read_weights(
        AutoModelForCausalLM if facts.is_of_text else choose_class(facts),
        folder,
        config,
        device=facts.device,
        attention=facts.attention,
        keeps=facts.keeps_weights,
    )
    make_ready(model, facts)
    try:
        loaded = _watch(model, facts, config, name)
        check_modules(loaded, facts.attention)
    except UnfitLayer as error:
        raise UnsupportedModel(facts.architecture, str(error)) from None
    except Exception as error:
        # The model's own code runs here for the first time.
        raise UnsupportedModel(
            facts.architecture, f"its forward pass fails ({shorten_message(error)})"
        ) from error
    return loaded


def _watch(
    model: PreTrainedModel, facts: ModelFacts, config: ModelConfig, name: str
) -> LoadedModel:
    """Find a model's calls of attention, and its states.

    Raises:
      UnfitLayer
    """
    watched = watch_model(model)
    return LoadedModel(
        model=model,
        info=describe_model(
            *(model, facts, config),
            name=name,
            layers=watched.layers,
            states=watched.states,
        ),
        attention=watched.attention,
        layers=facts.mark(watched.layers),
        states=watched.states,
        stateful=watched.stateful,
        takes_logits_to_keep=takes_logits_to_keep(model),
        vision=facts.vision,
        deepstack=find_deepstack(model, facts),
        attention_backend=config.attention_backend,
        kv_dtype=choose_kv_dtype(config, model.dtype),
        wants_native=config.wants_native,
        products=watched.products,
    )


def make_ready(model: PreTrainedModel, facts: ModelFacts) -> None:
    """Send the rest of a model to its device and prepare it to run there."""
    # nn.Module's own, because transformers wraps it without types.
    torch.nn.Module.to(model, facts.device)
    model.eval()
    freeze_rotary(model, facts.max_model_len)
    follow_positions(model)
    scale_in_embedding(model)
    follow_step_limits(model)
    leave_out_indexers(model)
    keep_latents(model)


def find_deepstack(model: PreTrainedModel, facts: ModelFacts) -> Deepstack | None:
    """Return the adder of images' vectors behind the first layers; None without any."""
    if not facts.num_deepstack_layers:
        return None
    layers: Any = model.get_decoder().layers
    return Deepstack(layers[: facts.num_deepstack_layers])


def describe_model(
    model: PreTrainedModel,
    facts: ModelFacts,
    config: ModelConfig,
    *,
    name: str,
    layers: tuple[LayerSpec, ...],
    states: tuple[StateSpec, ...] = (),
    whole: PreTrainedModel | None = None,
) -> ModelInfo:
    """Describe a model for other rooms.

    Args:
      layers: the layers whose keys and values are kept here.
      states: the states that are kept here.
      whole: the model with all its modules, if `model` is a stage of it.
    """
    kv_dtype = choose_kv_dtype(config, model.dtype)
    return ModelInfo(
        name=name,
        architecture=facts.architecture,
        vocab_size=_count_vocabulary(whole or model),
        max_model_len=facts.max_model_len,
        eos_token_ids=find_eos(model),
        default_sampling=facts.default_sampling,
        kv_bytes_per_token=count_kv_bytes(layers, kv_dtype),
        windows=find_windows(layers, kv_dtype),
        state_bytes=count_state_bytes(states, model.dtype),
        hidden_size=_count_hidden(whole or model),
        dtype=str(model.dtype).removeprefix("torch."),
        takes_images=facts.vision is not None,
        joins_images=facts.vision is not None and facts.vision.joins != "none",
    )


def takes_logits_to_keep(model: PreTrainedModel) -> bool:
    """Return whether its forward pass can leave out unwanted logits."""
    return "logits_to_keep" in inspect.signature(type(model).forward).parameters


def _count_vocabulary(model: PreTrainedModel) -> int:
    projection = model.get_output_embeddings()
    if projection is not None:
        return int(projection.weight.shape[0])
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _count_hidden(model: PreTrainedModel) -> int:
    """Return the width of vectors that can replace tokens; 0 if none can."""
    if getattr(
        model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", 0
    ):
        # Every layer looks up the token again, and a vector has no token.
        return 0
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[1])
