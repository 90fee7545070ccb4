"""The process of a stage: `python -m trioserve.startup.stage_process DESCRIPTOR PARENT`.

pipeline/stages.py starts it, and pipeline/pipeline.py drives it by the messages of
pipeline/messages.py. It loads some layers of a model and steps them. Under torchrun it is
`trioserve serve` with a rank other than 0, which calls run_joining_stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
import os
from pathlib import Path
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import outcome
import trio

from .._version import __version__
from ..config import ModelConfig
from ..errors import InvalidConfig, StagesNotMet, StartupError
from ..executor import StepHandle, make_local_executor
from ..observe.log_lines import set_up_logging
from ..pipeline.messages import (
    Allocate,
    Beat,
    LoadStage,
    Ready,
    StageLoaded,
    Step,
    Stepped,
    ToStage,
)
from ..pipeline.rendezvous import join_engine
from ..pipeline.torchrun import LOOPBACK_ENVIRONMENT, Torchrun
from ..processes import (
    MessageStream,
    beat,
    ignore_stops,
    run_as_child,
    run_with_parent,
    serve_peer,
)
from ..processes.interpreter import settle_interpreter
from ..threads.fresh_thread import run_in_fresh_thread
from ..types.not_loaded import NotLoaded
from ..types.output import StepResult
from ..weights import Weights, complete_weights
from .grammar_tokenizer import load_grammar_tokenizer
from .limits import check_room
from .plugins import load_logits_processors
from .shortage import telling_shortage
from .source import find_source

if TYPE_CHECKING:
    from ..model import ModelRunner, Outline
    from ..model.stages import Channels, LoadedStage, StageLinks

T = TypeVar("T")


async def serve_stage(stream: MessageStream[Any]) -> None:
    """Load the layers that the engine names, and run its plans."""
    begin = await stream.receive()
    assert isinstance(begin, LoadStage), "LoadStage comes first"
    # A stage that torchrun has started has logged before, with the default level.
    set_up_logging(begin.log_level, origin=f"stage {begin.stage}", again=True)
    try:
        stage = await _work(partial(_load, begin), stream)
    except StartupError as error:
        stream.send_nowait(NotLoaded.of(error))
        await stream.receive()
        return
    stream.send_nowait(stage.describe())
    allocate = await stream.receive()
    assert isinstance(allocate, Allocate), "Allocate comes next"
    runner = await _work(partial(stage.connect, allocate), stream)
    await settle_interpreter()
    stream.send_nowait(Ready())
    await _Steps(stage, runner, stream).run()


async def _work(work: Callable[[], T], stream: MessageStream[Any]) -> T:
    """Do long work in a thread; end the process if the engine ends during the work."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.listen)
        result = await outcome.acapture(run_in_fresh_thread, work)
        nursery.cancel_scope.cancel()
    return result.unwrap()


def run_joining_stage(torchrun: Torchrun, log_level: int | str) -> NoReturn:
    """Run the stage of this process's rank: join the engine and end with it.

    Exit codes: 0 when the engine has closed the connection; 2 if there is no engine.
    """
    set_up_logging(log_level, origin=f"stage {torchrun.rank}")
    # Before the stage joins an engine, nothing has to be cleaned up: a signal may kill.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    if torchrun.is_on_one_machine:
        os.environ.update(LOOPBACK_ENVIRONMENT)

    async def join() -> None:
        try:
            sock = await join_engine(torchrun)
        except StagesNotMet as error:
            sys.stderr.write(f"trioserve: {error}\n")
            os._exit(2)
        # torchrun stops all its processes at once, while the server lets streams end.
        ignore_stops()
        await serve_peer(
            serve_stage,
            sock,
            receives=ToStage,
            farewell="the engine closed its connection, so this stage ends",
        )

    run_with_parent(join, parent=os.getppid())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A loaded stage.

    Args:
      listener: the socket where the first stage waits for the others; None elsewhere.
      held: a stack of contexts that end only with the process.
    """

    begin: LoadStage
    model: LoadedStage
    folder: Path
    num_blocks: int
    listener: socket.socket | None
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def is_last(self) -> bool:
        return self.begin.stage == self.begin.num_stages - 1

    def describe(self) -> StageLoaded:
        return StageLoaded(
            version=__version__,
            info=self.model.info,
            device_type=self.model.device.type,
            num_blocks=self.num_blocks,
            port=0 if self.listener is None else self.listener.getsockname()[1],
        )

    def connect(self, allocate: Allocate) -> ModelRunner:
        """Connect to the other stages and run the first steps with them; blocks."""
        from ..model import ModelRunner
        from ..model.stages import StageEnds, open_channels

        channels = self.held.enter_context(
            open_channels(
                self.model,
                host=self.begin.listens_on,
                port=allocate.port,
                listen_fd=None if self.listener is None else self.listener.detach(),
                timeout_seconds=self.begin.config.parallel.step_timeout,
            )
        )
        config = self.begin.config
        # Only the last stage has logits; the others need no plug-ins.
        names = config.model.logits_processor
        processors = load_logits_processors(names) if self.is_last else ()
        runner = ModelRunner(
            self.model,
            num_blocks=allocate.num_blocks,
            block_size=config.cache.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=allocate.max_model_len,
            logits_processors=processors,
            load_tokenizer=partial(
                load_grammar_tokenizer, self.folder, self.model.info
            ),
            ends=StageEnds(make_links(self.model, channels)),
        )
        runner.warm_up()
        return runner


def make_links(stage: LoadedStage, channels: Channels) -> StageLinks:
    from ..model.stages import StageLinks

    return StageLinks(stage, channels)


class _Steps:
    """Runs the plans of the engine."""

    def __init__(
        self, stage: _Stage, runner: ModelRunner, stream: MessageStream[Any]
    ) -> None:
        self._stage = stage
        self._stream = stream
        self._executor = make_local_executor(
            runner, stage.model.device.type, depth=stage.begin.num_stages
        )
        self._in_flight: deque[StepHandle[StepResult]] = deque()
        self._has_done = trio.Event()

    async def run(self) -> None:
        """Run plans until cancelled; raises the error of a step."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._executor.run)
            nursery.start_soon(beat, self._tell_of_life)
            nursery.start_soon(self._answer)
            while True:
                step = await self._stream.receive()
                assert isinstance(step, Step), "only steps come after Allocate"
                # A lambda, because the event is replaced by a new one each time.
                handle = self._executor.submit(step.plan, lambda: self._has_done.set())
                self._in_flight.append(handle)

    async def _answer(self) -> None:
        while True:
            await self._has_done.wait()
            self._has_done = trio.Event()
            while self._in_flight and self._in_flight[0].is_done:
                result = self._in_flight.popleft().take()
                if self._stage.is_last:
                    self._stream.send_nowait(Stepped(result=result))

    def _tell_of_life(self) -> None:
        self._stream.send_nowait(Beat())


@telling_shortage()
def _load(begin: LoadStage) -> _Stage:
    config = begin.config
    # First, so that a mistake is reported before torch is imported.
    source = find_source(config, "generate")
    from ..model import count_fitting_blocks

    config = replace(
        config, model=_place(config.model, begin.local_stage, begin.num_local_stages)
    )
    outline = _outline(source.weights.folder, config.model, begin)
    check_room(outline, config, num_sharing=begin.num_local_stages)
    weights = complete_weights(source.weights)
    model = _load_layers(weights, config.model, begin)
    num_blocks = count_fitting_blocks(
        model.info.kv_bytes_per_token,
        config.cache,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model.info.max_model_len,
        device=model.device,
        num_sharing=begin.num_local_stages,
    )
    listener = None
    if begin.stage == 0:
        listener = socket.create_server((begin.listens_on, 0))
    return _Stage(
        begin=begin,
        model=model,
        folder=weights.folder,
        num_blocks=num_blocks,
        listener=listener,
    )


def _outline(folder: Path, config: ModelConfig, begin: LoadStage) -> Outline | None:
    from ..model.stages import outline_plain_stage

    place = {"stage": begin.stage, "num_stages": begin.num_stages}
    outline = outline_plain_stage(folder, config, **place)
    if outline is not None:
        return outline
    # Imported here, because it needs transformers.
    from ..model.stages import outline_stage

    return outline_stage(folder, config, **place)


def _load_layers(
    weights: Weights, config: ModelConfig, begin: LoadStage
) -> LoadedStage:
    from ..model.stages import load_plain_stage

    place = {"stage": begin.stage, "num_stages": begin.num_stages}
    name = config.served_model_name or weights.name
    stage = load_plain_stage(weights.folder, config, name=name, **place)
    if stage is None:
        # Imported here, because it needs transformers.
        from ..model.stages import load_stage

        stage = load_stage(weights.folder, config, name=name, **place)
    return stage


def _place(config: ModelConfig, stage: int, num_stages: int) -> ModelConfig:
    """Give a stage its share of the GPUs and threads of its machine.

    Raises:
      InvalidConfig: there are fewer GPUs than stages.
    """
    import torch

    num_gpus = torch.cuda.device_count()
    if config.device == "cuda" or (config.device == "auto" and num_gpus):
        if num_gpus < num_stages:
            raise InvalidConfig(
                "pipeline_parallel_size",
                f"there are {num_gpus} GPUs for {num_stages} stages",
            )
        return replace(config, device=f"cuda:{stage}")
    num_threads = config.num_threads or max(1, torch.get_num_threads() // num_stages)
    return replace(config, num_threads=num_threads)


if __name__ == "__main__":
    run_as_child(serve_stage, receives=ToStage)
