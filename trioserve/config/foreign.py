"""Options of other servers, each with the option or the reason that takes its place.

Users of vLLM, SGLang, TGI or llama.cpp bring their command lines along. Their options are
refused, because no option is accepted and ignored. Each refusal says what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable

# Their name -> ours, for the same thing in the same unit.
_RENAMED = {
    # vLLM
    "gpu-memory-utilization": "--kv-cache-fraction",
    "kv-cache-memory-bytes": "--kv-cache-memory",
    "enable-prefix-caching": "--prefix-caching",
    "no-enable-prefix-caching": "--no-prefix-caching",
    "logits-processors": "--logits-processor",
    "lora-modules": "--adapter",
    "max-cpu-loras": "--max-adapters",
    "uvicorn-log-level": "--log-level",
    "disable-frontend-multiprocessing": "--no-engine-process",
    "api-server-count": "--api-processes",
    "max-num-queued-reqs": "--max-queued-requests",
    "ssl-certfile": "--tls-certfile",
    "ssl-keyfile": "--tls-keyfile",
    "shutdown-timeout": "--drain-timeout",
    "sse-keep-alive-interval": "--sse-keepalive",
    "sse-ping-interval": "--sse-keepalive",
    "runner": "--task",
    "convert": "--task",
    "pp": "--pipeline-parallel-size",
    "tp": "--tensor-parallel-size",
    "q": "--quantization",
    "language-model-only": "--text-only",
    # SGLang
    "model-path": "--model",
    "mem-fraction-static": "--kv-cache-fraction",
    "context-length": "--max-model-len",
    "max-running-requests": "--max-num-seqs",
    "chunked-prefill-size": "--max-num-batched-tokens",
    "max-prefill-tokens": "--max-num-batched-tokens",
    "page-size": "--block-size",
    "disable-radix-cache": "--no-prefix-caching",
    "disable-overlap-schedule": "--no-async-scheduling",
    "pp-size": "--pipeline-parallel-size",
    "tp-size": "--tensor-parallel-size",
    "lora-paths": "--adapter",
    "max-loaded-loras": "--max-adapters",
    "watchdog-timeout": "--progress-timeout",
    # TGI
    "model-id": "--model",
    "num-shard": "--tensor-parallel-size",
    "hostname": "--host",
    "max-total-tokens": "--max-model-len",
    "max-batch-prefill-tokens": "--max-num-batched-tokens",
    "max-batch-size": "--max-num-seqs",
    "cuda-memory-fraction": "--kv-cache-fraction",
    "validation-workers": "--renderer-num-workers",
    "quantize": "--quantization",
    "payload-limit": "--max-body-size",
    # llama-server
    "m": "--model",
    "a": "--served-model-name",
    "alias": "--served-model-name",
    "c": "--max-model-len",
    "ctx-size": "--max-model-len",
    "t": "--num-threads",
    "threads": "--num-threads",
    "np": "--max-num-seqs",
    "parallel": "--max-num-seqs",
    "b": "--max-num-batched-tokens",
    "batch-size": "--max-num-batched-tokens",
    "chat-template-file": "--chat-template",
    "reasoning-format": "--reasoning-parser",
    "ssl-cert-file": "--tls-certfile",
    "ssl-key-file": "--tls-keyfile",
    "api-prefix": "--root-path",
    "models-dir": "--models",
    "no-webui": "--no-ui",
    "v": "--log-level debug",
    "verbose": "--log-level debug",
}

_NO_EXPERT_PARALLELISM = (
    "each expert is split by --tensor-parallel-size, and no process has whole experts"
)
_NO_REPLICAS = "one server runs one model once, so start several behind a balancer"
_LORA_ON = (
    "adapters need no switch: --adapter NAME=PATH loads one at the start, and "
    "--adapter-folder lets clients load more"
)
_LORA_BATCH = (
    "a step mixes requests of any loaded adapters, of which --max-adapters is the limit"
)
_LORA_RANK = "an adapter may have any rank, and takes the memory of its own"
_LORA_NAMED = "a request names its adapter as its model"
_ONE_GRAMMAR_LIBRARY = "llguidance compiles all grammars, so no choice is needed"
_NO_CLIENT_CERTIFICATES = (
    "certificates of clients are not checked, so use --api-key-file, or put a proxy in "
    "front"
)
_NO_HUB_FILES = (
    "a hub id is a folder with safetensors, and a .gguf file is named by its path"
)
_NO_SPECULATION = "there is no speculative decoding"
_NO_GRAPHS = "--no-cuda-graphs captures none, and there is no torch.compile"
_CHUNKED = "always on, and --max-num-batched-tokens is the longest chunk"
_NO_OFFLOAD = (
    "keys and values stay on the device, and preempted sequences are computed again"
)
_NO_REVISION = "a hub id is taken at its main revision, so name a folder for another"
_HUB_FOLDER = "HF_HOME sets the folder of the models from the hub"
_FORMATS = (
    "the format is recognised, and only safetensors, .gguf files and pypi: wheels are "
    "read"
)
_ACCESS_LOG = "requests are only logged by --request-log FILE"
_WHOLE_API = "pages of --allowed-origins may use all of the API"
_INT8_CACHE = "--kv-cache-dtype int8 keeps keys and values in eight bits"
_ALL_LAYERS = "all layers are on the device that --device names"
_OWN_CONFIG = "config.json is read as it is, so edit a copy of it"
_BY_TORCHRUN = "torchrun starts the processes of several machines"
_IN_REQUESTS = "sampling belongs to requests, and their defaults to the model's generation_config.json"
_TEMPLATE_ARGUMENTS = "requests name the template's arguments (`chat_template_kwargs`)"
_BUILT_IN_PARSERS = "the parsers are built in"

# Their name -> the reason or the advice, without a full stop.
_EXPLAINED = {
    # vLLM
    "data-parallel-size": _NO_REPLICAS,
    "dp": _NO_REPLICAS,
    "enable-expert-parallel": _NO_EXPERT_PARALLELISM,
    "distributed-executor-backend": (
        "--tensor-parallel-size and --pipeline-parallel-size start their own processes, "
        "or find torchrun's processes"
    ),
    "swap-space": _NO_OFFLOAD,
    "cpu-offload-gb": "all weights stay on the device",
    "kv-offloading-size": _NO_OFFLOAD,
    "num-gpu-blocks-override": (
        "the memory is given in bytes by --kv-cache-memory, as 2GiB"
    ),
    "enforce-eager": _NO_GRAPHS,
    "compilation-config": _NO_GRAPHS,
    "cuda-graph-sizes": _NO_GRAPHS,
    "enable-chunked-prefill": _CHUNKED,
    "no-enable-chunked-prefill": _CHUNKED,
    "max-seq-len-to-capture": _NO_GRAPHS,
    "limit-mm-per-prompt": "--max-images takes the number of images, as 4",
    "mm-processor-cache-gb": "--processor-cache-memory takes it with a unit, as 4GiB",
    "enable-lora": _LORA_ON,
    "max-loras": _LORA_BATCH,
    "max-lora-rank": _LORA_RANK,
    "lora-extra-vocab-size": "adapters with tokens of their own are refused",
    "default-mm-loras": _LORA_NAMED,
    "speculative-config": _NO_SPECULATION,
    "speculative-model": _NO_SPECULATION,
    "num-speculative-tokens": _NO_SPECULATION,
    "trust-remote-code": "code from a hub is never run",
    "tokenizer": "the tokenizer is the one in the model's folder",
    "tokenizer-mode": "only fast tokenizers (tokenizer.json) are run",
    "revision": _NO_REVISION,
    "tokenizer-revision": _NO_REVISION,
    "download-dir": _HUB_FOLDER,
    "load-format": _FORMATS,
    "hf-token": "the hub's client reads HF_TOKEN, or what `hf auth login` has saved",
    "hf-overrides": _OWN_CONFIG,
    "rope-scaling": _OWN_CONFIG,
    "rope-theta": _OWN_CONFIG,
    "nnodes": _BY_TORCHRUN,
    "node-rank": _BY_TORCHRUN,
    "master-addr": _BY_TORCHRUN,
    "master-port": _BY_TORCHRUN,
    "default-chat-template-kwargs": _TEMPLATE_ARGUMENTS,
    "tool-parser-plugin": _BUILT_IN_PARSERS,
    "reasoning-parser-plugin": _BUILT_IN_PARSERS,
    "enable-sleep-mode": "POST /sleep is always there, and --sleep-idle-seconds sleeps by itself",
    "enable-request-id-headers": "all answers have x-request-id",
    "enable-prompt-tokens-details": "all answers have them",
    "override-generation-config": (
        "defaults come from the model's generation_config.json, or from nothing by "
        "--generation-config none"
    ),
    "seed": "seeds belong to requests (`seed`)",
    "model-impl": "all models are run by transformers",
    "enable-auto-tool-choice": "--tool-call-parser alone is enough",
    "enable-reasoning": "--reasoning-parser alone is enough",
    "guided-decoding-backend": _ONE_GRAMMAR_LIBRARY,
    "structured-outputs-config": _ONE_GRAMMAR_LIBRARY,
    "chat-template-content-format": "the template's own format is recognised",
    "response-role": "answers come from the assistant",
    "ssl-ca-certs": _NO_CLIENT_CERTIFICATES,
    "allowed-methods": _WHOLE_API,
    "allowed-headers": _WHOLE_API,
    "allow-credentials": "keys travel in headers, which pages set themselves",
    "middleware": (
        "wrap the app of trioserve.asgi in a program of your own, and serve that by "
        "hypercorn's command"
    ),
    "disable-log-requests": _ACCESS_LOG,
    "no-enable-log-requests": _ACCESS_LOG,
    "enable-log-requests": _ACCESS_LOG,
    "disable-uvicorn-access-log": _ACCESS_LOG,
    "disable-log-stats": "--log-level warning leaves them out, and GET /metrics has them",
    "collect-detailed-traces": "--otlp-traces-endpoint traces all phases of requests",
    "max-log-len": "neither prompts nor answers are logged",
    "disable-fastapi-docs": "GET /openapi.json is the only description that is served",
    # SGLang
    "dp-size": _NO_REPLICAS,
    "max-loras-per-batch": _LORA_BATCH,
    "is-embedding": "write --task embed",
    "disable-cuda-graph": _NO_GRAPHS,
    "log-requests": _ACCESS_LOG,
    "enable-metrics": "GET /metrics is always there",
    # TGI
    "sharded": "--tensor-parallel-size is the number of shards, and 1 shards nothing",
    "max-input-length": "--max-model-len bounds prompt and output together",
    "max-input-tokens": "--max-model-len bounds prompt and output together",
    "max-batch-total-tokens": (
        "the memory is given in bytes by --kv-cache-memory, as 2GiB"
    ),
    "max-concurrent-requests": (
        "--max-num-seqs sequences run, --max-queued-requests wait, and the others get 429"
    ),
    "huggingface-hub-cache": _HUB_FOLDER,
    # llama-server
    "lora": "--adapter NAME=PATH loads an adapter, and requests name it as their model",
    "lora-scaled": "an adapter has the scale of its files, so write --adapter NAME=PATH",
    "lora-init-without-apply": _LORA_NAMED,
    "models-preset": "--models takes a TOML file with a table for each model",
    "models-max": "--memory bounds all models together, in bytes",
    "hf": _NO_HUB_FILES,
    "hf-repo": _NO_HUB_FILES,
    "hf-file": _NO_HUB_FILES,
    "ngl": _ALL_LAYERS,
    "n-gpu-layers": _ALL_LAYERS,
    "gpu-layers": _ALL_LAYERS,
    "fa": "the best attention is chosen by itself",
    "flash-attn": "the best attention is chosen by itself",
    "cont-batching": "sequences join and leave the batch at every step",
    "cache-type-k": _INT8_CACHE,
    "cache-type-v": _INT8_CACHE,
    "jinja": "chats always go through the model's Jinja template",
    "embedding": "write --task embed",
    "embeddings": "write --task embed",
    "reranking": "write --task classify",
    "mmproj": "a vision model has its vision weights in its own folder",
    "metrics": "GET /metrics is always there",
    "slots": "GET /v1/requests is always there",
    "props": "GET /v1/models is always there",
    "webui": "the page at / is always there, without --no-ui",
    "rerank": "write --task classify",
    "ctk": _INT8_CACHE,
    "ctv": _INT8_CACHE,
    "cpu-moe": _ALL_LAYERS,
    "n-cpu-moe": _ALL_LAYERS,
    "main-gpu": "--device cuda:N names the GPU",
    "split-mode": "--tensor-parallel-size and --pipeline-parallel-size split a model",
    "tensor-split": "--tensor-parallel-size splits layers, equally",
    "list-devices": "trioserve env lists the devices",
    "chat-template-kwargs": _TEMPLATE_ARGUMENTS,
    "reasoning-budget": "requests bound their reasoning (`thinking_token_budget`)",
    "system-prompt": "requests have it, as their first message",
    "timeout": "--request-timeout bounds a request, and --write-timeout a client that does not read",
    "log-file": "the log goes to stderr, so write 2> FILE",
    "offline": "the hub's client reads HF_HUB_OFFLINE",
    "mlock": "a GGUF file is mapped, and other weights are copied",
    "no-mmap": "a GGUF file is mapped, and other weights are copied",
    "rope-scale": _OWN_CONFIG,
    "rope-freq-base": _OWN_CONFIG,
    "n": _IN_REQUESTS,
    "predict": _IN_REQUESTS,
    "n-predict": _IN_REQUESTS,
    "temp": _IN_REQUESTS,
    "top-k": _IN_REQUESTS,
    "top-p": _IN_REQUESTS,
    "min-p": _IN_REQUESTS,
    "repeat-penalty": _IN_REQUESTS,
    "presence-penalty": _IN_REQUESTS,
    "frequency-penalty": _IN_REQUESTS,
    # uvicorn
    "workers": "--api-processes serve HTTP, and share one engine",
}


# Their values of options that have the same name here -> ours.
_VALUES = {("kv_cache_dtype", "int8_per_token_head"): "int8"}


def list_foreign() -> frozenset[str]:
    """Return all known names, without dashes in front."""
    return frozenset(_RENAMED) | frozenset(_EXPLAINED)


def explain_foreign(names: Iterable[str]) -> str:
    """Explain the options of other servers.

    Args:
      names: options in any spelling: --max-num-queued-reqs, max_num_queued_reqs, -tp.
        Others are left out.

    Returns:
      One line, or "" where no name is known.
    """
    # Each once, in the order in which they stand on the command line.
    known = dict.fromkeys(filter(None, map(_explain, names)))
    return "; ".join(known)


def rename_value(name: str, value: object) -> str | None:
    """Return the value that another server's value of an option means; None if unknown."""
    return _VALUES.get((name, str(value)))


def _explain(name: str) -> str | None:
    # vLLM takes members of its configurations, as --compilation-config.level.
    plain = name.lstrip("-").replace("_", "-").partition(".")[0]
    dashes = "-" if len(plain) <= 3 else "--"
    if plain in _RENAMED:
        return f"write {_RENAMED[plain]} for {dashes}{plain}"
    if plain in _EXPLAINED:
        return f"{dashes}{plain}: {_EXPLAINED[plain]}"
    return None
