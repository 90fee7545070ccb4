"""The products and attention of a decoder's step by our own kernels, without the rest of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import ctypes
from ctypes import c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
import json
from pathlib import Path
import subprocess
from tempfile import TemporaryDirectory
import time

from gguf import GGMLQuantizationType
from gguf.quants import quantize
import torch

from trioserve.config.engine import CacheConfig
import trioserve.kernels
from trioserve.kernels.library import Library, NoKernels, open_library
from trioserve.kernels.structs import AttentionSpec, MatrixSpec
from trioserve.model.runtimes.native.gguf_matrix import GgufMatrix
from trioserve.model.runtimes.native.packer import Packer, Weights

NATIVE = Path(trioserve.kernels.__file__).parent / "native"

# Format -> the type of numbers, and the kinds of GGUF of the layers and of the head; the
# default model's file has these two.
FORMATS: dict[str, tuple[torch.dtype, tuple[str, str] | None]] = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "int8": (torch.bfloat16, None),
    "Q4_1": (torch.bfloat16, ("Q4_1", "Q8_0")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a decoder; the defaults are SmolLM2-135M's."""

    num_layers: int = 30
    hidden_size: int = 576
    intermediate_size: int = 1536
    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64
    vocab_size: int = 49152

    @property
    def kv_numbers(self) -> int:
        """Numbers of the KV cache for one token."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def list_layer(self) -> list[tuple[int, int, int]]:
        """List (outputs, inputs, number of matrices) of the products of one layer."""
        attended = self.num_heads * self.head_dim
        qkv = attended + 2 * self.num_kv_heads * self.head_dim
        return [
            (qkv, self.hidden_size, 1),
            (self.hidden_size, attended, 1),
            (self.intermediate_size, self.hidden_size, 2),
            (self.hidden_size, self.intermediate_size, 1),
        ]


class Kernels(Library):
    """The library of kernels, with doors to products."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, path)
        library = ctypes.CDLL(str(path))
        self.multiply = library.bench_multiply
        self.multiply.restype = None
        self.multiply.argtypes = (
            *[c_void_p] * 3,
            *(c_int, c_void_p, c_int64, c_int, c_void_p),
        )
        self.attend = library.bench_attend
        self.attend.restype = None
        self.attend.argtypes = (c_void_p, c_int, c_void_p, *[c_int] * 3)
        self.read = library.bench_read
        self.read.restype = c_uint64
        self.read.argtypes = (*[c_void_p] * 3, c_int)


@contextmanager
def open_kernels(instructions: str | None = None) -> Iterator[Kernels]:
    """Compile the kernels and the doors, with the flags of an installation.

    With -march=native the compiler keeps other numbers in registers, and the bound would
    belong to other kernels.

    Args:
      instructions: the set that they use; by default the one that a server would use.

    Raises:
      NoKernels: the installation has none for this processor, or the system gives no tiles.
      OSError: there is no g++.
      CalledProcessError: it fails.
    """
    best = open_library().name
    name = instructions or best
    by_tiles = name == "amx"
    if by_tiles and best != "amx":
        raise NoKernels("the system gives no tiles")
    flags = json.loads((NATIVE / "flags.json").read_bytes())
    sources = [*NATIVE.glob("*.cpp"), Path(__file__).with_name("products.cpp")]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "products.so"
        own = flags["avx512_bf16" if by_tiles else name]
        options = [*flags["all"], *own, "-fPIC", "-shared", "-pthread"]
        subprocess.run(
            ["g++", *options, f"-I{NATIVE}", "-o", path, *sources], check=True
        )
        kernels = Kernels(name, path)
        if by_tiles:
            kernels.use_tiles()
        yield kernels


class Products:
    """The packed weights of a model in one format, with random values.

    Args:
      pool: of the library.
    """

    def __init__(self, kernels: Kernels, pool: int, shape: Shape, format: str) -> None:
        self._kernels = kernels
        self._pool = pool
        self._shape = shape
        dtype, self._kinds = FORMATS[format]
        self._packer = Packer(kernels, pool, dtype, int8=format == "int8")
        self._dtype = dtype
        layer = shape.list_layer()
        sources = [self._draw(*sizes[:2], is_head=False) for sizes in layer]
        self._specs = [
            [self._packer.pack([source]) for _ in range(count)]
            for _ in range(shape.num_layers)
            for source, (_, _, count) in zip(sources, layer)
        ]
        self._num_in_layers = len(self._specs)
        head = self._draw(shape.vocab_size, shape.hidden_size, is_head=True)
        self._specs.append([self._packer.pack([head])])

    @property
    def num_bytes(self) -> int:
        """Bytes of all packed weights."""
        return sum(self._count_bytes(spec) for pair in self._specs for spec in pair)

    def multiply(self, num_rows: int, *, head: bool) -> float:
        """Compute the products of one step, and return its seconds.

        Args:
          head: compute logits of all rows, too.
        """
        used = self._specs if head else self._specs[: self._num_in_layers]
        first = (MatrixSpec * len(used))(*(pair[0] for pair in used))
        second = (MatrixSpec * len(used))(
            *(pair[1] if len(pair) > 1 else MatrixSpec() for pair in used)
        )
        widest = max(spec.num_inputs for pair in used for spec in pair)
        highest = max(spec.num_outputs for pair in used for spec in pair)
        x = torch.randn(num_rows, widest + 2)
        # Zeros, so that the step does not wait for the system to give it memory.
        y = torch.zeros(num_rows, highest)
        began = time.perf_counter()
        self._kernels.multiply(
            *(self._pool, first, second, len(used), x.data_ptr(), x.stride(0)),
            *(num_rows, y.data_ptr()),
        )
        return time.perf_counter() - began

    def attend(self, num_tokens: int) -> float:
        """Compute the attention of one prompt in all layers, and return its seconds."""
        shape = self._shape
        spec = AttentionSpec(
            scaling=shape.head_dim**-0.5,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            key_dim=shape.head_dim,
            value_dim=shape.head_dim,
        )
        began = time.perf_counter()
        self._kernels.attend(
            *(self._pool, self._dtype == torch.bfloat16, ctypes.byref(spec)),
            *(CacheConfig().block_size, num_tokens, shape.num_layers),
        )
        return time.perf_counter() - began

    def read(self) -> float:
        """Read all weights once, and return the seconds."""
        specs = [spec for pair in self._specs for spec in pair]
        blocks = (c_void_p * len(specs))(*(spec.weights for spec in specs))
        sizes = (c_int64 * len(specs))(*map(self._count_bytes, specs))
        began = time.perf_counter()
        self._kernels.read(self._pool, blocks, sizes, len(specs))
        return time.perf_counter() - began

    def _draw(self, num_outputs: int, num_inputs: int, *, is_head: bool) -> Weights:
        numbers = torch.randn(num_outputs, num_inputs)
        if self._kinds is None:
            return numbers.to(self._dtype)
        kind = self._kinds[is_head]
        rows = quantize(numbers.numpy(), GGMLQuantizationType[kind])
        return GgufMatrix(kind=kind, num_inputs=num_inputs, rows=rows)

    def _count_bytes(self, spec: MatrixSpec) -> int:
        return int(self._kernels.count_packed(ctypes.byref(spec)))


@contextmanager
def open_products(
    kernels: Kernels, num_threads: int, shape: Shape, formats: Sequence[str]
) -> Iterator[dict[str, Products]]:
    """Pack the weights in each format; the threads end with the block."""
    pool = kernels.open_pool(num_threads)
    try:
        yield {name: Products(kernels, pool, shape, name) for name in formats}
    finally:
        kernels.close_pool(pool)
