"""Messages as the renderer reads them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload


class LazyMappings(Sequence[dict[str, object]]):
    """A sequence of plain mappings, one for each message.

    Each mapping is made when it is read. The renderer reads it in the thread of a worker,
    because there may be thousands of messages and megabytes of payloads.
    """

    @property
    @abstractmethod
    def num_characters(self) -> int:
        """The approximate length of their text, without images and tensors."""

    @abstractmethod
    def count_parts(self) -> Iterator[int]:
        """Count the texts, images and the like that num_characters looks at, in pieces."""

    def has_more_parts(self, limit: int) -> bool:
        """Return whether there are more parts than a number, without a look at the rest."""
        num_parts = 0
        for number in self.count_parts():
            num_parts += number
            if num_parts > limit:
                return True
        return False

    @abstractmethod
    def make(self, index: int) -> dict[str, object]:
        """Make a mapping; the index is not negative.

        Raises:
          RequestError: the message is wrong; `param` begins with messages[index].
        """

    @overload
    def __getitem__(self, index: int) -> dict[str, object]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, object]]: ...

    def __getitem__(
        self, index: int | slice
    ) -> dict[str, object] | Sequence[dict[str, object]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.make(range(len(self))[index])


def count_parts(content: str | tuple[object, ...] | None) -> int:
    """Return the number of parts of one message; a text is one."""
    return len(content) if isinstance(content, tuple) else 1
