"""The rules of routers are found wherever the weights of a model are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trioserve.model.runtimes.recognise.experts import find_mixture


class Ran(Exception):
    pass


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Stands in for a GPU.
        self.weight = nn.Parameter(torch.empty(4, 8, device="meta"))

    def forward(self, states: Tensor) -> Tensor:
        raise Ran(states.device.type)


def test_a_router_is_run_where_its_weight_is() -> None:
    mixture = nn.Module()
    mixture.gate, mixture.experts = Router(), nn.Module()
    with pytest.raises(Ran, match="meta"):
        find_mixture(mixture, hidden_size=8)
