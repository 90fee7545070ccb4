"""A lack of memory in the errors of libraries; the last test has a real one."""

from __future__ import annotations

import errno
import json
from pathlib import Path
import resource
import subprocess
import sys

import pytest
import torch

from trioserve.config import CacheConfig
from trioserve.errors import InvalidConfig, NotEnoughMemory, WeightsBroken
from trioserve.model.attention.cache_memory import count_fitting_blocks
from trioserve.startup.shortage import telling_shortage
from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer

NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (NO_MEMORY, "[Errno 12] Cannot allocate memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB."), "Tried 2 GiB."),
        (
            RuntimeError("alloc.cpp: can't allocate memory: 5 bytes\nException raised"),
            "can't allocate memory: 5 bytes",
        ),
        (
            ImportError(
                "numpy is broken\nlibx.so: failed to map segment from shared object"
            ),
            "libx.so: failed to map segment from shared object",
        ),
    ],
)
def test_a_lack_of_memory_is_one_sentence(error: Exception, reason: str) -> None:
    with pytest.raises(NotEnoughMemory) as caught, telling_shortage():
        raise error
    assert str(caught.value).startswith("there is not enough memory")
    assert str(caught.value).endswith(reason)
    assert caught.value.__cause__ is error


def test_a_lack_of_memory_is_found_in_the_cause() -> None:
    with pytest.raises(NotEnoughMemory, match="Errno 12"), telling_shortage():
        try:
            raise NO_MEMORY
        except OSError as error:
            raise WeightsBroken("/folder", "it cannot be read") from error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "No such file"),
        # "out of memory" is part of a file's name.
        OSError(errno.EIO, "Input/output error", "out of memory.txt"),
        InvalidConfig("port", "it is taken"),
        ImportError("no module named torch"),
    ],
)
def test_other_errors_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, telling_shortage():
        raise error
    assert caught.value is error


def test_a_kv_cache_fits_the_limit_of_address_space() -> None:
    """ulimit -v sets the limit; the machine has more memory."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0])
    limit = used * resource.getpagesize() + 64 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    try:
        num_blocks = count_fitting_blocks(
            2**14,
            CacheConfig(block_size=1, kv_cache_fraction=0.5),
            max_num_seqs=1000,
            max_model_len=1000,
            device=torch.device("cpu"),
        ).num_blocks
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    # Other allocations may have taken some of it.
    assert 1024 <= num_blocks <= 2048


@pytest.mark.slow
def test_a_server_with_little_memory_says_so_in_a_sentence(tmp_path: Path) -> None:
    """The error comes from the engine process, which could print many tracebacks."""
    save_tiny_model("llama", tmp_path, vocab_size=512, bos_token_id=0, eos_token_id=1)
    tiny_tokenizer(tmp_path)
    enlarge(tmp_path / "model.safetensors", 8 * 2**30)
    limit = 4 * 2**30
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trioserve", "serve", str(tmp_path)),
            *("--port", "0", "--log-level", "error"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("trioserve: there is not enough memory")
    assert "4.0 GiB by ulimit -v" in line


def enlarge(path: Path, num_bytes: int) -> None:
    """Add a tensor of zeros, which take no room on the disk, to a safetensors file."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    begin = len(content) - end
    offsets = [begin, begin + num_bytes]
    header["filler"] = {"dtype": "U8", "shape": [num_bytes], "data_offsets": offsets}
    described = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(described).to_bytes(8, "little") + described + content[end:])
        file.truncate(file.tell() + num_bytes)
