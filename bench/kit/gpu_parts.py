"""The parts of bench/gpu.py. Each runs in a process of its own and prints JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import re
import subprocess
import sys
import time
from typing import Any

from kit.process import BENCH_FOLDER
import torch

Figures = dict[str, Any]

# Fields of configurations, of LlamaConfig without a type. The large ones describe Llama 3.2 1B
# and Llama 3.1 8B, and the text parts of Qwen3.5 0.8B and 9B, whose layers keep states but for
# each fourth one.
_QWEN3_5: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "vocab_size": 248_320,
}
_QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "tiny-experts": {
        **_QWEN3_MOE,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 1024,
    },
    "2B-A0.4B": {
        **_QWEN3_MOE,
        "hidden_size": 1024,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "moe_intermediate_size": 512,
        "num_experts": 64,
        "vocab_size": 65_536,
    },
    # Half of Qwen3-30B-A3B's layers: the whole one may not fit beside a KV cache.
    "15B-A2B": {
        **_QWEN3_MOE,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "vocab_size": 151_936,
    },
    "tiny-hybrid": {
        **_QWEN3_5,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "vocab_size": 1024,
    },
    "Qwen3.5-0.8B": {
        **_QWEN3_5,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "tie_word_embeddings": True,
    },
    "Qwen3.5-9B": {
        **_QWEN3_5,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 32,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The sizes with which a model is measured.

    Args:
      batches: sequences that decode at once.
      prompts: tokens of a prompt that is read alone.
      contexts: sequences that decode at once behind long prompts -> tokens of a prompt.
      steps: decodes of the shorter and of the longer answers, whose times are subtracted.
      streams: at once, over HTTP; three quarters are chats, the others documents.
      chats, documents: words in, and tokens out.
      seconds: in which requests of streams are sent.
    """

    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    contexts: Mapping[int, int]
    steps: tuple[int, int]
    streams: int
    chats: tuple[int, int]
    documents: tuple[int, int]
    seconds: float


LARGE = Load(
    batches=(1, 16, 64, 256),
    prompts=(2048, 16_384),
    # Their keys and values in 8B take 34 GB at most, in bfloat16.
    contexts={1: 16_384, 16: 8192, 64: 4096, 256: 1024},
    steps=(32, 160),
    streams=128,
    chats=(64, 128),
    documents=(1024, 32),
    seconds=10.0,
)
TINY = Load(
    batches=(1, 4),
    prompts=(64,),
    contexts={1: 64, 2: 32},
    steps=(2, 6),
    streams=4,
    chats=(8, 6),
    documents=(40, 2),
    seconds=0.2,
)
PROMPT_TOKENS = 32


def find_load(shape: str) -> Load:
    return TINY if shape.startswith("tiny") else LARGE


def find_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def save_model(shape: str, folder: Path) -> Figures:
    """Save a model with random weights, made on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        **{"model_type": "llama", **SHAPES[shape]},
        max_position_embeddings=20_000,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    with find_device():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if shape.startswith("tiny"):
        # Two of them are enough for the test of this bench.
        model = model.float()
    model.save_pretrained(folder, max_shard_size="50GB")
    save_tokenizer(folder, config.vocab_size)
    weights = sum(parameter.numel() for parameter in model.parameters())
    embeddings = model.get_input_embeddings().weight.numel()
    # A step reads the vectors of a few tokens, and all of them if they are the head, too.
    unread = 0 if config.tie_word_embeddings else embeddings
    return {
        "parameters": weights,
        "read_in_a_step": weights - unread,
        "experts": sum(
            parameter.numel()
            for name, parameter in model.named_parameters()
            if ".experts." in name
        ),
        "state_bytes": count_state_bytes(shape),
    }


def count_attention(shape: str) -> int:
    """Return how many layers of a model have attention."""
    fields = SHAPES[shape]
    return int(fields["num_hidden_layers"]) // fields.get("full_attention_interval", 1)


def count_state_bytes(shape: str) -> int:
    """Return the bytes of the recurrent states of a sequence, which are float32."""
    fields = SHAPES[shape]
    num_layers = fields["num_hidden_layers"] - count_attention(shape)
    if not num_layers:
        return 0
    heads, dims = fields["linear_num_value_heads"], fields["linear_key_head_dim"]
    return int(4 * num_layers * heads * dims * fields["linear_value_head_dim"])


def save_tokenizer(folder: Path, vocab_size: int) -> None:
    """Save a tokenizer that has a word for each token of the model, so that all have text."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def measure_rates() -> Figures:
    """Measure what the device can do at most: a copy and a product of large matrices."""
    device = find_device()
    is_gpu = device.type == "cuda"
    count = 2**31 if is_gpu else 2**20
    source = torch.empty(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    # A copy reads and writes each byte.
    copy = _time(lambda: target.copy_(source))
    size = 8192 if is_gpu else 64
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    product = _time(lambda: one @ one)
    return {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "torch": torch.__version__,
        "bytes_per_second": 2 * count / copy,
        "flops_per_second": 2 * size**3 / product,
    }


# Tests of kernels, which run on a GPU where there is one, and have no mark.
_KERNEL_TESTS = ("kernels/triton/test_steps.py", "model/test_triton_sampling.py")
# A line of `pytest -v`, whose first word is a test's name.
_FAILED = re.compile(r"(\S+::.+) (?:FAILED|ERROR)\b")


def run_tests(emit: Callable[[Figures], None]) -> None:
    """Run the kernels' tests and those that need a GPU; emit what failed, and at the end all."""
    folder = BENCH_FOLDER.parent / "tests"
    summary: list[str] = []
    failed: list[str] = []
    for arguments in ([folder / each for each in _KERNEL_TESTS], ["-m", "gpu", folder]):
        command = [sys.executable, "-m", "pytest", "-v", "--numprocesses=0", *arguments]
        line = "pytest said nothing"
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pytest:
            for line in filter(str.strip, pytest.stdout or ()):
                if found := _FAILED.match(line):
                    failed.append(found[1])
                    # The first one may have broken the device for all others.
                    emit({"summary": "not all have run", "failed": failed})
        summary.append(line.strip(" =\n"))
    emit({"summary": "; ".join(summary), "failed": failed})


def subtract(times: Sequence[float], load: Load) -> float:
    """Return the seconds of one step, without the prompts' seconds."""
    short, long = load.steps
    return (times[1] - times[0]) / (long - short)


def _time(work: Callable[[], object]) -> float:
    """Return the seconds of one call, the least of three groups of five."""
    work()
    return min(time_once(lambda: [work() for _ in range(5)]) / 5 for _ in range(3))


def time_once(work: Callable[[], object]) -> float:
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_part(
    name: str,
    shape: str,
    folder: Path,
    fields: Figures,
    emit: Callable[[Figures], None],
) -> None:
    """Run one part.

    Args:
      emit: takes all figures of the part whenever there are more, so that those before its
        time is over count.
    """
    load = find_load(shape)
    match name:
        case "rates":
            emit(measure_rates())
        case "model":
            emit(save_model(shape, folder))
        case "tests":
            run_tests(emit)
        case "transformers":
            from kit.gpu_transformers import measure_transformers

            measure_transformers(folder, load, emit, **fields)
        case "sampling":
            from kit.gpu_sampling import measure_sampling

            measure_sampling(SHAPES[shape]["vocab_size"], load, emit)
        case "streams":
            from kit.gpu_streams import measure_streams

            emit(measure_streams(folder, load, **fields))
        case _:
            from kit.gpu_engine import measure_engine

            measure_engine(folder, load, fields, emit)
