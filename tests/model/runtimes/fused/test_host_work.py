"""The host's work for a step of decodes on a GPU: one copy, one graph, and one copy back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from interpreter import require_triton
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from trioserve.model import runner as runner_module
from trioserve.model.runner import ModelRunner
from trioserve.model.sampling import writing
from trioserve.model.sampling.launched import LaunchedStep
from trioserve.model.self_check.steps import make_check
from trioserve.types.plan import StepPlan
from trioserve.types.sampling import SamplingParams

from ...planning import GREEDY, Planner, make_prompt
from .graphs import DEVICE, GRAPHS, Repeated, load

require_triton()

from trioserve.model.runtimes.fused import decode_check, decoder  # noqa: E402
from trioserve.model.sampling.triton_operators import TritonOperators  # noqa: E402

DRAWN = SamplingParams(temperature=1.3)


class Operators(TorchDispatchMode):
    """Records torch's operators, without those that only look at a tensor in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not func.is_view:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def answer(
    loaded: Any, watch: Callable[[ModelRunner], None] | None = None
) -> list[list[int]]:
    """Answer three prompts that fill a block each, then beside a row with a top_k.

    Args:
      watch: is called with the warm runner; without it no step is captured.
    """
    planner = Planner(loaded, max_num_seqs=4, max_model_len=16)
    if watch is not None:
        planner.runner.warm_up()
    samplings = GREEDY, DRAWN, SamplingParams(temperature=0.6)
    sequences = [
        planner.begin(make_prompt(4, slot), slot=slot, sampling=sampling, seed=slot)
        for slot, sampling in enumerate(samplings)
    ]
    planner.step(*((sequence, 4) for sequence in sequences))
    if watch is not None:
        watch(planner.runner)
    planner.run(*sequences, num_tokens=3)
    other = planner.begin([5], slot=3, sampling=replace(DRAWN, top_k=7))
    planner.step(*((sequence, 1) for sequence in (other, *sequences)))
    planner.run(other, *sequences, num_tokens=5)
    return [sequence.outputs for sequence in (*sequences, other)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_plain_rows_cost_one_copy_and_are_chosen_in_the_graph(
    tiny: Callable[..., Any], no_sync: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("qwen2", DEVICE)
    expected = answer(model.loaded)
    monkeypatch.setattr(
        writing,
        "choose_operators",
        lambda scans, device, *_, **__: TritonOperators(device),
    )
    recorded: list[list[str]] = []

    def watch(runner: ModelRunner) -> None:
        launch = runner.launch

        def launch_watched(plan: StepPlan) -> LaunchedStep:
            with no_sync("interpreter.py"), Operators() as seen:
                launched = launch(plan)
            recorded.append(seen.names)
            return launched

        monkeypatch.setattr(runner, "launch", launch_watched)

    def replay(graph: Repeated) -> Any:
        # On a GPU the host gives no operator of a graph to the device.
        with _disable_current_modes():
            return original(graph)

    original = Repeated.replay
    monkeypatch.setattr(Repeated, "replay", replay)
    num_graphs = len(GRAPHS)
    assert answer(load(model), watch) == expected
    # A graph of the step, and one that draws, for each of four sizes.
    graphs = GRAPHS[num_graphs:]
    assert len(graphs) == 2 * 3
    assert sum(graph.num_replays for graph in graphs[::2]) == len(recorded)
    assert sum(graph.num_replays for graph in graphs[1::2]) == 5
    # The numbers of the step; and the tokens, which the next step overwrites.
    expected_names = ["copy_", "clone"]
    if DEVICE == "cuda":
        # They go to the host.
        expected_names += ["copy_", "record_stream"]
    for names in recorded:
        # The first steps pin memory. A start has no numbers to send, which views cannot show.
        names = [name for name in names if name not in ("empty", "new_empty")]
        assert names == expected_names


@pytest.mark.skipif(DEVICE == "cuda", reason="watches the interpreter's launches")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_threads_launch_kernels_on_the_device_of_the_model(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread's own device is the first GPU at first, whichever the model has."""
    from triton.runtime.interpreter import GridExecutor

    devices: list[torch.device] = []
    launched: list[bool] = []

    @contextmanager
    def on_device(device: torch.device) -> Iterator[None]:
        devices.append(device)
        yield
        devices.pop()

    def launch(executor: Any, *args: Any, **constants: Any) -> None:
        launched.append(bool(devices))
        original(executor, *args, **constants)

    original = GridExecutor.__call__
    monkeypatch.setattr(GridExecutor, "__call__", launch)
    monkeypatch.setattr(runner_module, "on_device", on_device)
    Planner(load(tiny("qwen2", DEVICE)), max_num_seqs=1).runner.warm_up()
    assert launched and all(launched)


def test_kernels_are_tried_before_they_read_and_choose_tokens(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, loaded = torch.device(DEVICE), load(tiny("qwen2", DEVICE))
    tables, _ = make_check(loaded.info.vocab_size, device)
    assert loaded.native is not None, "the kernels run it"
    layers: Any = loaded.native.open(tables, num_blocks=1)
    monkeypatch.setattr(decoder, "list_sizes", lambda most: [])
    embed = loaded.model.get_input_embeddings()

    def fail(*_: Any) -> None:
        raise ValueError("no such instruction")

    def forget(*_: Any) -> torch.Tensor:
        return torch.zeros(3, dtype=torch.int64)

    for function, replacement, fault in (
        ("find_fault", decode_check.find_fault, None),
        ("take_tokens", forget, "it reads other tokens or blocks"),
        ("choose_plain", forget, "it chooses other tokens"),
        ("choose_plain", fail, "it fails: no such instruction"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(decode_check, function, replacement)
            found = decode_check.find_fault(device, torch.bfloat16)
            layers.prepare(2, embed=embed, chooses=True)
        assert found == fault
        assert layers.reads_tokens == (fault is None)
