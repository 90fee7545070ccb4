"""A model and a server exclude each other, and so do their options."""

from __future__ import annotations

import pytest

from trioserve.config import EngineConfig, list_options
from trioserve.errors import InvalidConfig, StartupError
from trioserve.programs.chat import ChatConfig, read_chat_config
from trioserve.programs.chat.config import LocalModelConfig, SamplingConfig


def test_options_of_the_model_are_those_of_an_engine() -> None:
    engine = {option.name: option for option in list_options(EngineConfig)}
    for option in list_options(LocalModelConfig):
        assert (option.hint, option.default) == (
            engine[option.name].hint,
            engine[option.name].default,
        )


def test_no_option_stands_twice() -> None:
    names = [option.name for option in list_options(ChatConfig)]
    assert len(names) == len(set(names))


def test_options_reach_the_engine() -> None:
    values = {"model": "x", "max_model_len": 77, "reasoning_parser": "qwen3"}
    _, source = read_chat_config(values, has_word=True)
    assert source.engine is not None
    assert source.engine.model.model == "x"
    assert source.engine.model.max_model_len == 77
    assert source.engine.render.reasoning_parser == "qwen3"


def test_a_server_is_asked_for_a_model() -> None:
    values = {"url": "http://x", "model": "b"}
    _, source = read_chat_config(values, has_word=False)
    assert (source.engine, source.remote.url, source.model) == (None, "http://x", "b")
    _, source = read_chat_config({"uds": "/x"}, has_word=False)
    assert (source.engine, source.remote.uds, source.model) == (None, "/x", None)


@pytest.mark.parametrize(
    ("values", "has_word", "message"),
    [
        ({"url": "http://x", "model": "b"}, True, "^chat: b would be loaded here"),
        ({"url": "http://x", "dtype": "float32"}, False, "^--dtype: is for a model"),
        ({"api_key": "k"}, False, "^--api-key: is for a server"),
        ({"model": "http://x"}, True, "^chat: .* write --url http://x$"),
        ({"model": "Who is it?"}, True, "^chat: .* write -p 'Who is it\\?'$"),
        ({"max_model_len": 0}, False, "^--max-model-len: must be at least 1"),
        ({"temperature": -1.0}, False, "^--temperature: must be between"),
        ({"top_p": 0.0}, False, "^--top-p: must be greater than 0"),
        ({"stop": [""]}, False, "^--stop: must not be empty"),
    ],
)
def test_what_makes_no_sense_is_refused(
    values: dict[str, object], has_word: bool, message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        read_chat_config(values, has_word=has_word)


def test_only_what_was_given_is_sent() -> None:
    assert SamplingConfig().list_given() == {}
    given = SamplingConfig(temperature=0.0, stop=("a",), seed=0).list_given()
    assert given == {"temperature": 0.0, "stop": ["a"], "seed": 0}
    with pytest.raises(InvalidConfig):
        SamplingConfig(max_tokens=0)
