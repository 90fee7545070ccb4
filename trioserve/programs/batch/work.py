"""One batch: a reader, many senders and one writer in a nursery.

The reader hands out a line when a sender is free, so the input waits in the file. The
writer takes all answers that have come, writes them in one call, and counts them then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from ...errors import InvalidConfig
from .lines import InputLine, LineReader
from .output import Output
from .progress import BatchProgress
from .record import Done, ErrorPart, OutputLine, name_line
from .request import BatchRequest, LineRefused, read_request
from .sending import Sender

# One call writes so many lines at most.
_WRITE_LINES = 256


class Work:
    """The state shared by the tasks of a batch.

    Args:
      name: of the output, for errors.
    """

    def __init__(
        self, reader: LineReader, output: Output, done: Done, progress: BatchProgress
    ) -> None:
        self._reader = reader
        self._output = output
        self._done = done
        self._progress = progress
        self._custom_ids: set[str] = set()
        # A thread each, because both may wait for a disk or a pipe.
        self._reading = trio.CapacityLimiter(1)
        self._writing = trio.CapacityLimiter(1)

    async def run(self, sender: Sender, num_senders: int) -> None:
        """Answer all lines that are not done.

        Raises:
          InvalidConfig: the input cannot be read, or the output belongs to another one.
          WriteFailed
          ServerGone
        """
        to_writer, answers = trio.open_memory_channel[OutputLine](_WRITE_LINES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_all, answers)
            async with to_writer, trio.open_nursery() as senders:
                to_senders, requests = trio.open_memory_channel[BatchRequest](0)
                for _ in range(num_senders):
                    senders.start_soon(_send_all, sender, requests, to_writer)
                async with to_senders:
                    await self._read_all(to_senders, to_writer)
        await trio.to_thread.run_sync(self._output.close, limiter=self._writing)

    async def _read_all(
        self,
        to_senders: trio.MemorySendChannel[BatchRequest],
        to_writer: trio.MemorySendChannel[OutputLine],
    ) -> None:
        while lines := await self._read():
            for line in lines:
                check_same(self._done, line)
                try:
                    request = self._take(line)
                except LineRefused as error:
                    if not self._done.has(line):
                        await to_writer.send(_refuse(line, error))
                    continue
                if not self._done.has(line):
                    await to_senders.send(request)

    async def _read(self) -> Sequence[InputLine]:
        # Nothing is lost with the thread if the user interrupts it.
        return await trio.to_thread.run_sync(
            self._reader.read, limiter=self._reading, abandon_on_cancel=True
        )

    def _take(self, line: InputLine) -> BatchRequest:
        """Take a line apart.

        Raises:
          LineRefused: the line is not a request, or has the custom_id of an earlier one.
        """
        request = read_request(line)
        if request.custom_id in self._custom_ids:
            raise LineRefused(
                "an earlier line has the same custom_id", request.custom_id
            )
        self._custom_ids.add(request.custom_id)
        return request

    async def _write_all(self, answers: trio.MemoryReceiveChannel[OutputLine]) -> None:
        async with answers:
            async for first in answers:
                lines = [first]
                while len(lines) < _WRITE_LINES:
                    try:
                        lines.append(answers.receive_nowait())
                    except (trio.WouldBlock, trio.EndOfChannel):
                        break
                await trio.to_thread.run_sync(
                    partial(self._write, lines), limiter=self._writing
                )
                for line in lines:
                    self._progress.take(line)

    def _write(self, lines: Sequence[OutputLine]) -> None:
        self._output.write(b"".join(line.encode() for line in lines))


async def _send_all(
    sender: Sender,
    requests: trio.MemoryReceiveChannel[BatchRequest],
    to_writer: trio.MemorySendChannel[OutputLine],
) -> None:
    async for request in requests:
        await to_writer.send(await sender.send(request))


def _refuse(line: InputLine, error: LineRefused) -> OutputLine:
    return OutputLine(
        id=name_line(line),
        custom_id=error.custom_id,
        response=None,
        error=ErrorPart(code="invalid_line", message=f"line {line.number}: {error}"),
    )


def check_same(done: Done, line: InputLine) -> None:
    """Check that the answer of a line, if it has one, belongs to this line.

    Raises:
      InvalidConfig
    """
    if done.differs(line):
        raise InvalidConfig(
            "output_file",
            f"belongs to another input, whose line {line.number} differs; name another "
            "file",
        )


def survey(reader: LineReader, done: Done) -> int:
    """Read the whole input, and return the number of its lines.

    Raises:
      InvalidConfig: the output belongs to another input, or the input cannot be read.
    """
    count = last = 0
    while lines := reader.read():
        for line in lines:
            check_same(done, line)
        count += len(lines)
        last = lines[-1].number
    if done.last_number > last:
        raise InvalidConfig(
            "output_file",
            "belongs to another input, with more lines; name another file",
        )
    return count
