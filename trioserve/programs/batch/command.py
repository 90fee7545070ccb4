"""The exit code of a batch, and the signals that end it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
import signal
import sys

import trio

from ...errors import (
    EngineDied,
    EngineProcessDied,
    InvalidConfig,
    StartupError,
    find_first,
)
from .askers import Asker, RemoteAsker, ServerGone, open_remote
from .config import BatchConfig
from .lines import is_rereadable, is_same_file, open_lines
from .output import Output, WriteFailed, open_output
from .progress import BatchProgress, Waits
from .record import Done
from .sending import Sender, Slots
from .work import Work, survey

# Without --url the engine runs one half, and the next requests are rendered meanwhile.
_AHEAD = 2
_REMOTE_CONCURRENCY = 128

_SOME_FAILED, _NOT_FINISHED = 1, 3

_GO_ON = "the same command goes on from here"


def run_batch(config: BatchConfig, *, is_remote: bool) -> int:
    """Answer the lines of a file that have no answer yet; returns the exit code.

    0: each line has an answer. 1: some lines have failed. 3: the batch could not be
    finished. 128 + N: signal N has interrupted it.

    Args:
      is_remote: ask the server of `config.remote`, and start no engine.

    Raises:
      StartupError: the batch cannot begin.
    """
    input_path, output_path = _check_files(config)
    with open_output(output_path) as (output, done):
        total = _count_lines(input_path, done)
        if total is not None and total == done.num_lines:
            # No model is loaded for a batch that is complete.
            return _report_complete(done)
        batch = Batch(output, done, total)
        asking = open_remote(config.remote) if is_remote else open_engine(config)
        num_senders = _choose_concurrency(config, is_remote)
        return trio.run(batch.run, input_path, asking, num_senders)


def _report_complete(done: Done) -> int:
    failed = f", {done.num_failed} of them failed" if done.num_failed else ""
    sys.stderr.write(f"run-batch: all {done.num_lines} lines are done{failed}\n")
    return _SOME_FAILED if done.num_failed else 0


def _check_files(config: BatchConfig) -> tuple[str, str]:
    files = config.files
    for name in ("input_file", "output_file"):
        if not getattr(files, name):
            raise InvalidConfig(name, "is missing: run-batch -i FILE -o FILE")
    source, target = files.input_file, files.output_file
    assert source and target, "both were checked"
    if is_same_file(source, target):
        raise InvalidConfig("output_file", "is the input; name another file")
    # The mistakes of the input are told before the output is made. To open a pipe and close
    # it again would end its writer.
    if source != "-" and not Path(source).is_fifo():
        with open_lines(source):
            pass
    return source, target


def _count_lines(path: str, done: Done) -> int | None:
    if not is_rereadable(path):
        return None
    with open_lines(path) as reader:
        return survey(reader, done)


def _choose_concurrency(config: BatchConfig, is_remote: bool) -> int:
    if config.files.max_concurrency is not None:
        return config.files.max_concurrency
    if is_remote:
        return _REMOTE_CONCURRENCY
    return _AHEAD * config.engine.scheduler.max_num_seqs


@asynccontextmanager
async def open_engine(config: BatchConfig) -> AsyncIterator[Asker]:
    """Load the model, and answer requests in memory."""
    # Here, because a batch for another server needs none of it.
    from ...startup.local_app import open_local_client

    process = config.process.engine_process
    async with open_local_client(config.engine, process=process) as client:
        yield client


class Batch:
    """One run of the command.

    Args:
      total: the lines of the input; None if they are not known.
    """

    def __init__(self, output: Output, done: Done, total: int | None) -> None:
        self._output = output
        self._done = done
        self._total = total
        self._progress: BatchProgress | None = None
        self._signum: int | None = None

    async def run(
        self,
        path: str,
        asking: AbstractAsyncContextManager[Asker],
        num_senders: int,
    ) -> int:
        """Answer the lines of a file; returns the exit code.

        Raises:
          StartupError: the batch cannot begin, or the input is wrong.
        """
        wrong: StartupError | None = None
        reason = ""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch_signals, nursery.cancel_scope)
                async with asking as asker:
                    await self._answer(path, asker, num_senders)
                nursery.cancel_scope.cancel()
        except* StartupError as errors:
            wrong = find_first(errors)
        except* (ServerGone, WriteFailed) as errors:
            reason = str(find_first(errors))
        except* EngineDied as errors:
            reason = f"the engine failed: {_describe_cause(find_first(errors))}"
        if wrong is not None:
            raise wrong from None
        return self._end(reason)

    async def _answer(self, path: str, asker: Asker, num_senders: int) -> None:
        waits = Waits()
        self._progress = BatchProgress(self._done, self._total, waits)
        check = asker.check if isinstance(asker, RemoteAsker) else _do_nothing
        sender = Sender(asker, Slots(num_senders), check, waits)
        try:
            with open_lines(path) as reader:
                work = Work(reader, self._output, self._done, self._progress)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._progress.run)
                    await work.run(sender, num_senders)
                    nursery.cancel_scope.cancel()
        finally:
            self._progress.close()

    async def _watch_signals(
        self,
        scope: trio.CancelScope,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            self._signum = await anext(signals)
        # Behind the block a second signal ends the process at once.
        scope.cancel()

    def _end(self, reason: str) -> int:
        """Write the closing lines; returns the exit code."""
        if self._progress is not None:
            sys.stderr.write(self._progress.describe())
        if self._signum is not None:
            reason = reason or "interrupted"
        if reason:
            sys.stderr.write(f"trioserve: {reason}; {_GO_ON}\n")
        if self._signum is not None:
            return 128 + self._signum
        if reason:
            return _NOT_FINISHED
        assert self._progress is not None, "the batch has run"
        return _SOME_FAILED if self._progress.num_failed else 0


async def _do_nothing() -> None:
    """An engine of our own ends the batch when it fails."""
    await trio.lowlevel.checkpoint()


def _describe_cause(error: EngineDied) -> str:
    cause = error.__cause__
    return str(cause) if isinstance(cause, EngineProcessDied) else repr(cause or error)
