"""A coding agent's loop over a scripted model: read a file, edit it, answer.

The official client runs the loop, the tools are functions, and the file is real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
from anthropic import beta_async_tool
import pytest
import trio

from trioserve.config import RenderConfig
from trioserve.testing.server import FakeServer, open_fake_server
from trioserve.testing.tokenizer import IM_END

# The client leaves generators of its HTTP library to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def call(name: str, **arguments: str) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


SCRIPT = (
    f"<think>\nI look first.\n</think>\n\nLet me see.\n{call('read', file='a.py')}",
    call("edit", file="a.py", old="True", new="False")
    + "\n"
    + call("read", file="a.py"),
    "It is False now.",
)


@pytest.fixture
async def server(tokenizer_folder: Path) -> FakeServer:
    render = RenderConfig(reasoning_parser="qwen3", tool_call_parser="hermes")
    async with open_fake_server(
        tokenizer_folder,
        render=render,
        answer=SCRIPT,
        eos_token=IM_END,
        chat_template=TEMPLATE,
        max_model_len=4096,
    ) as server:
        with trio.fail_after(30):
            yield server


@pytest.mark.parametrize("streams", [False, True])
async def test_an_agent_reads_edits_and_answers(
    server: FakeServer, tmp_path: Path, streams: bool
) -> None:
    path = tmp_path / "a.py"
    path.write_text("ok = True\n")
    seen = []

    @beta_async_tool
    async def read(file: str) -> str:
        """Read a file."""
        seen.append(("read", file))
        return (tmp_path / file).read_text()

    @beta_async_tool
    async def edit(file: str, old: str, new: str) -> str:
        """Replace a text in a file."""
        seen.append(("edit", file))
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text.replace(old, new))
        return "Done."

    question: Any = [{"role": "user", "content": "Make it false."}]
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="any", max_retries=0
    ) as client:
        runner: Any = client.beta.messages.tool_runner(
            model="fake",
            max_tokens=1024,
            system="You edit files.",
            messages=question,
            tools=[read, edit],
            stream=streams,
        )
        last = await runner.until_done()
    assert path.read_text() == "ok = False\n"
    # Tools of one answer may run at once.
    assert seen[0] == ("read", "a.py")
    assert sorted(seen[1:]) == [("edit", "a.py"), ("read", "a.py")]
    assert last.stop_reason == "end_turn"
    [block] = last.content
    assert block.text == "It is False now."
    # The template has shown the model its thoughts, its calls and their results.
    starts = [start for plan in server.device.plans for start in plan.starts]
    token_bytes = server.state.engine.renderer.token_bytes
    prompt = b"".join(map(token_bytes, starts[-1].prompt_token_ids)).decode()
    assert "<think>I look first.</think>Let me see." in prompt
    assert prompt.count("<tool_call>") == 3
    assert "<|im_start|>tool\nok = True\n<|im_end|>" in prompt
    assert "<|im_start|>tool\nDone.<|im_end|>" in prompt
