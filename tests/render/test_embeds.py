"""Tensors from clients: valid files are read as by torch, and no file does harm.

Run as a script, with a seed, this module decodes damaged files. A crash would end only
the script's process.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
import io
import json
import os
from pathlib import Path
import pickle
import pickletools
import random
import resource
import struct
import subprocess
import sys
from typing import Any
import warnings
import zipfile

from examples import is_thorough
from hypothesis import given, strategies as st
from mutation import NUMBERS, mutate
import pytest
import safetensors.torch
import torch
from warm_start import FORK

import trioserve
from trioserve.errors import ContextLengthExceeded, InvalidParameter
from trioserve.render.tensors.embeds import DecodedEmbeds, decode_embeds
from trioserve.types.prompt import KEY_BYTES

HIDDEN = 8

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def decode(file: bytes | bytearray, **options: Any) -> DecodedEmbeds:
    return decode_payload(base64.b64encode(file), **options)


def decode_payload(
    payload: bytes | memoryview, *, dtype: str = "bfloat16", max_tokens: int = 64
) -> DecodedEmbeds:
    return decode_embeds(
        payload,
        hidden_size=HIDDEN,
        dtype=dtype,
        max_tokens=max_tokens,
        param="prompt_embeds",
    )


def refuse(file: bytes, *, max_tokens: int = 64) -> str:
    """Return the reason why a file is refused."""
    with pytest.raises(InvalidParameter) as caught:
        decode(file, max_tokens=max_tokens)
    assert caught.value.param == "prompt_embeds"
    return str(caught.value)


def to_tensor(decoded: DecodedEmbeds) -> torch.Tensor:
    data = bytearray(decoded.tensor.data)
    dtype = getattr(torch, decoded.tensor.dtype)
    return torch.frombuffer(data, dtype=dtype).view(decoded.tensor.shape)


def save(tensor: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file, **options)
    return file.getvalue()


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


# Files of torch.save, and made-up files in its format.


class Reduced:
    """An object that is pickled as a function call with arguments."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.function, self.args


class Stored:
    """A storage whose elements are an entry of the archive."""

    def __init__(self, key: str, num_elements: int, kind: type = torch.FloatStorage):
        self.reference = ("storage", kind, key, "cpu", num_elements)


class TorchPickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> object:
        return obj.reference if isinstance(obj, Stored) else None


def rebuild(
    stored: Stored, size: object, strides: object, offset: object = 0
) -> Reduced:
    function = torch._utils._rebuild_tensor_v2
    return Reduced(function, stored, offset, size, strides, False, None)


def rebuild_sparse(indices: object, values: object, size: object) -> Reduced:
    layout = Reduced(torch.serialization._get_layout, "torch.sparse_coo")
    function = torch._utils._rebuild_sparse_tensor
    return Reduced(function, layout, (indices, values, size, False))


def pack(
    program: object, *storages: bytes, folder: str = "archive", **entries: bytes
) -> bytes:
    """Return an archive like torch.save's, with any pickle and any storages."""
    if not isinstance(program, bytes):
        stream = io.BytesIO()
        TorchPickler(stream, protocol=2).dump(program)
        program = stream.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", program)
        for key, storage in enumerate(storages):
            archive.writestr(f"{folder}/data/{key}", storage)
        for name, entry in entries.items():
            archive.writestr(f"{folder}/{name}", entry)
    return file.getvalue()


def deflate(file: bytes) -> bytes:
    """Return a zip file with the same entries, compressed."""
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(file)) as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return packed.getvalue()


def pack_safetensors(header: bytes, elements: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + elements


# Valid files.

LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "in order": lambda dtype: draw(5, HIDDEN, dtype=dtype),
    "batch of one": lambda dtype: draw(1, 5, HIDDEN, dtype=dtype),
    "transposed": lambda dtype: draw(HIDDEN, 5, dtype=dtype).t(),
    "some rows": lambda dtype: draw(50, HIDDEN, dtype=dtype)[3:40:7],
    "some columns": lambda dtype: draw(5, 3 * HIDDEN, dtype=dtype)[:, 1:-1:3][:, :8],
    "repeated": lambda dtype: draw(1, HIDDEN, dtype=dtype).expand(5, HIDDEN),
    "trained": lambda dtype: draw(5, HIDDEN, dtype=dtype).requires_grad_(),
    "parameter": lambda dtype: torch.nn.Parameter(draw(5, HIDDEN, dtype=dtype)),
    "sparse": lambda dtype: draw(5, HIDDEN, dtype=dtype).relu().to_sparse(),
    "sparse rows": lambda dtype: draw(5, HIDDEN, dtype=dtype).to_sparse(1),
    "sparse batch of one": lambda dtype: draw(1, 5, HIDDEN, dtype=dtype).to_sparse(),
    "sparse parameter": lambda dtype: torch.nn.Parameter(
        draw(5, HIDDEN, dtype=dtype).relu().to_sparse()
    ),
    "sparse without values": lambda dtype: torch.zeros(
        5, HIDDEN, dtype=dtype
    ).to_sparse(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vectors_are_those_that_torch_reads(layout: str) -> None:
    for dtype in FLOATS:
        file = save(LAYOUTS[layout](dtype))
        loaded = torch.load(io.BytesIO(file), weights_only=True).detach()
        for ours in (torch.bfloat16, torch.float16, torch.float32):
            decoded = decode(file, dtype=str(ours).removeprefix("torch."))
            expected = loaded.to_dense().reshape(-1, HIDDEN).to(ours)
            assert torch.equal(to_tensor(decoded), expected), dtype


def test_vectors_come_as_safetensors_too() -> None:
    for shape in ((5, HIDDEN), (1, 1, HIDDEN)):
        for dtype in FLOATS:
            tensor = draw(*shape, dtype=dtype)
            file = safetensors.torch.save({"any name": tensor}, {"some": "metadata"})
            decoded = decode(file, dtype="float32")
            expected = tensor.view(-1, HIDDEN).float()
            assert torch.equal(to_tensor(decoded), expected), (dtype, shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_values_at_the_same_place_add_up(dtype: torch.dtype) -> None:
    places = torch.tensor([[0, 2, 0, 0], [1, 7, 1, 0]])
    tensor = torch.sparse_coo_tensor(
        places,
        torch.tensor([0.5, 2, 3, 4], dtype=dtype),
        (3, HIDDEN),
        check_invariants=True,
    )
    expected = tensor.to_dense().to(torch.bfloat16)
    assert torch.equal(to_tensor(decode(save(tensor))), expected)


@pytest.mark.parametrize("folder", ["x", "xx", "xxx", "xxxx"])
def test_elements_may_lie_at_any_address(folder: str) -> None:
    tensor = draw(5, HIDDEN)
    program = rebuild(Stored("0", 5 * HIDDEN), (5, HIDDEN), (HIDDEN, 1))
    file = pack(program, tensor.numpy().tobytes(), folder=folder)
    assert torch.equal(to_tensor(decode(file, dtype="float32")), tensor)


def test_a_safetensors_header_of_any_length_is_read() -> None:
    tensor = draw(5, HIDDEN)
    elements = tensor.numpy().tobytes()
    for padding in range(8):
        header = (
            b'{"x": {"dtype": "F32", "shape": [5, 8], "data_offsets": [0, 160]}}'
            + b" " * padding
        )
        decoded = decode(pack_safetensors(header, elements), dtype="float32")
        assert torch.equal(to_tensor(decoded), tensor)


def test_a_view_may_be_the_callers() -> None:
    tensor = draw(5, HIDDEN, dtype=torch.bfloat16)
    body = b'{"prompt_embeds":"' + base64.b64encode(save(tensor)) + b'"}'
    decoded = decode_payload(memoryview(body)[18:-2], max_tokens=6)
    assert decoded.tensor.dtype == "bfloat16"
    assert decoded.tensor.shape == (5, HIDDEN)
    assert torch.equal(to_tensor(decoded), tensor)


def list_keys(tensor: torch.Tensor) -> list[bytes]:
    keys = decode(save(tensor), max_tokens=512).keys
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


def test_tensors_that_begin_alike_have_the_keys_of_whole_groups_in_common() -> None:
    tensor, rest = draw(150, HIDDEN), draw(100, HIDDEN)
    keys, longer = list_keys(tensor), list_keys(torch.cat((tensor, rest)))
    assert len(keys) == 150
    # One key for 64 rows, one for 64 rows, and one for 22 rows.
    assert keys == [keys[0]] * 64 + [keys[64]] * 64 + [keys[128]] * 22
    assert len(set(keys)) == 3
    assert longer[:128] == keys[:128]
    assert longer[128] not in keys
    changed = tensor.clone()
    changed[70] += 1
    assert [a == b for a, b in zip(list_keys(changed), keys)] == (
        [True] * 64 + [False] * 64 + [True] * 22
    )


def test_keys_depend_only_on_the_values_that_the_model_reads() -> None:
    tensor = draw(3, HIDDEN)
    # A change that is lost in bfloat16.
    assert list_keys(tensor * (1 + 1e-7)) == list_keys(tensor)
    assert list_keys(tensor.double().to_sparse()) == list_keys(tensor)


def test_a_vector_kept_does_not_keep_the_file_that_it_came_in() -> None:
    tensor = draw(1000, HIDDEN, dtype=torch.bfloat16)
    data = decode(save(tensor[:2])).tensor.data
    assert isinstance(data, memoryview)
    base = data.obj
    while (below := getattr(base, "base", None)) is not None:
        base = below
    assert base.untyped_storage().nbytes() == 2 * HIDDEN * 2


# Too many vectors.


@pytest.mark.parametrize("num_vectors", [5, 6])
def test_one_output_token_must_fit(num_vectors: int) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        decode(save(draw(num_vectors, HIDDEN)), max_tokens=5)
    assert caught.value.num_tokens == num_vectors
    assert caught.value.limit == 5
    assert caught.value.param == "prompt_embeds"


def test_a_row_repeated_a_billion_times_is_too_long() -> None:
    tensor = draw(1, HIDDEN).expand(2**30, HIDDEN)
    with pytest.raises(ContextLengthExceeded):
        decode(save(tensor))


# Invalid files.


def test_a_payload_that_is_no_file_in_base64_is_refused() -> None:
    for payload in (
        b"",
        b"x",
        b"@@@@",
        b"AAAA AAAA",
        b"AA==AAAA",
        b"\xff\xff\xff\xff",
        b"AAAA",
        b"gAJ9",
        base64.b64encode(b"PK\x03\x04"),
        base64.b64encode(b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}"),
    ):
        with pytest.raises(InvalidParameter, match="^prompt_embeds: "):
            decode_payload(payload)


def test_a_file_without_a_tensor_is_refused() -> None:
    for wrong in (
        [draw(5, HIDDEN)],
        {"x": draw(5, HIDDEN)},
        "text",
        7,
        None,
        (),
        torch.nn.Linear(HIDDEN, HIDDEN),
    ):
        assert "must hold one plain tensor" in refuse(save(wrong))


def test_a_tensor_with_more_than_data_is_refused() -> None:
    tagged = draw(5, HIDDEN)
    tagged.note = "from python"
    assert "must hold one plain tensor" in refuse(save(tagged))
    negated = torch.view_as_complex(draw(5, HIDDEN, 2)).conj().imag
    assert "must hold one plain tensor" in refuse(save(negated))


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for function in (os.mkdir, eval, torch.load, getattr):
        program = Reduced(function, str(mark))
        assert "must hold one plain tensor" in refuse(pack(program))
    assert not mark.exists()


def test_other_types_than_floating_point_are_refused() -> None:
    for tensor in (
        torch.zeros(5, HIDDEN, dtype=torch.int64),
        torch.zeros(5, HIDDEN, dtype=torch.int8),
        torch.zeros(5, HIDDEN, dtype=torch.uint16),
        torch.zeros(5, HIDDEN, dtype=torch.bool),
        torch.zeros(5, HIDDEN, dtype=torch.complex64),
        torch.zeros(5, HIDDEN, dtype=torch.float8_e4m3fn),
        torch.zeros(5, HIDDEN, dtype=torch.int64).to_sparse(),
    ):
        assert "one of the types float16, bfloat16, float32" in refuse(save(tensor))
        if tensor.layout is torch.strided:
            file = safetensors.torch.save({"x": tensor})
            assert "one of the types float16, bfloat16, float32" in refuse(file), tensor


def test_other_shapes_than_a_prompts_are_refused() -> None:
    for shape, reason in (
        ((), "(num_tokens, hidden_size)"),
        ((HIDDEN,), "(num_tokens, hidden_size)"),
        ((2, 5, HIDDEN), "(num_tokens, hidden_size)"),
        ((1, 1, 5, HIDDEN), "(num_tokens, hidden_size)"),
        ((1,) * 9, "outside the elements"),
        ((5, HIDDEN - 1), "this model's vectors have 8 numbers"),
        ((5, HIDDEN + 1), "this model's vectors have 8 numbers"),
        ((HIDDEN, 5), "this model's vectors have 8 numbers"),
        ((5, 0), "this model's vectors have 8 numbers"),
        ((0, HIDDEN), "at least one vector"),
        ((1, 0, HIDDEN), "at least one vector"),
    ):
        assert reason in refuse(save(torch.zeros(shape)))
        assert reason in refuse(safetensors.torch.save({"x": torch.zeros(shape)}))


def test_numbers_that_the_model_cannot_read_are_refused() -> None:
    for at in (0, 19, 5 * HIDDEN - 1):
        for number in (float("nan"), float("inf"), -float("inf"), 1e300):
            tensor = draw(5, HIDDEN, dtype=torch.float64)
            tensor.view(-1)[at] = number
            assert "must be finite" in refuse(save(tensor)), (number, at)
            assert "must be finite" in refuse(save(tensor.to_sparse())), (number, at)


def test_formats_that_are_not_read_are_named() -> None:
    with warnings.catch_warnings(action="ignore"):
        # torch warns that this layout is in beta state.
        compressed = draw(5, HIDDEN).to_sparse_csr()
    assert "only COO" in refuse(save(compressed))
    legacy = save(draw(5, HIDDEN), _use_new_zipfile_serialization=False)
    assert "zip format" in refuse(legacy)
    assert "pickle protocol" in refuse(save(draw(5, HIDDEN), pickle_protocol=4))
    swapped = save(draw(5, HIDDEN)).replace(b"little", b"bigend")
    assert "byte order" in refuse(swapped)


# Files with false sizes.

STORED = bytes(5 * HIDDEN * 4)
TAKEN = Stored("0", 5 * HIDDEN)


def pack_sparse(places: list[list[int]], size: tuple[int, ...]) -> bytes:
    indices = torch.tensor(places)
    num_values = indices.shape[1]
    program = rebuild_sparse(
        rebuild(
            Stored("0", indices.numel(), torch.LongStorage),
            tuple(indices.shape),
            indices.stride(),
        ),
        rebuild(Stored("1", num_values), (num_values,), (1,)),
        size,
    )
    return pack(program, indices.numpy().tobytes(), bytes(4 * num_values))


def test_the_damaged_files_here_differ_little_from_correct_ones() -> None:
    assert decode(pack(rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1)), STORED))
    assert decode(pack_sparse([[0, 4], [7, 0]], (5, HIDDEN)))


@pytest.mark.parametrize(
    "place", [(5, 0), (0, HIDDEN), (-1, 0), (0, -1), (2**62, 0), (-(2**63), 2**63 - 1)]
)
def test_an_index_outside_a_sparse_tensor_is_refused(place: tuple[int, int]) -> None:
    places = [[0, place[0], 4], [0, place[1], 7]]
    assert "index" in refuse(pack_sparse(places, (5, HIDDEN)))


def test_a_kilobyte_does_not_become_a_gigabyte() -> None:
    for rows, columns in ((2**20, 2**20), (2**62, 2**62)):
        assert "8 numbers" in refuse(pack_sparse([[0], [0]], (rows, columns)))
    sparse = pack_sparse([[0], [0]], (2**27, HIDDEN))
    assert "one part in 1024" in refuse(sparse, max_tokens=2**30)
    repeated = save(draw(1, HIDDEN).expand(2**27, HIDDEN))
    assert "one part in 1024" in refuse(repeated, max_tokens=2**30)
    # Parts of a sparse tensor may not be repeated, either.
    sparse = save(
        torch.sparse_coo_tensor(
            torch.zeros(2, 1, dtype=torch.int64).expand(2, 2**20),
            torch.ones(1).expand(2**20),
            (5, HIDDEN),
            check_invariants=True,
        )
    )
    assert len(sparse) < 2**12
    assert "outside the elements" in refuse(sparse)


PLACES = rebuild(Stored("0", 4, torch.LongStorage), (2, 2), (2, 1))
VALUES = rebuild(Stored("1", 2), (2,), (1,))


OUTSIDE_THE_STORAGE = [
    rebuild(TAKEN, (6, HIDDEN), (HIDDEN, 1)),
    rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1), 1),
    rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 2)),
    rebuild(TAKEN, (5, HIDDEN), (2**62, 1)),
    rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1), 2**62),
    rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1), -1),
    rebuild(TAKEN, (5, HIDDEN), (-HIDDEN, 1), 32),
    rebuild(TAKEN, (-5, -HIDDEN), (HIDDEN, 1)),
    rebuild(TAKEN, (5, HIDDEN), (HIDDEN,)),
    rebuild(TAKEN, (2**600, HIDDEN), (0, 0)),
    rebuild(TAKEN, (5, float("nan")), (HIDDEN, 1)),
    rebuild(TAKEN, (5, "8"), (HIDDEN, 1)),
    rebuild(TAKEN, (5, True), (HIDDEN, 1)),
    rebuild(TAKEN, 5, HIDDEN),
    rebuild(TAKEN, None, None),
    rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1), None),
    rebuild(Stored("0", 5 * HIDDEN + 1), (5, HIDDEN), (HIDDEN, 1)),
    rebuild(Stored("0", 2**62), (2**59, HIDDEN), (HIDDEN, 1)),
    rebuild(Stored("0", -1), (5, HIDDEN), (HIDDEN, 1)),
    rebuild(Stored("0", 40, torch.DoubleStorage), (5, HIDDEN), (HIDDEN, 1)),
    rebuild(Stored("1", 40), (5, HIDDEN), (HIDDEN, 1)),
    rebuild(Stored("../data.pkl", 40), (5, HIDDEN), (HIDDEN, 1)),
    Reduced(torch._utils._rebuild_tensor_v2, TAKEN),
    Reduced(torch._utils._rebuild_parameter, TAKEN, False, None),
    Reduced(torch._utils._rebuild_parameter, 7, False, None),
    Reduced(torch.serialization._get_layout, "torch.sparse_coo"),
    TAKEN,
]

UNFIT_PARTS = [
    rebuild_sparse(PLACES, VALUES, (5,)),
    rebuild_sparse(PLACES, VALUES, (5, HIDDEN, 1)),
    rebuild_sparse(PLACES, VALUES, (-5, -HIDDEN)),
    rebuild_sparse(PLACES, VALUES, ()),
    rebuild_sparse(PLACES, VALUES, None),
    rebuild_sparse(PLACES, VALUES, (2, 2, *(1,) * 9)),
    rebuild_sparse(PLACES, PLACES, (5, HIDDEN)),
    rebuild_sparse(VALUES, VALUES, (5, HIDDEN)),
    rebuild_sparse(VALUES, PLACES, (5, HIDDEN)),
    rebuild_sparse(PLACES, TAKEN, (5, HIDDEN)),
    rebuild_sparse(None, None, (5, HIDDEN)),
    rebuild_sparse(
        rebuild(Stored("0", 4, torch.LongStorage), (0, 2), (2, 1)), VALUES, (5, HIDDEN)
    ),
]

NO_PICKLES = [
    b"",
    b".",
    b"\x80\x02.",
    b"K",
    b"K\x01.",
    b"h\x00.",
    b"q\x00.",
    b"t.",
    b"(0t.",
    b"K\x01(R.",
    b"\x85.",
    b"K\x01\x87.",
    b"R.",
    b"))R.",
    b"Q.",
    b"K\x01Q.",
    b"X\xff\xff\xff\xff.",
    b"X\x01\x00\x00\x00\xff.",
    b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"\x8a\xff.",
    b"\x8b\xff\xff\xff\x7f.",
    b"K\x01r\xff\xff\xff\x7f.",
    b"ctorch",
    b"ctorch\nSize",
    b"ctorch\nSize\n)R.",
    b"ccollections\nOrderedDict\n)\x85R.",
    b"cos\nsystem\n.",
    b"(" * 60_000,
    b")" + b"\x85" * 60_000 + b".",
    b")" + b"q\x00h\x00h\x00\x86" * 10_000 + b".",
    b")" * 65_537,
]


def test_a_program_that_makes_no_tensor_is_refused() -> None:
    """It reaches out of its storages, or is not what torch writes."""
    for file in (
        *(pack(program, STORED) for program in OUTSIDE_THE_STORAGE),
        *(pack(program, bytes(32), bytes(8)) for program in UNFIT_PARTS),
        *map(pack, NO_PICKLES),
    ):
        assert refuse(file)


def test_a_zip_that_is_not_as_torch_writes_it_is_refused() -> None:
    right = pack(rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1)), STORED)
    assert "compressed" in refuse(deflate(right))
    assert "compressed" in refuse(deflate(pack(b"N.", bytes(2**24))))
    twice = pack(b"N.", version=b"3", versiom=b"3")
    twice = twice.replace(b"versiom", b"version")
    assert "same name" in refuse(twice)
    assert refuse(pack(b"N.", *[b""] * 64))
    assert refuse(right.replace(b"data.pkl", b"code.pkl"))
    assert refuse(pack(b"N.", **{"also/data.pkl": b"N."}))
    assert refuse(right + b"\0")
    # The two sizes of an entry stand in the file twice.
    assert right.count(struct.pack("<II", 160, 160)) == 2
    longer = right.replace(struct.pack("<II", 160, 160), struct.pack("<II", 999, 999))
    assert "cut off" in refuse(longer)


# Offsets from the end: the directory's begin and its number of entries; then, of its
# last entry, whose name has 14 bytes: both sizes, the name's length, the entry's begin.
def test_a_zip_that_lies_about_itself_is_refused() -> None:
    for number in (1, 2**15, 2**16 - 1, 2**32 - 1):
        for at, layout in (
            (-22 + 16, "<I"),
            (-22 + 10, "<H"),
            (-22 - 14 - 46 + 20, "<I"),
            (-22 - 14 - 46 + 24, "<I"),
            (-22 - 14 - 46 + 28, "<H"),
            (-22 - 14 - 46 + 42, "<I"),
        ):
            file = bytearray(pack(rebuild(TAKEN, (5, HIDDEN), (HIDDEN, 1)), STORED))
            most = 2 ** (8 * struct.calcsize(layout)) - 1
            struct.pack_into(layout, file, len(file) + at, number & most)
            assert refuse(bytes(file)), (at, layout, number)


@pytest.mark.parametrize("tensor", ["in order", "sparse"])
def test_a_file_cut_short_is_refused(tensor: str) -> None:
    file = save(LAYOUTS[tensor](torch.float32))
    for length in range(0, len(file), 31):
        assert refuse(file[:length])


def describe(
    dtype: object = "F32", shape: object = (5, 8), offsets: object = (0, 160)
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_safetensors_header_that_lies_is_refused() -> None:
    for header in (
        {},
        {"__metadata__": {"x": "y"}},
        {"x": describe(), "y": describe()},
        {"x": None},
        {"x": {"dtype": "F32", "shape": [5, 8]}},
        {"x": describe(dtype=7)},
        {"x": describe(dtype="F99")},
        {"x": describe(shape=8)},
        {"x": describe(shape=(5, 9))},
        {"x": describe(shape=(-5, -8))},
        {"x": describe(shape=(5, 8, 2**60, 0))},
        {"x": describe(shape=(2**64, 8))},
        {"x": describe(shape=(float("5.5"), 8))},
        {"x": describe(shape=[5] + [1] * 30_000 + [8])},
        {"x": describe(offsets=(0, 159))},
        {"x": describe(offsets=(8, 168))},
        {"x": describe(offsets=(-160, 0))},
        {"x": describe(offsets=(160, 0))},
        {"x": describe(offsets=(0, 160, 320))},
        {"x": describe(shape=(10, 8), offsets=(0, 320))},
        {"x" * 70_000: describe()},
    ):
        text = json.dumps(header, separators=(",", ":"))
        assert refuse(pack_safetensors(text.encode(), STORED)), header


def test_safetensors_without_a_header_or_an_end_are_refused() -> None:
    for file in (
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 3) + b"{}",
        struct.pack("<Q", 2) + b"{",
        pack_safetensors(b"{", b""),
        pack_safetensors(b'{"\xff": 1}', b""),
        pack_safetensors(b'{"x": ' + b"[" * 60_000, b""),
        pack_safetensors(b'{"x": ' * 10_000, b""),
        safetensors.torch.save({"x": draw(5, HIDDEN)}) + b"\0",
        safetensors.torch.save({"x": draw(5, HIDDEN)})[:-1],
    ):
        assert refuse(file)


@given(
    changes=st.lists(
        st.tuples(st.integers(8, 71), st.sampled_from(b'{}[]",:0123456789FBx -.e')),
        min_size=1,
        max_size=3,
    )
)
def test_safetensors_itself_accepts_the_accepted_files(
    changes: list[tuple[int, int]],
) -> None:
    file = bytearray(safetensors.torch.save({"x": draw(5, HIDDEN)}))
    for at, byte in changes:
        file[at] = byte
    try:
        decoded = decode(file, dtype="float32")
    except InvalidParameter:
        return
    (tensor,) = safetensors.torch.load(bytes(file)).values()
    assert torch.equal(to_tensor(decoded), tensor.float())


# Thousands of damaged files.

NUM_DAMAGED_FILES = 4000 if is_thorough() else 400

# More memory than decoding may allocate, and less than a machine has.
MEMORY_LIMIT = 2 * 2**30


@pytest.mark.slow
def test_no_damaged_file_harms_the_process() -> None:
    seed = random.randrange(2**32)
    root = Path(trioserve.__file__).parent.parent
    paths = os.pathsep.join((str(root), str(root / "tests" / "support")))
    end = subprocess.run(
        [*FORK, __file__, str(seed), str(NUM_DAMAGED_FILES)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert end.returncode == 0, f"seed {seed}: {end.stderr}"
    num_read, num_refused = map(int, end.stdout.split())
    assert num_read + num_refused == NUM_DAMAGED_FILES
    # A file with damaged elements is read; other damage is found.
    assert min(num_read, num_refused) > NUM_DAMAGED_FILES / 50


def throw_damaged_files(seed: int, number: int) -> None:
    """Decode damaged files in limited memory; count those read and those refused."""
    torch.set_num_threads(1)
    chance = random.Random(seed)
    right = list_right_files()
    for file in right:
        decode(file)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + MEMORY_LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    num_read = sum(is_read(damage(right, chance), chance) for _ in range(number))
    print(num_read, number - num_read)


def list_right_files() -> list[bytes]:
    tensors = [make(torch.float32) for make in LAYOUTS.values()]
    return [
        *map(save, tensors),
        safetensors.torch.save({"x": draw(5, HIDDEN)}),
        safetensors.torch.save({"x": draw(5, HIDDEN).double()}, {"a": "b"}),
    ]


def is_read(file: bytes, chance: random.Random) -> bool:
    try:
        decoded = decode(file, max_tokens=chance.choice([64, 2**17, 2**60]))
    except (InvalidParameter, ContextLengthExceeded):
        return False
    assert to_tensor(decoded).isfinite().all()
    assert len(decoded.keys) == KEY_BYTES * decoded.tensor.shape[0]
    return True


def damage(right: list[bytes], chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return make_up(chance)
    file = bytearray(chance.choice(right))
    if file.startswith(b"PK") and chance.random() < 0.3:
        write_pickled_number(file, chance)
        return bytes(file)
    return mutate(file, chance)


NUMBER_SIZES = {"BININT1": 1, "BININT2": 2, "BININT": 4}


def write_pickled_number(file: bytearray, chance: random.Random) -> None:
    """Replace a number in the pickle of a valid file."""
    begin = file.index(b"\x80\x02")
    at, size = chance.choice(
        [
            (begin + at + 1, NUMBER_SIZES[opcode.name])
            for opcode, _, at in pickletools.genops(bytes(file[begin:]))
            if opcode.name in NUMBER_SIZES and at is not None
        ]
    )
    number = chance.choice(NUMBERS) % 2 ** (8 * size)
    file[at : at + size] = number.to_bytes(size, "little")


def make_up(chance: random.Random) -> bytes:
    """Return a complete file with random numbers."""

    def number() -> int:
        return chance.choice([5, 8, HIDDEN, 1, chance.choice(NUMBERS)])

    def tensor(stored: Stored, num_dims: int) -> Reduced:
        size, strides = (tuple(number() for _ in range(num_dims)) for _ in range(2))
        return rebuild(stored, size, strides, chance.choice([0, 0, number()]))

    if chance.random() < 0.5:
        dense = tensor(Stored("0", 40), chance.choice([1, 2, 2, 2, 3]))
        return pack(dense, STORED)
    if chance.random() < 0.5:
        places = [[number() for _ in range(3)] for _ in range(2)]
        places = [[max(-(2**63), min(n, 2**63 - 1)) for n in row] for row in places]
        return pack_sparse(places, (number(), HIDDEN))
    parts = (
        tensor(Stored("0", 4, torch.LongStorage), 2),
        tensor(Stored("1", 2), chance.choice([1, 2])),
    )
    return pack(rebuild_sparse(*parts, (number(), HIDDEN)), bytes(32), bytes(8))


if __name__ == "__main__":
    throw_damaged_files(*map(int, sys.argv[1:]))
