"""The grammars that were built last, so that the same grammar is built once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
import logging
from threading import Lock
from typing import Final, TypeAlias

from llguidance import LLMatcher, LLTokenizer

from ..threads.deep_stack import run_with_deep_stack
from .explain import explain
from .failures import (
    GrammarError,
    LibraryFailed,
    check_panic,
    raising_library_failures,
)
from .limits import make_limits

logger = logging.getLogger(__name__)

_Reason: TypeAlias = GrammarError | LibraryFailed

# A built grammar takes about ten times its text: at most some 40 MB.
_MAX_TEXT_BYTES: Final = 4 * 2**20
_MAX_GRAMMARS: Final = 256


def make_tokenizer(
    file: str, *, vocab_size: int, eos_token_ids: Iterable[int]
) -> LLTokenizer:
    """Make llguidance's view of a tokenizer. Takes a third of a second for 49,152 tokens.

    Args:
      file: the contents of tokenizer.json.
      vocab_size: of the model; it may exceed the tokenizer's.

    Raises:
      ValueError: llguidance cannot read the tokenizer.
    """
    return LLTokenizer(file, n_vocab=vocab_size, eos_token=sorted(eos_token_ids))


class Matchers:
    """Builds matchers in one thread, and finds built ones in any thread.

    Args:
      load_tokenizer: is called once, with the first grammar.
    """

    def __init__(self, load_tokenizer: Callable[[], LLTokenizer]) -> None:
        self._load_tokenizer = load_tokenizer
        self._tokenizer: LLTokenizer | GrammarError | None = None
        # Matchers, and why the others could not be built.
        self._built: OrderedDict[str, LLMatcher | _Reason] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()

    def find(self, text: str) -> LLMatcher | None:
        """Return a matcher at the beginning of a grammar that was built before.

        Raises:
          GrammarError, LibraryFailed: it could not be built.
        """
        with self._lock:
            found = self._built.get(text)
            if found is None:
                return None
            self._built.move_to_end(text)
            if isinstance(found, (GrammarError, LibraryFailed)):
                # Otherwise each raise would make its traceback longer.
                raise found.with_traceback(None)
            return found.deep_copy()

    def build(self, text: str) -> None:
        """Build a grammar, so that `find` finds it, or the reason why it cannot be built.

        It is found at least until the next one is built.

        Raises:
          TrioserveError: of load_tokenizer.
        """
        with self._lock:
            if text in self._built:
                self._built.move_to_end(text)
                return
        try:
            with raising_library_failures():
                self._keep(text, self._build(text))
        except (GrammarError, LibraryFailed) as error:
            self._keep(text, error)

    def _build(self, text: str) -> LLMatcher:
        if self._tokenizer is None:
            try:
                self._tokenizer = self._load_tokenizer()
            except ValueError as error:
                logger.warning("no structured output with this tokenizer: %s", error)
                self._tokenizer = GrammarError(
                    "structured output is not possible with this model's tokenizer"
                )
        if isinstance(self._tokenizer, GrammarError):
            raise self._tokenizer.with_traceback(None)
        # As in compile.py.
        matcher = run_with_deep_stack(
            partial(LLMatcher, self._tokenizer, text, log_level=0, limits=make_limits())
        )
        if matcher.is_error():
            check_panic(matcher.get_error())
            raise GrammarError(explain(matcher.get_error()))
        return matcher

    def _keep(self, text: str, built: LLMatcher | _Reason) -> None:
        with self._lock:
            if self._built.pop(text, None) is not None:
                self._num_bytes -= len(text)
            self._built[text] = built
            self._num_bytes += len(text)
            # The new one stays, however long it is: sequences wait for it.
            while len(self._built) > 1 and self._is_full():
                oldest, _ = self._built.popitem(last=False)
                self._num_bytes -= len(oldest)

    def _is_full(self) -> bool:
        return self._num_bytes > _MAX_TEXT_BYTES or len(self._built) > _MAX_GRAMMARS
