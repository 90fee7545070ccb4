"""The grammars that were built last, so that the same grammar is built once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
import logging
from threading import Lock
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from ..processes.threads.deep_stack import run_with_deep_stack
from .failures import (
    GrammarError,
    LibraryFailed,
    check_panic,
    explain,
    raising_library_failures,
)
from .limits import make_limits

logger = logging.getLogger(__name__)

# llguidance does not say how much memory a matcher takes, so it is estimated from above.
# A built grammar takes about ten times its text.
_FIXED_BYTES: Final = 2**19
_BYTES_A_CHARACTER: Final = 10
# Copies of a matcher share its lexer, whose states are never freed. A thread that did nothing
# but add states filled 100 to 440 MB in a second; most masks add none.
_BYTES_A_SECOND: Final = 2**28

# Of all grammars that are kept, while sequences use some of them, and while none does.
MAX_BYTES: Final = 2**28
MAX_IDLE_BYTES: Final = 2**25


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


@dataclass(slots=True, kw_only=True)
class BuiltGrammar:
    """A grammar that was built, or could not be built.

    Attributes:
      matcher: at the beginning, or the reason why there is none.
      num_bytes: of the matcher with the additions of its copies, estimated.
    """

    matcher: LLMatcher | GrammarError | LibraryFailed
    num_bytes: int

    def open(self) -> LLMatcher:
        """Return a matcher at the beginning.

        Raises:
          GrammarError, LibraryFailed: the grammar could not be built.
        """
        if isinstance(self.matcher, (GrammarError, LibraryFailed)):
            # A new error, because one that was raised keeps the frames that it left.
            raise type(self.matcher)(*self.matcher.args)
        return self.matcher.deep_copy()


class Matchers:
    """Builds matchers in one thread, and finds built ones in any thread.

    Args:
      load_tokenizer: is called once, with the first grammar.

    Attributes:
      num_bytes: of the matchers that are kept, estimated.
      num_dropped_bytes: of grammars dropped since it was last set to 0. Sequences may
        still use them.
    """

    def __init__(self, load_tokenizer: Callable[[], LLTokenizer]) -> None:
        self.num_bytes = 0
        self.num_dropped_bytes = 0
        self._load_tokenizer = load_tokenizer
        self._tokenizer: LLTokenizer | GrammarError | None = None
        self._kept: dict[str, BuiltGrammar] = {}
        self._lock = Lock()

    def find(self, text: str) -> BuiltGrammar | None:
        """Return a grammar that was built before."""
        return self._kept.get(text)

    def build(self, text: str) -> BuiltGrammar:
        """Build a grammar, unless it was built before.

        Raises:
          TrioserveError: of load_tokenizer.
        """
        found = self.find(text)
        if found is not None:
            return found
        matcher: LLMatcher | GrammarError | LibraryFailed
        try:
            with raising_library_failures():
                matcher = self._build(text)
        except (GrammarError, LibraryFailed) as error:
            matcher = type(error)(*error.args)
        built = BuiltGrammar(
            matcher=matcher, num_bytes=_FIXED_BYTES + _BYTES_A_CHARACTER * len(text)
        )
        with self._lock:
            # The new one stays, however large it is.
            self._shrink(MAX_BYTES - built.num_bytes)
            self._kept[text] = built
            self.num_bytes += built.num_bytes
        return built

    def note_work(self, text: str, seconds: float) -> None:
        """Count the growth of a grammar while its masks were computed."""
        with self._lock:
            built = self._kept.get(text)
            if built is not None:
                num_bytes = int(seconds * _BYTES_A_SECOND)
                built.num_bytes += num_bytes
                self.num_bytes += num_bytes
                self._shrink(MAX_BYTES)

    def forget(self, text: str) -> None:
        """Drop a grammar."""
        with self._lock:
            self._drop(text)

    def shrink(self, max_bytes: int) -> None:
        """Drop the largest grammars until the others take no more than that."""
        with self._lock:
            self._shrink(max_bytes)

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

    def _shrink(self, max_bytes: int) -> None:
        while self._kept and self.num_bytes > max_bytes:
            self._drop(max(self._kept, key=lambda text: self._kept[text].num_bytes))

    def _drop(self, text: str) -> None:
        built = self._kept.pop(text, None)
        if built is not None:
            self.num_bytes -= built.num_bytes
            self.num_dropped_bytes += built.num_bytes
