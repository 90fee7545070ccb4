"""The device of the tests, and a stand-in for its graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Repeated:
    """Stands in for a graph: it calls the function again."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self.function = function
        self.num_replays = 0

    def replay(self) -> Tensor:
        self.num_replays += 1
        return self.function()


GRAPHS: list[Repeated] = []


def capture(function: Callable[[], Tensor]) -> Repeated:
    GRAPHS.append(Repeated(function))
    return GRAPHS[-1]
