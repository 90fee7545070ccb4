"""Options of HTTP that make no sense are refused by their name."""

from __future__ import annotations

from typing import Any

import pytest

from trioserve.config import HttpConfig
from trioserve.errors import InvalidConfig

# Options with each of some values, and what the error says.
WRONG: list[tuple[str, list[Any], str]] = [
    ("otlp_traces_endpoint", ["localhost:4318", "grpc://a:4317", "http://", ""], ""),
    ("write_timeout", [0.0, -1.0, float("inf"), float("nan")], ""),
    ("root_path", ["llm", "/llm/", "/", "/a//b", "/a?b", "/a b", "//a"], ""),
    ("max_connections", [0], ""),
    ("max_connections_per_address", [0], ""),
    (
        "allowed_host",
        [(each,) for each in ("", "a:80", "http://a", "a/b", "*.example", "a b", ".")],
        ": .* is not a name",
    ),
    (
        "allowed_origins",
        [
            *(("chat.example",), ("https://chat.example/",), ("https://Chat.example",)),
            *(("https://a b",), ("",)),
        ],
        "",
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [(name, value, message) for name, values, message in WRONG for value in values],
)
def test_a_value_that_makes_no_sense_is_refused(
    name: str, value: object, message: str
) -> None:
    with pytest.raises(InvalidConfig, match=name.replace("_", "-") + message):
        HttpConfig(**{name: value})


def test_options_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="max-bodies-memory.*twice"):
        HttpConfig(max_body_size="1MiB", max_bodies_memory="2047KiB")
    with pytest.raises(InvalidConfig, match="256KiB"):
        HttpConfig(resume_seconds=1, max_resume_memory="1KiB")
    HttpConfig(max_resume_memory="1KiB")
    with pytest.raises(InvalidConfig, match="needs --api-key"):
        HttpConfig(guard_metrics=True)
