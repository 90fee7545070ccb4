"""Load a model from the blocks of its GGUF file.

Only the native kernels can run it, which pack the blocks themselves. There are no modules to
compare its logits with. So this is for the architectures whose logits the tests compare, and
all others are converted to safetensors first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ...config import ModelConfig
from ...kernels.library import NoKernels, open_library
from ...types.gguf import GgufFile
from ..attention.cache_memory import choose_kv_dtype
from ..attention.probe import LayerSpec, UnfitLayer
from ..runtimes.choice import NotRecognised, log_kernels
from ..runtimes.loaded import LoadedModel
from ..runtimes.native.decoder import NativeDecoder
from ..runtimes.native.packer import NUMBERS, name_kind
from ..runtimes.recognise.decoder import find_parts
from ..self_check.steps import make_check
from .files.facts import ModelFacts, read_facts
from .gguf.tensors import fill_model
from .load import describe_model, make_ready, takes_logits_to_keep
from .outline import build_on_meta
from .watching import watch_model

logger = logging.getLogger(__name__)

# Names of llama.cpp, of files without rules of their own. tests/model/test_packed.py compares
# each with transformers, and test_packed_families.py those with rules.
_ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3")


def load_packed(
    folder: Path, file: GgufFile, config: ModelConfig, *, name: str
) -> LoadedModel | None:
    """Load a model with the weights in its GGUF file.

    Args:
      folder: holds config.json; its weights come from the file.
      config, name: as for load_model.

    Returns:
      None if the model must run by modules, so that the file must be converted

    Raises:
      UnsupportedModel, WeightsBroken, InvalidConfig: as load_model.
    """
    if not config.wants_native:
        return None
    facts = read_facts(folder, config)
    try:
        return _load(folder, file, config, facts, name)
    except (NoKernels, NotRecognised, UnfitLayer) as error:
        reason: Exception = error
    except Exception as error:
        # The file may still be converted.
        reason = NotRecognised.hide(error)
    logger.info("weights: not from %s itself, because %s", file.path.name, reason)
    return None


@torch.inference_mode()
def _load(
    folder: Path, file: GgufFile, config: ModelConfig, facts: ModelFacts, name: str
) -> LoadedModel:
    dtype = _choose_dtype(config, facts)
    if file.make_rules is None and file.architecture not in _ARCHITECTURES:
        raise NotRecognised(
            f"kernels for the architecture {file.architecture} are missing"
        )
    if facts.device.type != "cpu":
        raise NotRecognised(f"kernels run on CPUs, not on {facts.device.type}")
    library = open_library()
    # On this device, products of experts do not run in float32.
    model = build_on_meta(facts, torch.bfloat16)
    watched = watch_model(model)
    if dtype != model.dtype:
        # It would convert buffers, too, and the frequencies of rotary angles are float32.
        torch.nn.Module.to(model, dtype)
    names: dict[Tensor, str] = {
        parameter: name for name, parameter in model.named_parameters()
    }
    sources = fill_model(model, file, dtype)
    layers = tuple(_take_sinks(each, model, names) for each in watched.layers)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    make_ready(model, facts)
    parts = find_parts(model, layers, facts.max_model_len)
    kinds = sorted({name_kind(each) for rows in sources.values() for each in rows})
    native = NativeDecoder(
        parts,
        library,
        torch.get_num_threads(),
        int8=config.quantization == "int8",
        sources=sources,
    )
    _check_finite(model, native)
    logger.info("weights: %s, read from %s", ", ".join(kinds), file.path.name)
    log_kernels(native)
    info = describe_model(
        *(model, facts, config),
        name=name,
        layers=layers,
        states=watched.states,
    )
    return LoadedModel(
        model=model,
        info=replace(info, kernels=native.name),
        attention=watched.attention,
        layers=layers,
        states=watched.states,
        stateful=watched.stateful,
        takes_logits_to_keep=takes_logits_to_keep(model),
        kv_dtype=choose_kv_dtype(config, dtype),
        native=native,
    )


def _check_finite(model: PreTrainedModel, native: NativeDecoder) -> None:
    """Refuse weights with which the kernels compute no numbers.

    The file may have such weights, or scales that do not fit into float16.

    Raises:
      NotRecognised
    """
    embed: Any = model.get_input_embeddings()
    tables, inputs = make_check(len(embed.weight))
    layers = native.open(tables, num_blocks=tables.block_ids.numel())
    vectors = embed(inputs.input_ids)[0]
    logits = layers.run(vectors, inputs, inputs.last_tokens, inputs.position_ids)
    if not logits.isfinite().all():
        raise NotRecognised("its logits would not be finite")


def _take_sinks(
    layer: LayerSpec, model: torch.nn.Module, names: Mapping[Tensor, str]
) -> LayerSpec:
    """Give a layer that was watched without numbers the sinks of the file.

    Args:
      names: of the parameters when it was watched.
    """
    if layer.sinks is None:
        return layer
    if layer.sinks not in names:
        raise NotRecognised("the sinks of its attention are no parameter")
    return replace(layer, sinks=model.get_parameter(names[layer.sinks]))


def _choose_dtype(config: ModelConfig, facts: ModelFacts) -> torch.dtype:
    """Return the type of the KV cache and of the vectors of tokens."""
    if config.dtype == "auto":
        dtype = facts.config.dtype
    else:
        dtype = getattr(torch, config.dtype)
    if dtype not in NUMBERS:
        raise NotRecognised(f"kernels for {dtype} are missing")
    assert isinstance(dtype, torch.dtype), "config.json names a type of torch"
    return dtype
