"""Outline a plain Llama, and put it on the native kernels."""

from __future__ import annotations

from dataclasses import dataclass
import logging
from pathlib import Path

from safetensors import SafetensorError
import torch
from torch import nn

from ....config import ModelConfig
from ....kernels.library import Library, NoKernels, open_library
from ....types.gguf import GgufFile
from ....types.model_info import ModelInfo
from ...attention.bridge import AttentionContext
from ...attention.cache_memory import choose_kv_dtype, count_kv_bytes
from ...attention.probe import LayerSpec
from ...device.choose import resolve_device, set_threads
from ...runtimes.choice import log_kernels
from ...runtimes.loaded import LoadedModel
from ...runtimes.native.decoder import NativeDecoder
from ...runtimes.native.packer import name_kind
from ...self_check.steps import NUM_CHECKED
from ..files.cache_outline import Outline
from ..files.generation_config import read_default_sampling, read_eos
from ..files.positions import choose_max_model_len
from .check import compare_with_torch
from .description import PlainConfig, read_plain_config
from .parts import PartsBuilder, list_calls
from .safetensors_source import SafetensorsTensors
from .tensors import PlainTensors, list_shapes

logger = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float": torch.float32,
}


def outline_plain(
    folder: Path, config: ModelConfig, *, layers: range | None = None
) -> Outline | None:
    """Outline a plain Llama that the native kernels can run, by its config.json.

    Args:
      layers: that will be loaded; None is all.

    Returns:
      None if transformers must be asked.

    Raises:
      InvalidConfig: an option does not fit the model or the machine.
    """
    llama = _find_plain_llama(folder, config, layers)
    if llama is None:
        return None
    return Outline(
        kv_bytes_per_token=count_kv_bytes(llama.calls, llama.kv_dtype),
        max_model_len=llama.max_model_len,
        device=torch.device("cpu"),
    )


def load_plain(
    folder: Path,
    config: ModelConfig,
    *,
    name: str,
    file: GgufFile | None = None,
    layers: range | None = None,
) -> LoadedModel | None:
    """Load a plain Llama on the native kernels.

    Args:
      folder: holds config.json, and safetensors if `file` is None.
      name: the model's name for clients.
      file: the GGUF file with the weights.
      layers: neighbours that one stage of a pipeline has; None is all. The vectors of
        tokens are loaded with the first layer, and the head with the last.

    Returns:
      None if transformers must be asked.

    Raises:
      InvalidConfig: an option does not fit the model or the machine.
    """
    llama = _find_plain_llama(folder, config, layers)
    if llama is None:
        return None
    tensors = _open_tensors(llama, folder, file)
    if tensors is None or not tensors.fit(list_shapes(llama.described)):
        return None
    packed = _pack(llama, tensors, file)
    if packed is None:
        return None
    native, embedding = packed
    log_kernels(native)
    model = _Vectors(embedding, llama.dtype)
    return LoadedModel(
        model=model,
        info=llama.describe(name, native),
        attention=AttentionContext(model),
        layers=llama.calls,
        takes_logits_to_keep=True,
        kv_dtype=llama.kv_dtype,
        native=native,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlainLlama:
    """A plain Llama that fits the native kernels.

    Args:
      dtype: of activations and of the vectors of tokens.
      layers: that are loaded here.
      calls: of attention, one for each of the layers.
    """

    described: PlainConfig
    config: ModelConfig
    dtype: torch.dtype
    library: Library
    max_model_len: int
    layers: range
    calls: tuple[LayerSpec, ...]
    eos_token_ids: frozenset[int]
    default_sampling: tuple[tuple[str, float], ...]

    @property
    def kv_dtype(self) -> torch.dtype:
        return choose_kv_dtype(self.config, self.dtype)

    @property
    def int8(self) -> bool:
        return self.config.quantization == "int8"

    def describe(self, name: str, native: NativeDecoder) -> ModelInfo:
        return ModelInfo(
            name=name,
            architecture=self.described.architecture,
            vocab_size=self.described.vocab_size,
            max_model_len=self.max_model_len,
            eos_token_ids=self.eos_token_ids,
            default_sampling=self.default_sampling,
            kv_bytes_per_token=count_kv_bytes(self.calls, self.kv_dtype),
            hidden_size=self.described.hidden_size,
            dtype=str(self.dtype).removeprefix("torch."),
            kernels=native.name,
        )


def _find_plain_llama(
    folder: Path, config: ModelConfig, layers: range | None
) -> _PlainLlama | None:
    described = read_plain_config(folder)
    is_for_gpus = config.quantization == "fp8"
    if described is None or not config.wants_native or is_for_gpus:
        return None
    device = resolve_device(config.device)
    named = described.dtype if config.dtype == "auto" else config.dtype
    dtype = _DTYPES.get(named or "")
    if dtype is None or device.type != "cpu":
        return None
    try:
        library = open_library()
    except NoKernels:
        return None
    set_threads(config)
    layers = layers or range(described.num_hidden_layers)
    return _PlainLlama(
        described=described,
        config=config,
        dtype=dtype,
        library=library,
        max_model_len=choose_max_model_len(
            described.max_position_embeddings, config.max_model_len
        ),
        layers=layers,
        calls=list_calls(described, layers),
        eos_token_ids=read_eos(folder, described.eos_token_id),
        default_sampling=read_default_sampling(folder, config),
    )


def _open_tensors(
    llama: _PlainLlama, folder: Path, file: GgufFile | None
) -> PlainTensors | None:
    if file is not None:
        # Imported here, because folders do not need gguf.
        from .gguf_source import GgufTensors

        return GgufTensors(file, llama.described, llama.dtype)
    try:
        return SafetensorsTensors(folder, llama.dtype)
    # Whoever reads the files next names the mistake.
    except (OSError, ValueError, LookupError, SafetensorError):
        return None


@torch.inference_mode()
def _pack(
    llama: _PlainLlama, tensors: PlainTensors, file: GgufFile | None
) -> tuple[NativeDecoder, nn.Module | None] | None:
    """Return the layers, and the vectors of tokens if the first layer is here.

    Returns:
      None if the layers and PyTorch compute different numbers. Blocks of a GGUF file are not
      compared.
    """
    num_positions = max(llama.max_model_len, NUM_CHECKED)
    builder = PartsBuilder(llama.described, tensors, llama.dtype, num_positions)
    parts = builder.build(llama.layers, llama.calls)
    native = NativeDecoder(
        parts,
        llama.library,
        torch.get_num_threads(),
        int8=llama.int8,
        sources={each.weight: (rows,) for each, rows in builder.sources.items()},
    )
    embedding = tensors.make_embedding() if llama.layers.start == 0 else None
    if file is not None:
        kinds = sorted({name_kind(each) for each in builder.sources.values()})
        logger.info("weights: %s, read from %s", ", ".join(kinds), file.path.name)
        return native, embedding
    problem = compare_with_torch(
        *(native, parts, builder.sources, embedding, llama.described.vocab_size),
        int8=llama.int8,
        kv_dtype=llama.kv_dtype,
    )
    if problem is not None:
        logger.debug("the kernels are not used: %s", problem)
        return None
    return native, embedding


class _Vectors(nn.Module):
    """The only module of such a model: the vectors of its tokens.

    Args:
      embedding: None at a later stage of a pipeline, which reads no tokens.
    """

    def __init__(self, embedding: nn.Module | None, dtype: torch.dtype) -> None:
        super().__init__()
        self._embedding = embedding
        self.dtype = dtype
        self.device = torch.device("cpu")

    def get_input_embeddings(self) -> nn.Module | None:
        return self._embedding
