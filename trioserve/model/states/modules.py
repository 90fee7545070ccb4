"""transformers' modules with states, which run on the flat tokens of a step.

transformers' modules read their states from a cache, and refuse batches in which sequences
follow each other. So the forward pass of each such module is replaced: it calls the
original for a few rows at a time, with a cache that holds the states of these rows
(step.py). A module is recognised by the methods of caches that its code calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
import inspect
import logging
from typing import Any, Protocol

from torch import Tensor, nn

from ..attention.probe import UnfitLayer
from .convolution import convolving_quickly
from .spec import StateSpec

# The names that caches have had as arguments.
_CACHE_ARGUMENTS = ("cache", "cache_params", "past_key_values")
_STATE_METHODS = frozenset({"update_conv_state", "update_recurrent_state"})
# The names since transformers 5.22; before, modules looked into the layers of a cache.
_READ_METHODS = frozenset({"get_conv_state", "get_recurrent_state"})
# Arguments that models pass to these modules and that do not change the result.
_INERT_ARGUMENTS = frozenset({"use_cache", "position_ids", "cache_position"})


class RunRows(Protocol):
    """Runs a module on some rows."""

    def __call__(self, hidden: Tensor, cache: StateCache) -> Tensor:
        """Run the module.

        Args:
          hidden: (num_rows, num_tokens, hidden_size)

        Returns:
          (num_rows, num_tokens, hidden_size)
        """


class StepStates(Protocol):
    """The states of one forward pass."""

    def run(self, name: str, hidden: Tensor, run_rows: RunRows) -> Tensor:
        """Run a module on the flat tokens of the step.

        Args:
          name: the module's.
          hidden: (1, num_tokens, hidden_size)

        Returns:
          (1, num_tokens, hidden_size)
        """


class StateCache(Protocol):
    """The states of some rows, as modules of transformers ask for them."""

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None: ...

    def get_recurrent_state(
        self, layer_idx: int, state_idx: int = 0
    ) -> Tensor | None: ...

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Keep the last inputs of a convolution; return them behind earlier ones."""

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0
    ) -> Tensor: ...

    def is_recording_past(self, layer_idx: int) -> bool: ...


class StatefulModules:
    """The link from a model's modules with states to the states of the present step.

    Args:
      model: its modules are changed.

    Attributes:
      has_any: the model has such modules.

    Raises:
      UnfitLayer: the modules of this version of transformers keep states in another way.
    """

    def __init__(self, model: nn.Module) -> None:
        self.has_any = False
        self._current: StepStates | None = None
        for name, module in model.named_modules():
            if _keeps_states(type(module)):
                self.has_any = True
                argument = _find_cache_argument(module)
                forward = partial(self._run, name, module.forward, argument)
                module.forward = forward
        if self.has_any:
            # It advises to install packages that would not be used here.
            logging.getLogger("transformers.integrations.hub_kernels").setLevel(
                logging.ERROR
            )

    @contextmanager
    def use(self, states: StepStates) -> Iterator[None]:
        """Send the modules to these states inside the block."""
        assert self._current is None, "a model runs one forward pass at a time"
        self._current = states
        try:
            yield
        finally:
            self._current = None

    @contextmanager
    def record(self) -> Iterator[StateRecorder]:
        """Record the states of the forward passes inside the block."""
        recorder = StateRecorder()
        with self.use(recorder):
            yield recorder

    def _run(
        self,
        name: str,
        forward: Callable[..., Tensor],
        argument: str,
        hidden_states: Tensor,
        **others: object,
    ) -> Tensor:
        for other, value in others.items():
            is_inert = other == argument or other in _INERT_ARGUMENTS
            if not is_inert and value is not None and value is not False:
                raise UnfitLayer(f"{name} gets {other} besides its states")
        assert self._current is not None, "states outside of use"

        def run_rows(hidden: Tensor, cache: StateCache) -> Tensor:
            with convolving_quickly(hidden):
                return forward(hidden, **{argument: cache})

        return self._current.run(name, hidden_states, run_rows)


class StateRecorder:
    """StepStates of one new sequence, which records what would be kept."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], dict[str, tuple[int, ...]]] = {}

    @property
    def states(self) -> tuple[StateSpec, ...]:
        """The states that modules have updated, in the order of the first calls."""
        return tuple(
            StateSpec(module_name=name, index=index, **shapes)
            for (name, index), shapes in self._found.items()
        )

    def run(self, name: str, hidden: Tensor, run_rows: RunRows) -> Tensor:
        return run_rows(hidden, _RecordingCache(name, self._found))


class _RecordingCache:
    """The StateCache of a new sequence; it keeps shapes alone."""

    def __init__(
        self, name: str, found: dict[tuple[str, int], dict[str, tuple[int, ...]]]
    ) -> None:
        self._name = name
        self._found = found

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def update_conv_state(
        self,
        conv_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        width = conv_kernel_size or conv_states.shape[-1]
        self._note(state_idx, "conv", (*conv_states.shape[1:-1], width))
        return conv_states

    def update_recurrent_state(
        self,
        recurrent_states: Tensor,
        layer_idx: int,
        state_idx: int = 0,
        **kwargs: Any,
    ) -> Tensor:
        self._note(state_idx, "recurrent", tuple(recurrent_states.shape[1:]))
        return recurrent_states

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def _note(self, index: int, kind: str, shape: tuple[int, ...]) -> None:
        self._found.setdefault((self._name, index), {})[kind] = shape


def _keeps_states(module_class: type[nn.Module]) -> bool:
    """Return whether the code of a class asks a cache to keep a state."""
    return any(
        not _STATE_METHODS.isdisjoint(inspect.unwrap(method).__code__.co_names)
        for owner in module_class.__mro__
        if owner.__module__.startswith("transformers.models.")
        for method in vars(owner).values()
        if inspect.isfunction(inspect.unwrap(method))
    )


def _find_cache_argument(module: nn.Module) -> str:
    """Return the name of the argument that holds the cache.

    Raises:
      UnfitLayer
    """
    forward = type(module).forward
    names = inspect.unwrap(forward).__code__.co_names
    for argument in inspect.signature(forward).parameters:
        if argument in _CACHE_ARGUMENTS and not _READ_METHODS.isdisjoint(names):
            return argument
    raise UnfitLayer(
        f"{type(module).__name__} keeps its states in a way that is not supported; "
        "transformers 5.22 or later may run it"
    )
