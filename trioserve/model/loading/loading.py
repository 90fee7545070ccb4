"""Build a model from a folder, or say in one sentence why it cannot be served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import inspect
import json
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from ...config import ModelConfig
from ...errors import InvalidConfig, InvalidParameter, UnsupportedModel, WeightsBroken
from ...types.model_info import ModelInfo
from ...types.sampling import SamplingParams
from ..attention.bridge import IMPLEMENTATION, AttentionContext
from ..attention.cache_memory import count_kv_bytes
from ..attention.probe import LayerSpec, UnfitLayer, probe_layers
from ..tensors import send_ids
from .packing import pack_products
from .quantisation import Dequantisation, check_quantisation, plan_dequantisation
from .rotary import freeze_rotary
from .vision import VISION_KINDS, VisionKind, find_vision_kind

logger = logging.getLogger(__name__)

# What generation_config.json may say that vLLM takes as defaults too
# (ModelConfig.get_diff_sampling_param); its do_sample is ignored there as here.
_DEFAULT_SAMPLING_FIELDS = (
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)

_PAGED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

# Their max_position_embeddings counts the stretched positions already; the other kinds
# of scaling stretch it by `factor`. As vLLM's _get_and_verify_max_len.
_ROPE_TYPES_ALREADY_STRETCHED = frozenset(
    {"default", "llama3", "longrope", "su", "mrope"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model on its device, ready for a ModelRunner.

    One runner at a time steps it: its attention leads to one cache.

    Args:
      model: transformers' model, in evaluation mode.
      info: what the other rooms know of it.
      attention: where its modules ask for attention.
      layers: its calls of attention, in order.
      takes_logits_to_keep: its forward pass can leave out logits that nobody reads.
      vision: how it sees images; None where it reads nothing but text.
    """

    model: PreTrainedModel
    info: ModelInfo
    attention: AttentionContext
    layers: tuple[LayerSpec, ...]
    takes_logits_to_keep: bool
    vision: VisionKind | None = None

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    def compute(self, arguments: dict[str, Tensor], tokens: Sequence[int]) -> Tensor:
        """Run the model over one step; its attention is in use.

        Args:
          arguments: what the model reads, by name.
          tokens: the flat tokens whose logits are wanted.

        Returns:
          (len(tokens), vocab_size) logits
        """
        index = send_ids(tokens, self.device)
        wanted = {"logits_to_keep": index} if self.takes_logits_to_keep else {}
        output = self.model(**arguments, use_cache=False, **wanted)
        logits: Tensor = output.logits[0]
        return logits if self.takes_logits_to_keep else logits[index]


def load_model(folder: Path, config: ModelConfig, *, name: str) -> LoadedModel:
    """Load the model in `folder`, a folder in Hugging Face layout.

    Args:
      folder: holds config.json and the weights.
      config: type, device and limits.
      name: what clients call the model.

    Raises:
      UnsupportedModel: its architecture cannot run on paged attention.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option asks for what the model or the machine has not.
    """
    facts = read_facts(folder, config)
    model = read_weights(
        AutoModelForCausalLM if facts.vision is None else AutoModelForImageTextToText,
        folder,
        config,
        attention=facts.attention,
    )
    make_ready(model, facts)
    context = AttentionContext(model)
    try:
        layers = probe_layers(model, context)
        check_causality(layers)
        check_windows(facts.config, layers)
    except UnfitLayer as error:
        raise UnsupportedModel(facts.architecture, str(error)) from None
    return LoadedModel(
        model=model,
        info=describe(model, facts, name=name, layers=layers),
        attention=context,
        layers=layers,
        takes_logits_to_keep=takes_logits_to_keep(model),
        vision=facts.vision,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model before its weights are read.

    Args:
      config: the model's own.
      vision: as in LoadedModel.
    """

    config: PreTrainedConfig
    device: torch.device
    architecture: str
    max_model_len: int
    default_sampling: tuple[tuple[str, float], ...]
    vision: VisionKind | None

    @property
    def attention(self) -> str | dict[str, str]:
        """What transformers is to call where the model attends."""
        if self.vision is None:
            return IMPLEMENTATION
        # An image's patches attend to each other within one call, without a cache.
        return {"text_config": IMPLEMENTATION, "vision_config": "sdpa"}


def read_facts(folder: Path, config: ModelConfig) -> ModelFacts:
    """Find out what a folder holds, and refuse what cannot be served."""
    device = resolve_device(config.device)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    model_config = read_config(folder)
    return ModelFacts(
        config=model_config,
        device=device,
        architecture=_check_architecture(model_config),
        max_model_len=_resolve_max_model_len(model_config, config.max_model_len),
        default_sampling=_read_default_sampling(folder, config),
        vision=find_vision_kind(model_config),
    )


def takes_images(folder: Path) -> bool:
    """Whether a folder's model sees images, by its config.json."""
    return find_vision_kind(read_config(folder)) is not None


def make_ready(model: PreTrainedModel, facts: ModelFacts) -> None:
    """Send a model to its device and make of it what is run there."""
    # nn.Module's own, because transformers wraps it without types.
    torch.nn.Module.to(model, facts.device)
    model.eval()
    freeze_rotary(model, facts.max_model_len)
    pack_products(model)


def describe(
    model: PreTrainedModel,
    facts: ModelFacts,
    *,
    name: str,
    layers: tuple[LayerSpec, ...],
    whole: PreTrainedModel | None = None,
) -> ModelInfo:
    """Say of a model what other rooms need to know.

    Args:
      layers: those whose keys and values are kept here.
      whole: has all modules, where `model` does not.
    """
    return ModelInfo(
        name=name,
        architecture=facts.architecture,
        vocab_size=_count_vocabulary(whole or model),
        max_model_len=facts.max_model_len,
        eos_token_ids=_resolve_eos(model),
        default_sampling=facts.default_sampling,
        kv_bytes_per_token=count_kv_bytes(layers, model.dtype),
        hidden_size=_count_hidden(whole or model),
        dtype=str(model.dtype).removeprefix("torch."),
        takes_images=facts.vision is not None,
    )


def takes_logits_to_keep(model: PreTrainedModel) -> bool:
    """Whether its forward pass can leave out logits that nobody reads."""
    return "logits_to_keep" in inspect.signature(type(model).forward).parameters


def resolve_device(name: str) -> torch.device:
    """Return the device that a configuration names, or say that it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        # Allocating is the only question that every device answers.
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidConfig(
            "device", f"{name!r} cannot be used: {shorten(error)}"
        ) from None
    if device.type not in ("cpu", "cuda"):
        raise InvalidConfig("device", f"{name!r} is not one of cpu, cuda, cuda:N, auto")
    return device


def read_config(folder: Path) -> PreTrainedConfig:
    """Read a model's config.json, or say in one sentence what is wrong with it.

    Raises:
      WeightsBroken, UnsupportedModel, UnsupportedQuantization
    """
    try:
        described = json.loads((folder / "config.json").read_text())
        model_type = described.get("model_type", "(no model_type)")
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsBroken(str(folder), f"config.json: {shorten(error)}") from None
    check_quantisation(folder, described)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(
            folder, local_files_only=True
        )
    except ValueError as error:
        # transformers has one error for a type that it does not know, for one that
        # needs code of its own, and for values that make no sense.
        raise UnsupportedModel(str(model_type), shorten(error)) from None
    except Exception as error:
        # A configuration is code's input: whatever its constructor trips over, the
        # file is what is wrong.
        raise WeightsBroken(str(folder), f"config.json: {shorten(error)}") from None
    return config


def _check_architecture(config: PreTrainedConfig) -> str:
    """Return the name of the class that will be built, or refuse what is no decoder.

    Refuses before gigabytes are read what the probe would refuse after.
    """
    model_class = find_class(config)
    architecture: str = model_class.__name__
    text_config = config.get_text_config(decoder=True)
    for is_wrong, reason in (
        (
            not model_class._supports_attention_backend,
            "its attention cannot be replaced in transformers",
        ),
        (model_class._is_stateful, "it keeps a state besides keys and values"),
        (
            bool(getattr(text_config, "num_kv_shared_layers", 0)),
            "its layers share keys and values",
        ),
        (
            not set(getattr(text_config, "layer_types", None) or ())
            <= _PAGED_LAYER_TYPES,
            "it has layers besides full and sliding-window attention",
        ),
        (
            find_vision_kind(config) is not None
            and config.image_token_id >= text_config.vocab_size,
            "the token that stands for images lies outside of its vocabulary",
        ),
    ):
        if is_wrong:
            raise UnsupportedModel(architecture, reason)
    return architecture


def find_class(config: PreTrainedConfig) -> Any:
    declared = (config.architectures or [config.model_type])[0]
    if find_vision_kind(config) is not None:
        mapping = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    elif type(config) in MODEL_FOR_CAUSAL_LM_MAPPING and not config.is_encoder_decoder:
        mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    elif type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise UnsupportedModel(
            declared,
            f"of models that see images, only {', '.join(VISION_KINDS)} are served, "
            "each with the text and image models that it was published with",
        )
    else:
        raise UnsupportedModel(declared, "it is not a decoder that generates text")
    model_class = mapping[type(config)]
    return model_class[0] if isinstance(model_class, tuple) else model_class


def check_causality(layers: tuple[LayerSpec, ...]) -> None:
    for layer in layers:
        if not layer.is_causal:
            raise UnfitLayer(f"{layer.module_name} looks at tokens that follow")


def check_windows(
    config: PreTrainedConfig,
    layers: tuple[LayerSpec, ...],
    among: slice = slice(None),
) -> None:
    """Refuse models whose sliding windows do not reach the attention function.

    They would look further back than they were trained to, and nobody would notice.

    Args:
      among: which of the model's layers these are.
    """
    text_config = config.get_text_config(decoder=True)
    layer_types = (getattr(text_config, "layer_types", None) or ())[among]
    num_windows = sum(layer.window is not None for layer in layers)
    if layer_types and num_windows != layer_types.count("sliding_attention"):
        raise UnfitLayer(
            f"{layer_types.count('sliding_attention')} of its layers have a sliding "
            f"window, but {num_windows} pass it to attention"
        )


def read_weights(
    build: Any,
    folder: Path,
    config: ModelConfig,
    *,
    attention: str | dict[str, str] | None,
    may_lack: tuple[str, ...] = (),
) -> PreTrainedModel:
    """Build a model and fill it, or say in one sentence what is wrong with its files.

    Args:
      build: one of transformers' AutoModel classes.
      attention: the implementation; None is the best of transformers' own.
      may_lack: beginnings of the names of weights that nobody will use.
    """
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    dequantisation = plan_dequantisation(read_config(folder), dtype)
    if dequantisation is not None:
        logger.info(
            "weights quantised by %s are dequantised to %s as they are read, and take as "
            "much memory as if they had never been quantised",
            dequantisation.method,
            str(dequantisation.dtype).removeprefix("torch."),
        )
    try:
        # With output_loading_info it returns a pair, which its type does not say.
        loaded = build.from_pretrained(
            folder,
            attn_implementation=attention,
            local_files_only=True,
            output_loading_info=True,
            **_choose_numbers(dequantisation, dtype),
        )
    except Exception as error:
        # Weights are read by half a dozen libraries, each with errors of its own; to
        # whoever starts the server they all mean that this folder does not load.
        raise WeightsBroken(str(folder), shorten(error)) from error
    model: PreTrainedModel
    model, report = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        # Such tensors are left with random numbers.
        names = [
            name for name in map(str, report[problem]) if not name.startswith(may_lack)
        ]
        if names:
            raise WeightsBroken(
                str(folder),
                f"{len(names)} {problem.replace('_', ' ')}, such as {min(names)}",
            )
    if dequantisation is not None:
        dequantisation.finish(model)
    return model


def _choose_numbers(
    dequantisation: Dequantisation | None, dtype: torch.dtype | None
) -> dict[str, object]:
    """Return what from_pretrained has to know of the type of weights."""
    if dequantisation is None:
        return {"dtype": dtype or "auto"}
    return {"dtype": dequantisation.dtype, "config": dequantisation.config}


def _count_vocabulary(model: PreTrainedModel) -> int:
    projection = model.get_output_embeddings()
    if projection is not None:
        return int(projection.weight.shape[0])
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _count_hidden(model: PreTrainedModel) -> int:
    """Return the width of vectors that can stand for tokens, 0 where none can."""
    if getattr(
        model.config.get_text_config(decoder=True), "hidden_size_per_layer_input", 0
    ):
        # Every layer looks the token up again, and a vector has none.
        return 0
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[1])


def _resolve_max_model_len(config: PreTrainedConfig, asked: int | None) -> int:
    limit = count_positions(config)
    if limit is None:
        if asked is None:
            raise InvalidConfig(
                "max_model_len", "must be given: the model's config.json has no limit"
            )
        return asked
    if asked is not None and asked > limit:
        raise InvalidConfig(
            "max_model_len", f"{asked} is more than the model's own {limit}"
        )
    return asked or limit


def count_positions(config: PreTrainedConfig) -> int | None:
    """Return how many tokens a model tells apart by position; None where all."""
    text_config = config.get_text_config(decoder=True)
    limit = getattr(text_config, "max_position_embeddings", None)
    if limit is None:
        return None
    return _stretch(limit, getattr(text_config, "rope_parameters", None) or {})


def _stretch(limit: int, rope: dict[str, Any]) -> int:
    """Return the positions that a scaled rotary embedding reaches."""
    rope_type = rope.get("rope_type", "default")
    # Embeddings of different layer types are nested one deeper; those are not scaled
    # beyond what max_position_embeddings says.
    if not isinstance(rope_type, str) or rope_type in _ROPE_TYPES_ALREADY_STRETCHED:
        return limit
    if rope_type == "yarn":
        limit = rope.get("original_max_position_embeddings") or limit
    return int(limit * float(rope.get("factor") or 1.0))


def _resolve_eos(model: PreTrainedModel) -> frozenset[int]:
    eos = None
    if model.generation_config is not None:
        eos = model.generation_config.eos_token_id
    if eos is None:
        eos = getattr(model.config.get_text_config(decoder=True), "eos_token_id", None)
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)


def _read_default_sampling(
    folder: Path, config: ModelConfig
) -> tuple[tuple[str, float], ...]:
    path = folder / "generation_config.json"
    if config.generation_config == "none" or not path.exists():
        return ()
    try:
        described = json.loads(path.read_text())
        # transformers' own defaults are not the model's, so only what stands there.
        fields = {
            name: described[name]
            for name in _DEFAULT_SAMPLING_FIELDS
            if described.get(name) is not None
        }
        SamplingParams(**fields)
    except (OSError, ValueError, TypeError, AttributeError, InvalidParameter) as error:
        raise InvalidConfig(
            "generation_config",
            f"the model's generation_config.json cannot be used ({shorten(error)}); "
            "pass none to leave it out",
        ) from None
    return tuple(fields.items())


def shorten(error: BaseException) -> str:
    """Return the first line of a library's message; what follows is advice."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
