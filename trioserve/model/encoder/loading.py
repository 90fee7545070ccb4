"""Load an encoder from a folder, or say in one sentence why it cannot be served."""

from __future__ import annotations

from dataclasses import replace
import inspect
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from ...config import ModelConfig
from ...errors import InvalidConfig, UnsupportedModel, WeightsBroken, shorten_message
from ...types.model_info import ModelInfo
from ...types.pooling import PoolingTask
from ...types.sentence import SentenceFolder
from ..device.choose import resolve_device, set_threads
from ..loading.adapt.rotary import freeze_rotary
from ..loading.files.config_file import read_config
from ..loading.files.positions import count_positions
from ..loading.weights import read_weights
from ..runtimes.choice import OutputDiffers
from .check import Findings, count_vocabulary, examine, make_probes
from .encoder import LoadedEncoder
from .heads import PartedHead, find_activation, name_labels, part_head
from .task import find_transformer, name_architecture
from .tokens import TokenRules

# Task -> transformers' class that builds the models, and its configurations.
_ENCODERS: tuple[Any, Any] = (AutoModel, MODEL_MAPPING)
_CLASSIFIERS: dict[PoolingTask, tuple[Any, Any]] = {
    "classify": (
        AutoModelForSequenceClassification,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    ),
    "token_classify": (
        AutoModelForTokenClassification,
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    ),
}

# The projection of ColBERT checkpoints, which transformers does not support.
_PROJECTION = "linear.weight"


def load_encoder(
    folder: Path,
    config: ModelConfig,
    *,
    name: str,
    task: PoolingTask,
    sentence: SentenceFolder | None,
) -> LoadedEncoder:
    """Load a model that reads whole texts.

    Args:
      folder: in Hugging Face layout.
      config: type, device and limits.
      name: the model's name for clients.
      task: its task, from find_task; classifiers keep their head.
      sentence: the contents of sentence-transformers' files.

    Raises:
      UnsupportedModel: its architecture cannot do the task.
      WeightsBroken: its files cannot be read.
      InvalidConfig: an option does not fit the model or the machine.
    """
    set_threads(config)

    def load(tries_native: bool) -> LoadedEncoder:
        return _load(*(folder, config, name, task, sentence), tries_native=tries_native)

    try:
        return load(tries_native=True)
    except OutputDiffers:
        return load(tries_native=False)


def _load(
    folder: Path,
    config: ModelConfig,
    name: str,
    task: PoolingTask,
    sentence: SentenceFolder | None,
    *,
    tries_native: bool,
) -> LoadedEncoder:
    device = resolve_device(config.device)
    path = find_transformer(folder, sentence)
    whole = _read_model(path, config, task, device)
    encoder: Any = whole.base_model if task in _CLASSIFIERS else whole
    architecture = name_architecture(whole.config)
    num_positions = _count_positions(encoder)
    max_model_len = _resolve_max_model_len(num_positions, config, sentence)
    freeze_rotary(encoder, max_model_len)
    rules = _make_rules(encoder, device)
    probes = make_probes(encoder, rules, num_positions)
    parted = part_head(whole, probes, rules) if task in _CLASSIFIERS else None
    _drop_pooler(encoder)
    findings = examine(
        encoder, rules, probes, architecture, config if tries_native else None
    )
    states = findings.states[0]
    loaded = LoadedEncoder(
        info=ModelInfo(
            name=name,
            architecture=architecture,
            vocab_size=count_vocabulary(encoder),
            max_model_len=max_model_len,
            eos_token_ids=frozenset(),
            hidden_size=states.shape[1],
            dtype=str(states.dtype).removeprefix("torch."),
            kernels=findings.kernels,
        ),
        task=task,
        forward=findings.forward,
        device=device,
        dtype=states.dtype,
        hidden_size=states.shape[1],
        type_ids=rules.type_ids,
        is_causal=findings.is_causal,
    )
    if parted is not None:
        return _add_head(loaded, parted, findings, whole.config, folder)
    if task == "token_embed":
        return _add_projection(loaded, path, sentence)
    return loaded


def check_encoder(
    folder: Path,
    config: ModelConfig,
    *,
    task: PoolingTask,
    sentence: SentenceFolder | None,
) -> None:
    """Refuse most models that load_encoder would refuse, without reading the weights.

    Args and raises: as load_encoder.
    """
    resolve_device(config.device)
    model_config = read_config(find_transformer(folder, sentence))
    _check_architecture(model_config, _CLASSIFIERS.get(task, _ENCODERS)[1])
    # Some models have fewer positions than their configuration says, but none has more.
    _resolve_max_model_len(count_positions(model_config), config, sentence)


def _add_head(
    loaded: LoadedEncoder,
    parted: PartedHead,
    findings: Findings,
    config: PreTrainedConfig,
    folder: Path,
) -> LoadedEncoder:
    return replace(
        loaded,
        labels=name_labels(config),
        activation=find_activation(config, folder),
        head=parted.head,
        head_mode=parted.check(loaded.task, findings.states, loaded.info.architecture),
    )


def _add_projection(
    loaded: LoadedEncoder, path: Path, sentence: SentenceFolder | None
) -> LoadedEncoder:
    is_colbert = "ColBERT" in loaded.info.architecture
    if not is_colbert and sentence is not None and sentence.modules:
        # The modules after the transformer have folders of their own.
        return loaded
    projection = _read_projection(path)
    if projection is None:
        if is_colbert:
            raise WeightsBroken(str(path), f"there is no {_PROJECTION}")
        return loaded
    return replace(loaded, projection=projection.to(loaded.device, loaded.dtype))


def _read_model(
    path: Path, config: ModelConfig, task: PoolingTask, device: torch.device
) -> PreTrainedModel:
    build, mapping = _CLASSIFIERS.get(task, _ENCODERS)
    _check_architecture(read_config(path), mapping)
    model = read_weights(
        build,
        path,
        config,
        device=device,
        attention=None,
        # The pooler's output is not used, and many checkpoints have no pooler.
        may_lack=() if task in _CLASSIFIERS else ("pooler.",),
    )
    # nn.Module's own, because transformers wraps it without types.
    nn.Module.to(model, device)
    model.eval()
    # Otherwise decoders would keep keys and values for later tokens.
    model.config.use_cache = False
    return model


def _check_architecture(config: PreTrainedConfig, mapping: Any) -> None:
    """Refuse models that read more than text, before gigabytes are read."""
    architecture = name_architecture(config)
    if type(config) not in mapping:
        raise UnsupportedModel(
            architecture, "transformers has no text model of this kind for the task"
        )
    model_class = mapping[type(config)]
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    for is_wrong, reason in (
        (config.is_encoder_decoder, "it is an encoder and a decoder in one"),
        (
            config.get_text_config(decoder=True) is not config
            or model_class.main_input_name != "input_ids",
            "it reads more than text",
        ),
    ):
        if is_wrong:
            raise UnsupportedModel(architecture, reason)


def _resolve_max_model_len(
    num_positions: int | None, config: ModelConfig, sentence: SentenceFolder | None
) -> int:
    wanted = config.max_model_len
    if wanted is not None and num_positions is not None and wanted > num_positions:
        raise InvalidConfig(
            "max_model_len", f"{wanted} is more than the model's own {num_positions}"
        )
    # The length that it was trained with is advice: the option may go beyond it.
    trained = sentence.max_seq_length if sentence is not None else None
    known = [length for length in (trained, num_positions) if length is not None]
    if wanted is None and not known:
        raise InvalidConfig(
            "max_model_len", "must be given: the model's files have no limit"
        )
    return wanted or min(known)


def _count_positions(encoder: PreTrainedModel) -> int | None:
    table = _find_padded_positions(encoder)
    if table is None or table.padding_idx is None:
        return count_positions(encoder.config)
    return table.num_embeddings - table.padding_idx - 1


def _find_padded_positions(encoder: nn.Module) -> nn.Embedding | None:
    """Return the table of positions of models of RoBERTa's kind; None for others."""
    for module in encoder.modules():
        table = getattr(module, "position_embeddings", None)
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table
    return None


def _make_rules(encoder: PreTrainedModel, device: torch.device) -> TokenRules:
    table = _find_padded_positions(encoder)
    takes_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
    return TokenRules(
        device=device,
        fill_id=encoder.config.pad_token_id or 0,
        padding_id=None if table is None else table.padding_idx,
        type_ids=takes_types and getattr(encoder.config, "type_vocab_size", 0) > 1,
    )


def _drop_pooler(encoder: Any) -> None:
    """Remove a pooler, whose output is not used, to save time."""
    if "add_pooling_layer" in inspect.signature(type(encoder).__init__).parameters:
        encoder.pooler = None


def _read_projection(path: Path) -> Tensor | None:
    """Return the projection of a ColBERT checkpoint, (dim, hidden_size)."""
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                if _PROJECTION in tensors.keys():
                    projection: Tensor = tensors.get_tensor(_PROJECTION)
                    return projection
        except (OSError, SafetensorError) as error:
            raise WeightsBroken(
                str(path), f"{file.name}: {shorten_message(error)}"
            ) from None
    return None
