"""The guard no_sync notices everything that would wait for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trioserve
from trioserve.model.device.tensors import send_floats, send_ids

WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "int": lambda x: int(x[0]),
    "bool": lambda x: 1 if x.all() else 0,
    "slice": lambda x: x[: x.argmax()],
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "contains": lambda x: 2.0 in x,
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 2),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.int().bincount(),
    "mask": lambda x: x[x > 2],
    "mask beside": lambda x: x.view(2, 3)[:, x[:3] > 2],
    "mask to set": lambda x: x.__setitem__(x > 2, x[0]),
    "masked_select": lambda x: x.masked_select(x > 2),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
}


@pytest.mark.parametrize("name", WAITING)
@pytest.mark.parametrize("is_inference", [True, False])
def test_operations_that_wait_are_refused(
    no_sync: Any, name: str, is_inference: bool
) -> None:
    with torch.inference_mode(is_inference), no_sync():
        with pytest.raises(AssertionError, match="makes the host wait"):
            WAITING[name](torch.arange(6.0))
    # Outside of the block they are allowed.
    WAITING[name](torch.arange(6.0))


@pytest.mark.parametrize(
    "wait",
    [
        lambda: torch.cuda.synchronize(),
        lambda: torch.cuda.Event.synchronize(None),
        lambda: torch.cuda.Stream.synchronize(None),
    ],
)
def test_to_wait_for_an_event_or_a_stream_is_refused(
    no_sync: Any, wait: Callable[[], None]
) -> None:
    with no_sync(), pytest.raises(AssertionError, match="makes the host wait"):
        wait()


@pytest.mark.parametrize(
    "text",
    [
        "x.to(device)",
        "x.to(device, torch.int32)",
        "x.to(device='cpu')",
        "x.to(x)",
        "torch.tensor([1], device=device)",
        "torch.as_tensor([1], device='cpu')",
    ],
)
def test_the_package_may_not_call_operations_that_wait_on_a_gpu(
    no_sync: Any, text: str
) -> None:
    values = {"x": torch.arange(3), "device": torch.device("cpu"), "torch": torch}
    code = compile(text, Path(trioserve.__file__).parent / "model" / "any.py", "eval")
    with no_sync(), pytest.raises(AssertionError, match="makes the host wait"):
        eval(code, values)


def test_operations_that_do_not_wait_are_allowed(no_sync: Any) -> None:
    device = torch.device("cpu")
    with no_sync():
        x = send_floats([1.0, 2.0, 3.0, 4.0], device)
        index = send_ids([0, 2], device)
        x[index] += x[1:3].masked_fill(x[1:3] > 2, 0.0)
        x.index_fill_(0, index, 1.0).scatter_reduce_(0, index, x[index], "amin")
        x.view(2, 2).masked_fill_(x[:2] > 0, 7.0)
        x.repeat_interleave(2)
        torch.where(x > 2, x, -torch.inf).to("cpu", non_blocking=True)
    assert len(list(x)) == 4


def test_modules_whose_tensors_stay_on_the_host_are_let_through(no_sync: Any) -> None:
    with no_sync("test_no_sync.py"):
        assert torch.arange(3).tolist() == [0, 1, 2]


def test_numbers_keep_their_type_and_value_when_sent() -> None:
    device = torch.device("cpu")
    assert torch.equal(send_ids((2**40, -1), device), torch.tensor([2**40, -1]))
    assert send_ids([], device).dtype == torch.int64
    assert torch.equal(send_floats((0.5, 1), device), torch.tensor([0.5, 1.0]))
    assert send_floats([], device).dtype == torch.float32
