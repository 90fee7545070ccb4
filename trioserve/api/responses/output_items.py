"""The items of a response's output, while they are being written.

An item is opened by its first piece and closed by a piece of another item, or by the end
of the answer. Each step emits the events that a stream shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..shared.logprobs import TokenLogprob
from .answers import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from .events import (
    ArgumentsAdded,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    OutputItemAdded,
    OutputItemDone,
    ReasoningAdded,
    ReasoningDone,
    ResponseEvent,
    TextAdded,
    TextDone,
)

# Takes the type of the next event, and its fields besides the number.
Emit = Callable[..., None]

# Ids begin with the kind of the item, as OpenAI's do.
ID_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}


class OpenItem(ABC):
    """An item that grows.

    Args:
      id: the id of the item.
      output_index: its place in the output.
    """

    def __init__(self, id: str, output_index: int, emit: Emit) -> None:
        self._id = id
        self._output_index = output_index
        self._emit_event = emit
        self._pieces: list[str] = []

    @abstractmethod
    def begin(self) -> None:
        """Emit the events of an item without content."""

    @abstractmethod
    def end(self) -> None:
        """Emit the events behind the last piece, except the whole item's event."""

    @abstractmethod
    def to_item(self, status: ItemStatus) -> OutputItem:
        """Return the item as it is now."""

    def close(self, status: ItemStatus) -> OutputItem:
        """Emit the last events of the item, and return it."""
        self.end()
        item = self.to_item(status)
        self._emit_event(OutputItemDone, output_index=self._output_index, item=item)
        return item

    def _announce(self, item: OutputItem) -> None:
        self._emit_event(OutputItemAdded, output_index=self._output_index, item=item)

    def _emit(self, kind: type[ResponseEvent], **fields: Any) -> None:
        self._emit_event(
            kind, item_id=self._id, output_index=self._output_index, **fields
        )

    @property
    def _text(self) -> str:
        return "".join(self._pieces)


class OpenMessage(OpenItem):
    """A message that grows."""

    def __init__(self, id: str, output_index: int, emit: Emit) -> None:
        super().__init__(id, output_index, emit)
        self._logprobs: list[TokenLogprob] = []

    def begin(self) -> None:
        self._announce(OutputMessage(id=self._id, status="in_progress"))
        self._emit(ContentPartAdded, part=OutputText(text=""))

    def add(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        self._pieces.append(text)
        self._logprobs += logprobs
        self._emit(TextAdded, delta=text, logprobs=logprobs)

    def end(self) -> None:
        part = self._part
        self._emit(TextDone, text=part.text, logprobs=part.logprobs)
        self._emit(ContentPartDone, part=part)

    def to_item(self, status: ItemStatus) -> OutputMessage:
        return OutputMessage(id=self._id, status=status, content=(self._part,))

    @property
    def _part(self) -> OutputText:
        return OutputText(text=self._text, logprobs=tuple(self._logprobs))


class OpenReasoning(OpenItem):
    """A reasoning that grows."""

    def begin(self) -> None:
        self._announce(OutputReasoning(id=self._id, status="in_progress"))
        self._emit(ContentPartAdded, part=ReasoningText(text=""))

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._emit(ReasoningAdded, delta=text)

    def end(self) -> None:
        self._emit(ReasoningDone, text=self._text)
        self._emit(ContentPartDone, part=ReasoningText(text=self._text))

    def to_item(self, status: ItemStatus) -> OutputReasoning:
        content = (ReasoningText(text=self._text),)
        return OutputReasoning(id=self._id, status=status, content=content)


class OpenCall(OpenItem):
    """A call of a function that grows.

    A model may break off the arguments and go on with text. Then the call is incomplete,
    although the answer is not.

    Args:
      call_id, name, namespace: of the call.
    """

    def __init__(
        self,
        id: str,
        output_index: int,
        emit: Emit,
        *,
        call_id: str,
        name: str,
        namespace: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        super().__init__(id, output_index, emit)
        self._call_id = call_id
        self._name = name
        self._namespace = namespace

    def begin(self) -> None:
        self._announce(self.to_item("in_progress"))

    def add(self, arguments: str) -> None:
        self._pieces.append(arguments)
        self._emit(ArgumentsAdded, delta=arguments)

    def end(self) -> None:
        self._emit(ArgumentsDone, name=self._name, arguments=self._text)

    def to_item(self, status: ItemStatus) -> OutputCall:
        is_broken = status == "completed" and not _is_json(self._text)
        return OutputCall(
            id=self._id,
            status="incomplete" if is_broken else status,
            call_id=self._call_id,
            name=self._name,
            namespace=self._namespace,
            arguments=self._text,
        )


def _is_json(arguments: str) -> bool:
    """Return whether arguments are JSON; a call without any has an empty text."""
    try:
        msgspec.json.decode(arguments or "{}", type=msgspec.Raw)
    except ValueError:
        return False
    return True
