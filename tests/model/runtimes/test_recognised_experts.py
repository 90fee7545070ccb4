"""The rules of routers are found wherever the weights of a model are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trioserve.model.runtimes.recognise.experts import find_mixture
from trioserve.testing.models import make_tiny_model


class Ran(Exception):
    pass


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # Stands in for a GPU.
        self.weight = nn.Parameter(torch.empty(4, 8, device="meta"))

    def forward(self, states: Tensor) -> Tensor:
        raise Ran(states.device.type)


@pytest.mark.parametrize("model_type", ["gpt_oss", "qwen3_moe"])
def test_a_rule_is_found_if_most_shares_are_zero(model_type: str) -> None:
    """So it is with wide random weights, by which load checks judge a configuration."""
    model = make_tiny_model(model_type)
    mixture = model.model.layers[0].mlp
    router = mixture.router if model_type == "gpt_oss" else mixture.gate
    with torch.no_grad():
        router.weight *= 300
    found = find_mixture(mixture, hidden_size=32)
    assert found is not None and found.num_chosen == 2


def test_a_router_is_run_where_its_weight_is() -> None:
    mixture = nn.Module()
    mixture.gate, mixture.experts = Router(), nn.Module()
    with pytest.raises(Ran, match="meta"):
        find_mixture(mixture, hidden_size=8)
