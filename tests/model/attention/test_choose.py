"""Each backend states its limits, and the first one within them is chosen."""

from __future__ import annotations

import pytest
import torch

from trioserve.config import ModelConfig
from trioserve.errors import InvalidConfig
from trioserve.model.attention.backend import PagedBackend
from trioserve.model.attention.choose import (
    choose_encoder_backend,
    choose_paged_backend,
)
from trioserve.model.attention.flat import FlatAttention
from trioserve.model.attention.gather import GatherAttention
from trioserve.model.attention.probe import UnfitLayer
from trioserve.model.step.slots import SlotTables

from .steps import make_layer, make_model


def test_an_encoder_gets_the_backend_that_supports_its_layers() -> None:
    layers = (make_layer(),)
    backend = choose_encoder_backend(layers, torch.device("cpu"))
    assert isinstance(backend, FlatAttention)


def test_an_encoder_without_a_backend_is_refused() -> None:
    layers = make_layer(), make_layer(softcap=30.0)
    with pytest.raises(UnfitLayer, match="no attention backend supports its layers"):
        choose_encoder_backend(layers, torch.device("cpu"))


def choose(wanted: str) -> PagedBackend:
    cpu = torch.device("cpu")
    model = make_model(block_size=16, device=cpu)
    tables = SlotTables(max_num_seqs=1, max_model_len=32, block_size=16, device=cpu)
    return choose_paged_backend(model, tables, wanted)


def test_a_decoder_on_a_cpu_gets_torchs_operators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    assert isinstance(choose("auto"), GatherAttention)
    assert caplog.messages == ["attention: gather"]


def test_a_wanted_backend_that_cannot_run_is_refused() -> None:
    message = "--attention-backend: varlen cannot be used: it needs a GPU"
    with pytest.raises(InvalidConfig, match=message):
        choose("varlen")


def test_a_wanted_backend_turns_native_kernels_off() -> None:
    assert ModelConfig().wants_native
    assert not ModelConfig(attention_backend="gather").wants_native
    for others in ({"kernels": "native"}, {"quantization": "int8"}):
        with pytest.raises(InvalidConfig, match="native kernels"):
            ModelConfig(attention_backend="gather", **others)  # type: ignore[arg-type]
