"""The layers of a decoder, with a KV cache, ready to run steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import ctypes
from itertools import accumulate
import weakref

import torch
from torch import Tensor, nn

from ....kernels.library import Library
from ....kernels.structs import DecoderSpec, StepSpec
from ....types.plan import StepRow
from ...states.pool import StateCopies
from ...step.layout import StepInputs
from ...step.plain import PlainRows
from ...step.slots import SlotTables
from .adapters import NativeAdapters
from .packer import NUMBERS
from .sums import NativeSums


class NativeLayers:
    """The layers of a NativeDecoder, with a KV cache of their own.

    Args:
      pool, handle: of the library.
      look_up, plane_rotary: as in DecoderParts.
      dtype: of the hidden states that the next stage of a pipeline reads.
      sums: over the processes that share the layers; None if they are whole.
      states: of the layers that have them, (num_slots + num_checkpoints, size) each.
      held: the objects that the handle points to.
    """

    def __init__(
        self,
        library: Library,
        pool: int,
        handle: int,
        spec: DecoderSpec,
        tables: SlotTables,
        embedding_scale: float,
        *,
        adapters: NativeAdapters,
        look_up: Callable[[Tensor, Tensor], Tensor] | None,
        plane_rotary: nn.Module | None,
        dtype: torch.dtype,
        sums: NativeSums | None,
        states: Sequence[Tensor],
        held: object,
    ) -> None:
        self._library = library
        self._pool = pool
        self._handle = handle
        self._vocab_size = spec.vocab_size
        self._has_head = spec.final_norm is not None
        self._dtype = dtype
        self._sums = sums
        self._look_up = look_up
        self._plane_rotary = plane_rotary
        self._tables = tables
        self._embedding_scale = embedding_scale
        self._held = held
        copies = StateCopies(states, first=len(tables.block_ids))
        self.copies = copies if states else None
        self.adapters = adapters
        weakref.finalize(self, library.close_decoder, handle)

    def order(self, rows: Sequence[StepRow]) -> list[int]:
        """Keep the order of the plan, but put rows of the same adapter side by side."""
        numbers = self._tables.find_adapters(rows)
        places = range(len(rows))
        return sorted(places, key=numbers.__getitem__) if numbers else [*places]

    reads_tokens = False

    def prepare(
        self,
        max_num_seqs: int,
        *,
        embed: Callable[[Tensor], Tensor] | None = None,
        chooses: bool = False,
    ) -> None:
        """Do nothing: a CPU needs no preparation."""

    def replay(
        self,
        inputs: StepInputs,
        tokens: Sequence[int],
        vectors: Tensor | None = None,
        plain: PlainRows | None = None,
    ) -> None:
        """Do nothing: a CPU has no graphs."""

    def run(
        self,
        vectors: Tensor,
        inputs: StepInputs,
        tokens: Sequence[int],
        positions: Tensor,
        deepstack: Tensor | None = None,
    ) -> Tensor:
        """Run one step; see LayersOnKernels (on_kernels.py)."""
        hidden = vectors.to(torch.float32) * self._embedding_scale
        ends = accumulate(row.num_tokens for row in inputs.rows)
        rows = torch.tensor(
            [
                (
                    *(end - row.num_tokens, row.num_tokens, row.start, row.slot),
                    row.num_tokens - (row.slot in inputs.held),
                )
                for row, end in zip(inputs.rows, ends)
            ],
            dtype=torch.int32,
        )
        wanted = torch.tensor(tokens, dtype=torch.int32)
        logits = torch.empty(len(tokens), self._vocab_size)
        cos, sin = self._find_angles(hidden, positions)
        lookups = None
        if self._look_up is not None:
            lookups = self._look_up(inputs.input_ids, vectors)
        key_ends = inputs.key_ends
        runs = self.adapters.list_runs(inputs)
        if deepstack is not None:
            deepstack = deepstack.to(torch.float32).contiguous()
        window_ids = self._tables.window_ids
        step = StepSpec(
            hidden=hidden.data_ptr(),
            blocks=self._tables.block_ids.data_ptr(),
            window_blocks=None if window_ids is None else window_ids.data_ptr(),
            rows=rows.data_ptr(),
            wanted=wanted.data_ptr(),
            logits=logits.data_ptr(),
            lookups=None if lookups is None else lookups.data_ptr(),
            cos=None if cos is None else cos.data_ptr(),
            sin=None if sin is None else sin.data_ptr(),
            deepstack=None if deepstack is None else deepstack.data_ptr(),
            key_ends=None if key_ends is None else key_ends.data_ptr(),
            adapters=ctypes.addressof(runs),
            num_tokens=len(hidden),
            num_rows=len(rows),
            num_wanted=len(tokens),
            max_blocks=self._tables.block_ids.shape[1],
            num_deepstack=0 if deepstack is None else len(deepstack),
            num_adapters=len(runs),
            adapter_format=NUMBERS[self.adapters.dtype],
        )
        self._library.run_decoder(self._pool, self._handle, ctypes.byref(step))
        if self._sums is not None:
            self._sums.check()
        return logits if self._has_head else hidden.to(self._dtype)

    def _find_angles(
        self, hidden: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Return the rotary angles of tokens that are not at their places."""
        if positions.dim() == 2:
            return None, None
        assert self._plane_rotary is not None, "the model places images in a plane"
        cos, sin = self._plane_rotary(hidden[None], positions)
        return cos[0].contiguous(), sin[0].contiguous()
