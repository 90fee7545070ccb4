"""The device of the tests, a stand-in for its graphs, and models that are captured in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import functools
from typing import Any

import torch

from trioserve.config import ModelConfig
from trioserve.model.loading.choose_runtime import make_decoder
from trioserve.model.loading.files.facts import read_facts
from trioserve.model.loading.load import load_model, load_modules
from trioserve.model.runtimes.fused.graphs import GraphOutput
from trioserve.model.runtimes.loaded import LoadedModel

from ...planning import Planner, make_prompt

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Repeated:
    """Stands in for a graph: it calls the function again."""

    def __init__(self, function: Callable[[], GraphOutput]) -> None:
        self.function = function
        # Steps; the first replay is a trial.
        self.num_replays = -1
        self.output: GraphOutput | None = None

    def replay(self) -> GraphOutput:
        """Compute again, into the tensors of the first time."""
        self.num_replays += 1
        output = self.function()
        if self.output is None:
            self.output = output
        for kept, new in zip(self.output, output):
            if kept is not None and new is not None:
                kept.copy_(new)
        return self.output


GRAPHS: list[Repeated] = []


def capture(function: Callable[[], GraphOutput]) -> Repeated:
    GRAPHS.append(Repeated(function))
    return GRAPHS[-1]


@functools.cache
def load(model: Any) -> LoadedModel:
    """Load a model once. It captures graphs only for runners that warm up."""
    from trioserve.model.runtimes.fused.decoder import FusedDecoder

    config = ModelConfig(device=model.loaded.device.type, dtype="float32")
    facts = read_facts(model.folder, config)
    loaded = load_modules(model.folder, config, facts, "tiny")
    # It compares the outputs itself.
    decoder = make_decoder(
        loaded, lambda parts: FusedDecoder(parts, lambda: capture), int8=False
    )
    return replace(loaded, native=decoder)


def check_on_gpu(model: Any, dtype: Any, device: str = DEVICE) -> None:
    """Let a model write three texts in graphs.

    A load compares the kernels with the modules; in 16 bits other tokens may win.
    """
    config = ModelConfig(device=device, dtype=dtype, kernels="native")
    loaded = load_model(model.folder, config, name="tiny")
    assert loaded.info.kernels == "native triton"
    planner = Planner(loaded)
    planner.runner.warm_up()
    sequences = [
        planner.begin(make_prompt(length, slot), slot=slot)
        for slot, length in enumerate((33, 1, 12))
    ]
    planner.step((sequences[0], 20))
    planner.step((sequences[1], 1), (sequences[0], 13), (sequences[2], 5))
    planner.run(*sequences, num_tokens=16)
    if dtype == "float32":
        model.check(*sequences)
