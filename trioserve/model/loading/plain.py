"""Load a plain Llama from its GGUF file, without transformers.

To import transformers' models takes longer than all else in the start of a small model. The
native kernels need none of them, only the weights and a dozen facts. Here these come from
the file and its config.json. Nothing is guessed: a model with any fact or tensor besides
those of the plain architecture is left to packed.py, which asks transformers' modules.

tests/model/test_packed.py compares the logits with those of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...config import ModelConfig
from ...kernels.library import Library, NoKernels, open_library
from ...types.gguf import GgufFile, GgufTensor
from ...types.model_info import ModelInfo
from ..attention.bridge import AttentionContext
from ..attention.cache_memory import count_kv_bytes
from ..attention.probe import LayerSpec
from ..native.check import TOLERANCES
from ..native.choice import log_kernels
from ..native.decoder import NativeDecoder
from ..native.experts import MlpParts
from ..native.gguf_matrix import GgufMatrix
from ..native.packer import make_empty
from ..native.parts import DecoderParts, LayerParts
from .cache_outline import Outline
from .device import resolve_device, set_threads
from .generation_config import read_default_sampling, read_eos
from .gguf_content import GgufContent, GgufEmbedding
from .loaded import LoadedModel
from .plain_config import ARCHITECTURE, PlainConfig, read_plain_config
from .plain_tensors import has_plain_tensors, name_head, order_rows
from .positions import choose_max_model_len

logger = logging.getLogger(__name__)


def find_plain_llama(
    folder: Path, file: GgufFile, config: ModelConfig
) -> PlainLlama | None:
    """Find out whether a GGUF file has a plain Llama that the native kernels can run.

    Args:
      folder: holds config.json.

    Returns:
      None if transformers must be asked.

    Raises:
      InvalidConfig: an option does not fit the model or the machine.
    """
    described = read_plain_config(folder)
    if described is None or config.kernels == "torch" or file.architecture != "llama":
        return None
    tensors = {tensor.name: tensor for tensor in file.tensors}
    if not has_plain_tensors(tensors, described):
        return None
    name = described.dtype if config.dtype == "auto" else config.dtype
    dtype = getattr(torch, name)
    device = resolve_device(config.device)
    if dtype not in TOLERANCES or device.type != "cpu":
        return None
    try:
        library = open_library()
    except NoKernels:
        return None
    set_threads(config)
    return PlainLlama(
        folder=folder,
        file=file,
        tensors=tensors,
        described=described,
        config=config,
        dtype=dtype,
        library=library,
        max_model_len=choose_max_model_len(
            described.max_position_embeddings, config.max_model_len
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLlama:
    """A plain Llama in a GGUF file, which fits the native kernels.

    Args:
      folder: holds config.json.
      tensors: those of the file by their names; all are there, with the right shapes.
      dtype: of the KV cache and of the vectors of tokens.
    """

    folder: Path
    file: GgufFile
    tensors: dict[str, GgufTensor]
    described: PlainConfig
    config: ModelConfig
    dtype: torch.dtype
    library: Library
    max_model_len: int

    def outline(self) -> Outline:
        """Return the facts that decide its KV cache."""
        return Outline(
            kv_bytes_per_token=count_kv_bytes(_list_calls(self.described), self.dtype),
            max_model_len=self.max_model_len,
            device=torch.device("cpu"),
        )

    @torch.inference_mode()
    def load(self, name: str) -> LoadedModel:
        """Pack its weights.

        Args:
          name: the model's name for clients.

        Raises:
          InvalidConfig: generation_config.json cannot be used.
        """
        calls = _list_calls(self.described)
        builder = _Builder(self)
        native = NativeDecoder(
            builder.build(calls),
            self.library,
            torch.get_num_threads(),
            int8=self.config.quantization == "int8",
            sources=builder.sources,
        )
        kinds = sorted({matrix.kind for matrix in builder.sources.values()})
        logger.info("weights: %s, read from %s", ", ".join(kinds), self.file.path.name)
        log_kernels(native)
        model = _Vectors(builder.embed())
        return LoadedModel(
            model=model,
            info=self._describe(name, native, calls),
            attention=AttentionContext(model),
            layers=calls,
            takes_logits_to_keep=True,
            native=native,
        )

    def _describe(
        self, name: str, native: NativeDecoder, calls: tuple[LayerSpec, ...]
    ) -> ModelInfo:
        return ModelInfo(
            name=name,
            architecture=ARCHITECTURE,
            vocab_size=self.tensors[name_head(self.tensors)].shape[0],
            max_model_len=self.max_model_len,
            eos_token_ids=read_eos(self.folder, self.described.eos_token_id),
            default_sampling=read_default_sampling(self.folder, self.config),
            kv_bytes_per_token=count_kv_bytes(calls, self.dtype),
            hidden_size=self.described.hidden_size,
            dtype=str(self.dtype).removeprefix("torch."),
            kernels=native.name,
        )


class _Vectors(nn.Module):
    """The only module of such a model: the vectors of its tokens."""

    def __init__(self, embedding: GgufEmbedding) -> None:
        super().__init__()
        self._embedding = embedding

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    def get_input_embeddings(self) -> nn.Module:
        return self._embedding


class _Builder:
    """Makes the parts of the decoder.

    Attributes:
      sources: the weights of its products.
    """

    def __init__(self, llama: PlainLlama) -> None:
        self.sources: dict[nn.Linear, GgufMatrix] = {}
        self._llama = llama
        self._described = llama.described
        self._content = GgufContent(llama.file)
        self._rotary = _compute_rotary(llama.described, llama.max_model_len)

    def build(self, calls: tuple[LayerSpec, ...]) -> DecoderParts:
        return DecoderParts(
            layers=tuple(self._build_layer(f"blk.{i}", c) for i, c in enumerate(calls)),
            embedding_scale=1.0,
            final_norm=self._read("output_norm"),
            head=self._multiply(name_head(self._llama.tensors)),
            activation="silu",
            epsilon=self._described.rms_norm_eps,
            logit_softcap=None,
            plane_rotary=None,
        )

    def embed(self) -> GgufEmbedding:
        matrix = self._find_matrix("token_embd.weight", num_heads=None)
        return GgufEmbedding(matrix, self._llama.dtype, 1.0)

    def _build_layer(self, name: str, call: LayerSpec) -> LayerParts:
        cos, sin = self._rotary
        return LayerParts(
            attention=call,
            input_norm=self._read(f"{name}.attn_norm"),
            qkv=(
                self._multiply(f"{name}.attn_q.weight", call.num_heads),
                self._multiply(f"{name}.attn_k.weight", call.num_kv_heads),
                self._multiply(f"{name}.attn_v.weight"),
            ),
            query_norm=None,
            key_norm=None,
            cos=cos,
            sin=sin,
            output=self._multiply(f"{name}.attn_output.weight"),
            post_attention_norm=None,
            mlp_norm=self._read(f"{name}.ffn_norm"),
            mlp=MlpParts(
                gate_up=(
                    self._multiply(f"{name}.ffn_gate.weight"),
                    self._multiply(f"{name}.ffn_up.weight"),
                ),
                down=self._multiply(f"{name}.ffn_down.weight"),
            ),
            post_mlp_norm=None,
        )

    def _multiply(self, name: str, num_heads: int | None = None) -> nn.Linear:
        """Return a product without weights of its own; `sources` gets them."""
        matrix = self._find_matrix(name, num_heads)
        product = nn.Linear(
            matrix.num_inputs, matrix.num_outputs, bias=False, device="meta"
        )
        shape = matrix.num_outputs, matrix.num_inputs
        product.weight = make_empty(shape, self._llama.dtype)
        self.sources[product] = matrix
        return product

    def _find_matrix(self, name: str, num_heads: int | None) -> GgufMatrix:
        tensor = self._llama.tensors[name]
        return GgufMatrix(
            kind=tensor.kind,
            num_inputs=tensor.shape[1],
            rows=self._content.view(tensor),
            order=None if num_heads is None else order_rows(tensor.shape[0], num_heads),
        )

    def _read(self, name: str) -> Tensor:
        numbers = self._content.read(self._llama.tensors[f"{name}.weight"])
        return torch.from_numpy(np.array(numbers))


def _list_calls(described: PlainConfig) -> tuple[LayerSpec, ...]:
    return tuple(
        LayerSpec(
            module_name=f"model.layers.{i}.self_attn",
            num_heads=described.num_attention_heads,
            num_kv_heads=described.num_key_value_heads,
            key_dim=described.head_dim,
            value_dim=described.head_dim,
            is_causal=True,
            window=None,
            scaling=described.head_dim**-0.5,
        )
        for i in range(described.num_hidden_layers)
    )


def _compute_rotary(
    described: PlainConfig, max_model_len: int
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, (max_model_len, head_dim) both."""
    exponents = torch.arange(0, described.head_dim, 2).float() / described.head_dim
    frequencies = 1.0 / described.rope_theta**exponents
    angles = torch.arange(max_model_len).float()[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)  # (max_model_len, head_dim)
    return angles.cos(), angles.sin()
