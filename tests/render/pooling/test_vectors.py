"""Every output format preserves the numbers of a vector."""

from __future__ import annotations

import base64
import json
import sys
from typing import get_args

from hypothesis import given, strategies as st
import numpy as np
from numpy.typing import NDArray
import pytest
import torch

from trioserve.errors import InvalidParameter
from trioserve.render.pooling import vectors
from trioserve.render.pooling.vectors import VectorFormat
from trioserve.types.tensors import TensorBytes

Array = NDArray[np.float32]

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SHAPES = [(), (1,), (384,), (5, 7), (0, 4), (700, 128), (20_000,), (3, 2, 4), (9000, 1)]


def to_tensor(array: object) -> TensorBytes:
    made = np.asarray(array, dtype=np.float32)
    return TensorBytes(data=made.tobytes(), dtype="float32", shape=made.shape)


def draw(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def normalize(array: Array) -> Array:
    normed: Array = array / np.linalg.norm(array, axis=-1, keepdims=True)
    return normed


def test_json_is_nested_as_the_tensor_is() -> None:
    for shape in SHAPES:
        array = draw(*shape)
        read = np.array(json.loads(vectors.write_json(to_tensor(array))), np.float32)
        assert np.array_equal(read.reshape(shape), array)


@given(st.lists(FLOATS))
def test_json_gives_the_same_float32_back(numbers: list[float]) -> None:
    read = json.loads(vectors.write_json(to_tensor(numbers)))
    assert np.array(read, np.float32).tolist() == numbers


def test_numbers_that_are_not_finite_are_null_in_json_and_kept_in_bytes() -> None:
    tensor = to_tensor([1.0, np.nan, np.inf, -np.inf])
    assert json.loads(vectors.write_json(tensor)) == [1.0, None, None, None]
    data = vectors.write_bytes(tensor, VectorFormat())
    assert np.array_equal(
        np.frombuffer(data, np.float32), [1.0, np.nan, np.inf, -np.inf], equal_nan=True
    )


DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", DTYPES)
def test_bytes_are_those_of_torch(name: vectors.Dtype) -> None:
    array = draw(11, 8) * 100
    expected = torch.from_numpy(array).to(DTYPES[name])
    data = vectors.write_bytes(to_tensor(array), VectorFormat(dtype=name))
    read = torch.frombuffer(bytearray(data), dtype=DTYPES[name]).view(11, 8)
    assert torch.equal(read.float(), expected.float())


def test_every_type_is_tested() -> None:
    assert set(get_args(vectors.Dtype)) == set(DTYPES)


@pytest.mark.parametrize("name", DTYPES)
def test_bytes_come_in_the_requested_order(name: vectors.Dtype) -> None:
    tensor = to_tensor(draw(16))

    def write(endianness: vectors.Endianness) -> bytes:
        format = VectorFormat(dtype=name, endianness=endianness)
        return vectors.write_bytes(tensor, format)

    size = DTYPES[name].itemsize
    little, big = write("little"), write("big")
    swapped = np.frombuffer(little, np.uint8).reshape(-1, size)[:, ::-1].tobytes()
    assert big == swapped
    assert write("native") == (little if sys.byteorder == "little" else big)


def test_base64_is_a_json_string_of_the_bytes() -> None:
    tensor = to_tensor(draw(33))
    format = VectorFormat(dtype="bfloat16", endianness="big")
    written = json.loads(vectors.write_base64(tensor, format))
    assert base64.b64decode(written, validate=True) == vectors.write_bytes(
        tensor, format
    )


@pytest.mark.parametrize("signed", [True, False])
def test_bits_are_packed_highest_first(signed: bool) -> None:
    # The example of Cohere's reference: 1 for positive numbers; -0.0 is not positive.
    numbers = [0.5, -1, 0.0, 2, -0.0, 1e-9, -3, 4]
    written = vectors.pack_bits(to_tensor(numbers), signed=signed)
    assert json.loads(written) == [0b10010101 - 128 * signed]


@pytest.mark.parametrize("shape", [(64,), (3, 16)])
def test_packed_bits_are_numpys(shape: tuple[int, ...]) -> None:
    array = draw(*shape)
    expected = np.packbits(array > 0, axis=-1).astype(int)
    tensor = to_tensor(array)
    assert json.loads(vectors.pack_bits(tensor, signed=False)) == expected.tolist()
    signed = vectors.pack_bits(tensor, signed=True)
    assert json.loads(signed) == (expected - 128).tolist()


def test_bits_of_seven_numbers_cannot_be_packed() -> None:
    with pytest.raises(InvalidParameter) as caught:
        vectors.pack_bits(to_tensor(draw(7)), signed=True)
    assert caught.value.param == "embedding_types"


def test_the_average_of_one_chunk_is_the_chunk() -> None:
    tensor = to_tensor(draw(8))
    assert vectors.average([tensor], [3]) is tensor


def test_chunks_count_by_their_tokens() -> None:
    chunks = draw(3, 8) * 5
    found = vectors.average([to_tensor(chunk) for chunk in chunks], [64, 64, 9])
    expected = (chunks[0] * 64 + chunks[1] * 64 + chunks[2] * 9) / 137
    assert found.shape == (8,)
    assert vectors.read_floats(found) == pytest.approx(expected, rel=1e-5)


def test_unit_chunks_have_a_unit_average_and_others_do_not() -> None:
    # Rounding to bfloat16 changes lengths by as much.
    chunks = normalize(draw(4, 8)) * np.float32(1.004)
    tensors = [to_tensor(chunk) for chunk in chunks]
    unit = vectors.read_floats(vectors.average(tensors, [1, 2, 3, 4]))
    assert np.linalg.norm(unit) == pytest.approx(1.0, abs=1e-6)
    tensors[2] = to_tensor(chunks[2] * 1.1)
    mixed = vectors.read_floats(vectors.average(tensors, [1, 2, 3, 4]))
    assert np.linalg.norm(mixed) < 0.99


def test_opposite_chunks_leave_nothing() -> None:
    one = normalize(draw(8))
    found = vectors.average([to_tensor(one), to_tensor(-one)], [5, 5])
    assert vectors.read_floats(found) == [0.0] * 8


def test_floats_are_read_in_c_order() -> None:
    assert vectors.read_floats(to_tensor([[1, 2], [3, 4]])) == [1.0, 2.0, 3.0, 4.0]
    assert vectors.read_floats(to_tensor(0.5)) == [0.5]
