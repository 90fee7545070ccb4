"""The number of examples that tests by random values try."""

from __future__ import annotations

from hypothesis import settings

THOROUGH = "thorough"

# The bounds of the examples of a test; fewer would be none.
_LEAST, _MOST = 10, 25


def is_thorough() -> bool:
    """True with `pytest --hypothesis-profile=thorough`, which .ci/run uses."""
    return settings.get_current_profile_name() == THOROUGH


def examples(thorough: int) -> int:
    """Return the number of examples of a test.

    Args:
      thorough: the number in a thorough run.
    """
    return thorough if is_thorough() else min(max(_LEAST, thorough // 4), _MOST)
