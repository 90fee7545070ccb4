"""The layers of a model by transformers' modules, with the attention of a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from torch import Tensor

from ...attention.backend import PagedBackend, PagedModel
from ...attention.bridge import StepAttention
from ...attention.choose import choose_paged_backend
from ...states.modules import StepStates
from ...states.pool import StateCopies, StatePool
from ...states.step import PooledStates
from ...step.layout import StepInputs
from ...step.plain import PlainRows
from ...step.slots import SlotTables
from ..deepstack import adding
from ..loaded import LoadedModel
from .adapters import ModuleAdapters


class ModuleLayers:
    """The layers, with a KV cache and the states of all slots.

    Args:
      make_attention: makes the backend; by default the model's choice among all.
    """

    def __init__(
        self,
        model: LoadedModel,
        tables: SlotTables,
        num_blocks: int,
        make_attention: Callable[[PagedModel, SlotTables], PagedBackend] | None = None,
        *,
        num_window_blocks: int | None = None,
    ) -> None:
        self._model = model
        paged_model = PagedModel(
            layers=model.layers,
            num_blocks=num_blocks,
            num_window_blocks=num_window_blocks,
            block_size=tables.block_size,
            dtype=model.dtype,
            kv_dtype=model.kv_dtype,
            device=model.device,
        )
        make_attention = make_attention or partial(
            choose_paged_backend, wanted=model.attention_backend
        )
        self._attention = make_attention(paged_model, tables)
        self._pool = StatePool(
            model.states,
            num_slots=len(tables.block_ids),
            num_checkpoints=tables.num_checkpoints,
            dtype=model.dtype,
            device=model.device,
        )
        self.order = self._attention.order
        self.copies: StateCopies | None = self._pool.copies if model.states else None
        self.adapters = ModuleAdapters(model)

    def prepare(self, max_num_seqs: int, *, chooses: bool) -> None:
        """Do nothing: modules run as they are."""

    def begin(self, inputs: StepInputs) -> _ModuleStep:
        return _ModuleStep(
            self._model,
            inputs,
            self._attention.begin(inputs),
            PooledStates(self._pool, inputs) if self._model.states else None,
            partial(self.adapters.using, inputs),
        )


class _ModuleStep:
    def __init__(
        self,
        model: LoadedModel,
        inputs: StepInputs,
        attention: StepAttention,
        states: StepStates | None,
        adapting: Callable[[Sequence[int]], AbstractContextManager[None]],
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._attention = attention
        self._states = states
        self._adapting = adapting

    def compute(
        self,
        arguments: dict[str, Tensor],
        tokens: Sequence[int],
        plain: PlainRows | None = None,
    ) -> Tensor:
        model, inputs = self._model, self._inputs
        arguments = {"position_ids": inputs.position_ids, **arguments}
        if "inputs_embeds" not in arguments:
            arguments["input_ids"] = inputs.input_ids
        using = model.using(self._attention, self._states)
        with adding(model.deepstack, arguments), using, self._adapting(tokens):
            return model.compute(arguments, tokens)
