"""A question whose answer has a form, for all clients."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

from pydantic import BaseModel, Field
import pytest

QUESTION: Final = "Describe Paris: its name, and whether it is a capital."
MESSAGES: list[Any] = [{"role": "user", "content": QUESTION}]
MODEL: Final = "SmolLM2-135M-Instruct"


class City(BaseModel, extra="forbid"):
    """A city."""

    name: str = Field(max_length=20)
    is_capital: bool


def mark_client(package: str) -> list[pytest.MarkDecorator]:
    """Return the marks of tests of a client that may not be installed."""
    return [
        pytest.mark.slow,
        pytest.mark.skipif(
            find_spec(package) is None, reason="needs the extra clients"
        ),
        # Of the client's own code and imports.
        pytest.mark.filterwarnings("ignore"),
    ]
