"""The process of a stage: `python -m trioserve.startup.stage_process DESCRIPTOR PARENT`.

In executor/pipeline/, stages.py starts it, and pipeline.py drives it by messages (messages.py).
It loads some layers of a model and steps them. Under torchrun it is `trioserve serve` with a
rank other than 0, which calls run_joining_stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
import os
from pathlib import Path
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import outcome
import trio

from ..config import EngineConfig, ModelConfig
from ..errors import InvalidAdapter, InvalidConfig, StagesNotMet, StartupError
from ..executor import StepHandle, make_local_executor
from ..executor.pipeline.messages import (
    AdapterLoaded,
    AdapterNotLoaded,
    Allocate,
    DropAdapter,
    Load,
    LoadAdapter,
    Prepare,
    Prepared,
    Ready,
    StageLoaded,
    Step,
    Stepped,
    ToStage,
)
from ..executor.pipeline.rendezvous import join_engine
from ..executor.pipeline.torchrun import LOOPBACK_ENVIRONMENT, Torchrun
from ..processes import (
    Alive,
    MessageStream,
    beat,
    ignore_stops,
    run_as_child,
    run_with_parent,
    serve_peer,
)
from ..processes.interpreter import settle_interpreter
from ..processes.threads.fresh_thread import run_in_fresh_thread
from ..processes.threads.heap import trim_heap
from ..types.adapter import AdapterSource
from ..types.not_loaded import NotLoaded
from ..types.output import StepResult
from ..types.plan import StepPlan
from ..types.version import __version__
from ..types.windows import CacheBlocks
from ..weights import complete_weights, read_gguf_adapter
from .limits import (
    check_room,
    count_step_tokens,
    limit_sequences,
    measure_step_bytes,
    set_max_num_seqs,
)
from .log_lines import set_up_logging
from .plugins import load_logits_processors
from .shortage import telling_shortage
from .source import Source, find_source

if TYPE_CHECKING:
    import torch

    from ..model.runner import ModelRunner
    from ..model.stages.links import Channels, StageLinks
    from ..model.stages.stage import LoadedStage

T = TypeVar("T")


async def serve_stage(stream: MessageStream[Any]) -> None:
    """Load the layers that the engine names, and run its plans."""
    prepare = await stream.receive()
    assert isinstance(prepare, Prepare), "Prepare comes first"
    # A stage that torchrun has started has logged before, with the default level.
    set_up_logging(prepare.log_level, origin=prepare.place.name, again=True)
    try:
        prepared = await _work(partial(_prepare, prepare), stream)
        stream.send_nowait(prepared.describe())
        load = await stream.receive()
        assert isinstance(load, Load), "Load comes next"
        stage = await _work(partial(_load, prepared, load), stream)
    except StartupError as error:
        stream.send_nowait(NotLoaded.of(error))
        await stream.receive()
        return
    stream.send_nowait(stage.describe())
    allocate = await stream.receive()
    assert isinstance(allocate, Allocate), "Allocate comes next"
    runner = await _work(partial(stage.make_runner, allocate), stream)
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
    set_up_logging(log_level, origin=f"rank {torchrun.rank}")
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
class _Prepared:
    """A process that has found its model and its device.

    Args:
      config: with this process's share of the machine.
      listener: the socket where the first process waits for the others; None elsewhere.
    """

    begin: Prepare
    config: EngineConfig
    source: Source
    device: torch.device
    listener: socket.socket | None

    def describe(self) -> Prepared:
        return Prepared(
            version=__version__,
            device_type=self.device.type,
            port=0 if self.listener is None else self.listener.getsockname()[1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A loaded stage, or a shard of it.

    Args:
      config: of this process.
      held: a stack of contexts that end only with the process.
    """

    config: EngineConfig
    model: LoadedStage
    folder: Path
    blocks: CacheBlocks
    channels: Channels
    held: ExitStack

    def describe(self) -> StageLoaded:
        return StageLoaded(
            info=self.model.info,
            blocks=self.blocks,
            max_num_seqs=self.config.scheduler.max_num_seqs,
        )

    def make_runner(self, allocate: Allocate) -> ModelRunner:
        """Allocate the cache, and run the first steps with the others; blocks."""
        from ..model.ends.stage import StageEnds
        from ..model.runner import ModelRunner
        from ..render.text.loading import load_grammar_tokenizer

        config = set_max_num_seqs(self.config, allocate.max_num_seqs)
        place = self.model.place
        # Only one process samples; the others need no plug-ins.
        names = config.model.logits_processor
        processors = load_logits_processors(names) if place.samples else ()
        ends = None
        if place.num_stages > 1:
            ends = StageEnds(make_links(self.model, self.channels))
        runner = ModelRunner(
            self.model,
            num_blocks=allocate.blocks.num_blocks,
            num_window_blocks=allocate.blocks.num_window_blocks,
            block_size=config.cache.block_size,
            max_num_seqs=config.scheduler.max_num_seqs,
            num_checkpoints=config.cache.count_checkpoints(
                config.scheduler.max_num_seqs
            ),
            max_model_len=allocate.max_model_len,
            logits_processors=processors,
            load_tokenizer=partial(
                load_grammar_tokenizer, self.folder, self.model.info
            ),
            ends=ends,
            read_gguf_adapter=read_gguf_adapter,
        )
        runner.warm_up()
        return runner


def make_links(stage: LoadedStage, channels: Channels) -> StageLinks:
    from ..model.stages.links import StageLinks

    return StageLinks(stage, channels)


class _Steps:
    """Runs the plans of the engine."""

    def __init__(
        self, stage: _Stage, runner: ModelRunner, stream: MessageStream[Any]
    ) -> None:
        self._stage = stage
        self._stream = stream
        self._executor = make_local_executor(
            runner, stage.model.device.type, depth=stage.model.place.num_stages
        )
        self._in_flight: deque[StepHandle[StepResult]] = deque()
        self._has_done = trio.Event()
        # Whether an adapter is loaded, or still being read, by number.
        self._adapters: dict[int, bool] = {}

    async def run(self) -> None:
        """Run plans until cancelled; raises the error of a step."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._executor.run)
            nursery.start_soon(beat, self._tell_of_life)
            nursery.start_soon(self._answer)
            while True:
                match await self._stream.receive():
                    case Step(plan=plan):
                        self._submit(plan)
                    case LoadAdapter(source=source):
                        nursery.start_soon(self._load_adapter, source)
                    case DropAdapter(number=number):
                        self._drop_adapter(number)
                    case message:
                        raise AssertionError(f"{message} came after Allocate")

    def _submit(self, plan: StepPlan) -> None:
        # A lambda, because the event is replaced by a new one each time.
        handle = self._executor.submit(plan, lambda: self._has_done.set())
        self._in_flight.append(handle)

    async def _load_adapter(self, source: AdapterSource) -> None:
        self._adapters[source.number] = False
        try:
            facts = await self._executor.load_adapter(source)
        except InvalidAdapter as error:
            self._adapters.pop(source.number, None)
            self._stream.send_nowait(
                AdapterNotLoaded(number=source.number, reason=error.reason)
            )
            return
        if source.number in self._adapters:
            self._adapters[source.number] = True
            self._stream.send_nowait(AdapterLoaded(facts=facts))
        else:
            self._executor.drop_adapter(source.number)

    def _drop_adapter(self, number: int) -> None:
        # One that is still being read is dropped afterwards.
        if self._adapters.pop(number, False):
            self._executor.drop_adapter(number)

    async def _answer(self) -> None:
        while True:
            await self._has_done.wait()
            self._has_done = trio.Event()
            while self._in_flight and self._in_flight[0].is_done:
                result = self._in_flight.popleft().take()
                if self._stage.model.place.samples:
                    self._stream.send_nowait(Stepped(result=result))

    def _tell_of_life(self) -> None:
        self._stream.send_nowait(Alive())


@telling_shortage()
def _prepare(begin: Prepare) -> _Prepared:
    config = begin.config
    # First, so that a mistake is reported before torch is imported.
    source = find_source(config, "generate")
    from ..model.device.choose import resolve_device

    model = _place(config.model, begin.local_rank, begin.num_local_ranks)
    device = resolve_device(model.device)
    listener = None
    if begin.place.rank == 0:
        listener = socket.create_server((begin.listens_on, 0))
    return _Prepared(
        begin=begin,
        config=replace(config, model=model),
        source=source,
        device=device,
        listener=listener,
    )


@telling_shortage()
def _load(prepared: _Prepared, load: Load) -> _Stage:
    from ..model.attention.cache_memory import count_fitting_blocks
    from ..model.open import load_part, outline
    from ..model.stages.distributed import open_channels

    begin, config = prepared.begin, prepared.config
    place = begin.place
    weights = prepared.source.weights
    check_room(
        outline(weights.folder, config.model, begin.place),
        config,
        num_sharing=begin.num_local_ranks,
    )
    weights = complete_weights(weights)
    listener, held = prepared.listener, ExitStack()
    channels = held.enter_context(
        open_channels(
            begin.place,
            prepared.device,
            host=begin.listens_on,
            port=load.port,
            listen_fd=None if listener is None else listener.detach(),
            timeout_seconds=config.parallel.step_timeout,
        )
    )
    model = load_part(
        weights.folder,
        config.model,
        name=weights.name,
        place=begin.place,
        group=channels.shards,
    )
    trim_heap()
    config = limit_sequences(config, model, num_sharing=begin.num_local_ranks)
    blocks = count_fitting_blocks(
        model.info.kv_bytes_per_token,
        config.cache,
        windows=model.info.windows,
        max_chunk=count_step_tokens(config.scheduler, model.device.type),
        state_bytes=model.info.state_bytes,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=model.info.max_model_len,
        wanted_len=config.model.max_model_len,
        device=model.device,
        num_sharing=begin.num_local_ranks,
        # A stage of a pipeline alone has no input, and cannot try a step.
        step_bytes=measure_step_bytes(config, model) if place.num_stages == 1 else 0,
    )
    return _Stage(
        config=config,
        model=model,
        folder=weights.folder,
        blocks=blocks,
        channels=channels,
        held=held,
    )


def _place(config: ModelConfig, rank: int, num_ranks: int) -> ModelConfig:
    """Give a process its share of the GPUs and threads of its machine.

    Raises:
      InvalidConfig: there are fewer GPUs than processes.
    """
    import torch

    num_gpus = torch.cuda.device_count()
    if config.device == "cuda" or (config.device == "auto" and num_gpus):
        if num_gpus < num_ranks:
            raise InvalidConfig(
                "device",
                f"there are {num_gpus} GPUs for {num_ranks} processes",
            )
        return replace(config, device=f"cuda:{rank}")
    num_threads = config.num_threads or max(1, torch.get_num_threads() // num_ranks)
    return replace(config, num_threads=num_threads)


if __name__ == "__main__":
    run_as_child(serve_stage, receives=ToStage)
