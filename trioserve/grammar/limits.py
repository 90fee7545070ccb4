"""Bounds on the size and the work of a grammar.

A grammar is a program that a client sends. Each bound holds for one grammar, or for one step
of one sequence. Together they limit the time that one client can take from others.
"""

from __future__ import annotations

from typing import Final

from llguidance import LLParserLimits

# The schemas of the largest agents that were seen take 100 kB.
MAX_BYTES: Final = 262_144
MAX_CHOICES: Final = 4096

# Of a Lark grammar. Grammars of programming languages have 100 to 300. A chain of 1,500 rules,
# each a repetition of the next one, takes 1.3 s to build; twice as many take minutes.
MAX_RULES: Final = 1024

# The bounds that differ from llguidance's defaults are listed below. A microsecond uses 50
# units of fuel while a lexer is built, and 14 while a mask is computed. A schema with 1,000
# optional fields needs 4,000 items and fewer symbols than this bound; its slowest masks take
# 10 to 20 ms. A schema with 3,000 would need 12,000 items and 1.4 s to build, and its masks
# would take 100 ms.
#   max_items_in_row   default 2,000
#   max_grammar_size   default 500,000
#   max_lexer_states   0.4 to 0.9 kB each: at most 25 MB for a grammar; default 250,000
_LIMITS: Final = {
    "max_items_in_row": 5_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 25_000,
    "max_grammar_size": 20_000,
}


def make_limits() -> LLParserLimits:
    """Return the bounds in the form that llguidance takes."""
    return LLParserLimits(
        **_LIMITS, precompute_large_lexemes=False, verbose_errors=False
    )


def allow_seconds(num_tokens: int) -> float:
    """Return how long the masks of a grammar may have taken, for so many tokens.

    A mask takes 20 to 50 microseconds, rarely a few milliseconds (SmolLM2's tokenizer). All
    sequences with the same grammar share this time, so n does not multiply it.
    """
    return 0.25 + 0.005 * num_tokens
