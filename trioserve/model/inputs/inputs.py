"""The vectors that prompts hold besides tokens.

Vectors that came with a prompt stay in its bytes, and each goes to the device once, with
its chunk. An image is encoded in the step that first reads one of its positions. So an
image is not encoded if the prefix cache has all its positions. A slot forgets its vectors
after the step that reads the last of them; its later steps cost as much as steps of
other slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from ...types.plan import SlotStart, StepPlan, StepRow
from ...types.prompt import KEY_BYTES, EmbeddedInput
from ..device.tensors import read_rows
from ..runtimes.deepstack import ADDED
from ..runtimes.loaded import LoadedModel
from ..runtimes.vision import ImageEncoder
from ..step.layout import StepInputs
from .lookup import TokenLookup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """An embedded input of a slot.

    Args:
      runs: (begin, end) positions, as in EmbeddedInput.
      read: (begin, end) of its vectors -> (end - begin, hidden_size)
    """

    runs: tuple[tuple[int, int], ...]
    read: Callable[[int, int], Tensor]

    @property
    def begin(self) -> int:
        return self.runs[0][0]

    @property
    def end(self) -> int:
        return self.runs[-1][1]

    def read_between(self, begin: int, end: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the vectors at positions [begin, end), with their first positions."""
        num_before = 0
        for run_begin, run_end in self.runs:
            first, last = max(begin, run_begin), min(end, run_end)
            if first < last:
                offset = num_before - run_begin
                yield first, self.read(first + offset, last + offset)
            num_before += run_end - run_begin


class _Image:
    """An image, which is encoded when the first of its vectors is read."""

    def __init__(self, item: EmbeddedInput, encoder: ImageEncoder) -> None:
        self._item = item
        self._encoder = encoder
        self._vectors: Tensor | None = None

    def read(self, begin: int, end: int) -> Tensor:
        """Return the vectors [begin, end), (end - begin, hidden_size)."""
        if self._vectors is None:
            self._vectors = self._encoder.encode(self._item)
        return self._vectors[begin:end]


class EmbeddedInputs:
    """The vectors that slots have not read yet."""

    def __init__(self, model: LoadedModel) -> None:
        self._embed_tokens: Any = model.model.get_input_embeddings()
        self._encoder = None if model.vision is None else ImageEncoder(model.model)
        self._num_added = 0 if model.deepstack is None else model.deepstack.num_layers
        self._lookup = TokenLookup.of(model)
        # In the order of positions, without the slots that have read all vectors.
        self._slots: dict[int, deque[_Source]] = {}
        # Sequences with the same image share its encoding.
        self._images: WeakValueDictionary[bytes, _Image] = WeakValueDictionary()

    def start(self, start: SlotStart) -> None:
        """Take the vectors of a sequence, in place of its slot's former ones."""
        self._slots.pop(start.slot, None)
        if start.embedded:
            self._slots[start.slot] = deque(
                _Source(runs=item.runs, read=self._make_reader(item))
                for item in start.embedded
            )

    def drop(self, slots: Iterable[int]) -> None:
        """Forget the unread vectors of slots whose sequences have ended."""
        for slot in slots:
            self._slots.pop(slot, None)

    def embed(self, plan: StepPlan, inputs: StepInputs) -> dict[str, Tensor]:
        """Return the vectors that the layers read.

        Returns:
          The arguments of the model; none if the step has tokens alone:
            inputs_embeds  (1, num_tokens, hidden_size)
            ADDED          (num_layers, num_tokens, hidden_size), if images have vectors
                           that are added behind the first layers (deepstack.py)
          and what TokenLookup adds, if each layer looks up the tokens again
        """
        if not self._slots:
            return {}
        parts = [
            part
            for row, first in zip(plan.rows, inputs.first_tokens)
            for part in self._read(row, first)
        ]
        if not parts:
            return {}
        if self._lookup is not None:
            self._lookup.pad(inputs, parts)
        embeds: Tensor = self._embed_tokens(inputs.input_ids)
        num_tokens, hidden_size = embeds.shape[1:]
        added = embeds.new_zeros((self._num_added, num_tokens, hidden_size))
        for first, vectors in parts:
            place = slice(first, first + len(vectors))
            embeds[0, place].copy_(vectors[:, :hidden_size], non_blocking=True)
            # Vectors of clients have none of these.
            for index, more in enumerate(vectors.split(hidden_size, dim=1)[1:]):
                added[index, place] = more
        return {
            "inputs_embeds": embeds,
            **({ADDED: added} if len(added) else {}),
            **({} if self._lookup is None else self._lookup.find(inputs)),
        }

    def _make_reader(self, item: EmbeddedInput) -> Callable[[int, int], Tensor]:
        if item.kind == "embeds":
            return partial(read_rows, item.tensors["embeds"])
        assert self._encoder is not None, "only models with an encoder get images"
        key = item.keys[:KEY_BYTES]
        image = self._images.get(key)
        if image is None:
            image = self._images[key] = _Image(item, self._encoder)
        return image.read

    def _read(self, row: StepRow, first: int) -> Iterator[tuple[int, Tensor]]:
        """Yield a row's vectors, with the flat tokens at which they begin.

        Args:
          first: the row's first flat token.
        """
        sources = self._slots.get(row.slot)
        if sources is None:
            return
        end = row.end
        for source in sources:
            if source.begin >= end:
                break
            for position, vectors in source.read_between(row.start, end):
                yield first + position - row.start, vectors
        while sources and sources[0].end <= end:
            sources.popleft()
        if not sources:
            del self._slots[row.slot]
