"""Tool calls in the text of a model, from its token ids on."""

from __future__ import annotations

import json
from pathlib import Path
import shutil
from typing import Any

import pytest
from tokenizers import Tokenizer

from trioserve.config import RenderConfig
from trioserve.errors import InvalidConfig
from trioserve.render import Renderer, ToolTable
from trioserve.render.tools.gpt_oss import GptOssScanner
from trioserve.testing.fake_device import make_info
from trioserve.testing.renderers import load_renderer
from trioserve.testing.tokenizer import tiny_tokenizer
from trioserve.types.output import TextDelta
from trioserve.types.prompt import Prompt

TOOLS = ToolTable([{"type": "function", "function": {"name": "stop"}}])
CALL = '{"name": "stop", "arguments": {}}'
THOUGHT = "<|channel|>analysis<|message|>Is it?<|end|><|start|>assistant"
PROMPT = Prompt(token_ids=(5,), text="Hi")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer in which tags of two families are special tokens."""
    folder = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    path = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["[TOOL_CALLS]", "<tool_call>", *GptOssScanner.tags])
    tokenizer.save(str(path))
    return folder


def load(folder: Path, parser: str) -> Renderer:
    config = RenderConfig(tool_call_parser=parser)  # type: ignore[arg-type]
    return load_renderer(folder, config, info=make_info())


def read(
    renderer: Renderer,
    text: str,
    *,
    tools: ToolTable | None = TOOLS,
    group: int = 1,
    **options: Any,
) -> TextDelta:
    """Push the tokens of a text in groups, up to the end that the detokenizer finds."""
    tokenizer = renderer.model_tokenizer.backend
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = renderer.open_detokenizer(PROMPT, tools=tools, **options)
    deltas = []
    for begin in range(0, len(ids), group):
        deltas.append(detokenizer.push(ids[begin : begin + group]))
        if deltas[-1].finish_reason is not None:
            return TextDelta.join(deltas)
    return TextDelta.join([*deltas, detokenizer.finish()])


@pytest.mark.parametrize("group", [1, 3, 1000])
def test_tags_that_are_special_tokens_are_found(folder: Path, group: int) -> None:
    renderer = load(folder, "mistral")
    delta = read(renderer, f"Yes.[TOOL_CALLS] [{CALL}]", group=group)
    assert delta.text == "Yes."
    assert [call.name for call in delta.tool_calls] == ["stop"]


def test_special_tokens_are_left_out_without_tools(folder: Path) -> None:
    renderer = load(folder, "mistral")
    text = f"Yes.[TOOL_CALLS] [{CALL}]"
    delta = read(renderer, text, tools=None)
    assert delta.text == text.replace("[TOOL_CALLS]", "")
    assert not delta.tool_calls


def test_special_tokens_of_other_families_are_left_out(folder: Path) -> None:
    delta = read(load(folder, "mistral"), "a<tool_call>b[TOOL_CALLS]c")
    assert delta.text == "ab[TOOL_CALLS]c"


@pytest.mark.parametrize("group", [1, 3, 1000])
def test_tokens_behind_the_only_call_do_not_count(folder: Path, group: int) -> None:
    renderer = load(folder, "hermes")
    begin = f"So.<tool_call>{CALL}"
    delta = read(
        renderer, begin + "</tool_call> and more", group=group, takes_one_call=True
    )
    assert delta.text == "So."
    assert [call.arguments for call in delta.tool_calls] == ["{}"]
    assert (delta.finish_reason, delta.stop_reason) == ("stop", None)
    spelt = b"".join(map(renderer.token_bytes, delta.token_ids)).decode()
    assert begin.startswith(spelt[:-1]) and len(spelt) <= len(begin) + 2


@pytest.mark.parametrize("group", [1, 1000])
def test_a_stop_string_releases_what_is_held(folder: Path, group: int) -> None:
    renderer = load(folder, "hermes")
    delta = read(renderer, '<tool_call>{"name": "END', group=group, stop=("END",))
    assert delta.text == '<tool_call>{"name": "'
    assert (delta.finish_reason, delta.stop_reason) == ("stop", "END")


@pytest.mark.parametrize("group", [1, 3, 1000])
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_channels_are_split_with_and_without_tools(
    folder: Path, group: int, tools: ToolTable | None
) -> None:
    renderer = load(folder, "gpt_oss")
    assert renderer.separates_reasoning
    text = f"{THOUGHT}<|channel|>final<|message|>So."
    delta = read(renderer, text, tools=tools, group=group, splits_reasoning=True)
    assert (delta.text, delta.reasoning) == ("So.", "Is it?")
    tokenizer = renderer.model_tokenizer.backend
    # The text, and the tags at its ends.
    assert delta.num_reasoning_tokens == 2 + len(tokenizer.encode("Is it?").ids)


def test_plain_completions_have_no_channels(folder: Path) -> None:
    delta = read(load(folder, "gpt_oss"), f"{THOUGHT}So.", tools=None)
    assert (delta.text, delta.reasoning) == ("analysisIs it?assistantSo.", "")


def test_channels_need_no_other_parser(folder: Path) -> None:
    config = RenderConfig(tool_call_parser="gpt_oss", reasoning_parser="granite")
    with pytest.raises(InvalidConfig, match="^--reasoning-parser: gpt_oss finds"):
        load_renderer(folder, config, info=make_info())


def test_auto_recognises_the_template_in_use(folder: Path, tmp_path: Path) -> None:
    info, config = make_info(), RenderConfig()
    unknown = "{{ tools | tojson }}"
    plain = load_renderer(folder, config, info=info, chat_template=unknown)
    assert plain.tool_format is None
    template = unknown + "[TOOL_CALLS]"
    other = load_renderer(folder, config, info=info, chat_template=template)
    assert other.tool_format is not None
    assert other.tool_format.family == "mistral"
    # The model's own template has no place for tools.
    described = load_renderer(folder, config, info=info)
    assert described.tool_format is not None
    assert described.tool_format.family == "hermes"


# As in transformers 5.23: the chat template does not show the tags.
RULES = {
    "start_anchor": "<|im_start|>assistant",
    "fields": {
        "content": {"close": "<|im_end|>"},
        "tool_calls": {
            "open_pattern": "<\\|tool_call>call:(?P<name>\\w+)",
            "close": "<tool_call|>",
            "content": "json",
            "repeats": True,
        },
    },
}


@pytest.mark.parametrize("has_settings", [True, False])
def test_rules_of_transformers_tell_the_family(
    folder: Path, tmp_path: Path, has_settings: bool
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"response_template": RULES}
    if not has_settings:
        # transformers reads the tokenizer then.
        settings["merges"] = "other"
    path.write_text(json.dumps(settings))
    (tmp_path / "chat_template.jinja").write_text("{{ tools | tojson }}")
    renderer = load_renderer(tmp_path, RenderConfig(), info=make_info())
    assert renderer.tool_format is not None
    assert renderer.tool_format.family == "gemma4"
    # They belong to the model's own template.
    template = "{{ tools }}"
    other = load_renderer(
        tmp_path, RenderConfig(), info=make_info(), chat_template=template
    )
    assert other.tool_format is None


def test_a_call_may_begin_and_end_in_one_delta(folder: Path) -> None:
    delta = read(load(folder, "hermes"), f"<tool_call>{CALL}</tool_call>", group=1000)
    [call] = delta.tool_calls
    assert json.loads(call.arguments) == {}
    assert call.index == 0 and call.id
