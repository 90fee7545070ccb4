"""The device of a model, in each of its threads."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from trioserve.model.device.choose import on_device


def test_a_thread_goes_to_the_gpu_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(device))
    with on_device(torch.device("cuda:1")) as entered:
        assert entered == torch.device("cuda:1")
    with on_device(torch.device("cpu")) as entered:
        assert entered is None
