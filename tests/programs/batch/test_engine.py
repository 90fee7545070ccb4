"""An engine of the command answers a batch without a port, as a server would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from trioserve.config import build_config
from trioserve.programs.batch.command import Batch, open_engine
from trioserve.programs.batch.config import BatchConfig
from trioserve.programs.batch.output import open_output
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.models import save_tiny_model
from trioserve.testing.tokenizer import tiny_tokenizer

pytestmark = pytest.mark.slow


async def answer(
    folder: Path, model: Path, requests: dict[str, tuple[str, object]]
) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and the output lines by custom_id."""
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": body}
        for name, (url, body) in requests.items()
    ]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    config = build_config(
        BatchConfig,
        {"model": str(model), "num_threads": 1, "engine_process": False},
    )
    with trio.fail_after(60), open_output(str(target)) as (output, done):
        batch = Batch(output, done, len(lines))
        code = await batch.run(str(source), open_engine(config), 8)
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(line["custom_id"] for line in found) == sorted(requests)
    return code, {line["custom_id"]: line for line in found}


async def test_a_model_that_generates(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_tiny_model(
        "llama", model, vocab_size=512, max_position_embeddings=128, eos_token_id=1
    )
    tiny_tokenizer(model)
    messages = [{"role": "user", "content": "Hello"}]
    short = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
    code, lines = await answer(
        tmp_path,
        model,
        {
            "chat": ("/v1/chat/completions", {"messages": messages, **short}),
            "text": ("/v1/completions", {"prompt": ["one", "two"], **short}),
            "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 3}),
            "message": (
                "/v1/messages",
                {"model": "model", "max_tokens": 3, "messages": messages},
            ),
            "tokens": ("/tokenize?x=1", {"prompt": "Hello"}),
            "vector": ("/v1/embeddings", {"input": "Hello"}),
            "nowhere": ("/v1/nowhere", {}),
        },
    )
    assert code == 1
    status = {name: line["response"]["status_code"] for name, line in lines.items()}
    assert {name for name, code in status.items() if code != 200} == {
        "vector",
        "nowhere",
    }
    assert (status["vector"], status["nowhere"]) == (400, 404)
    chat = lines["chat"]["response"]
    assert chat["body"]["usage"]["completion_tokens"] == 3
    assert chat["body"]["id"].endswith(chat["request_id"])
    assert len(lines["text"]["response"]["body"]["choices"]) == 2
    assert all(line["error"] is None for line in lines.values())


async def test_a_model_that_pools(tmp_path: Path) -> None:
    model = save_tiny_encoder("bert", tmp_path / "model")
    tiny_tokenizer(model)
    code, lines = await answer(
        tmp_path,
        model,
        {
            "vector": ("/v1/embeddings", {"input": ["one", "two"]}),
            "pooled": ("/pooling", {"input": "one"}),
            "score": ("/score", {"text_1": "one", "text_2": ["one", "two"]}),
            "ranks": ("/rerank", {"query": "one", "documents": ["one", "two"]}),
            "bytes": (
                "/v1/embeddings",
                {"input": "one", "encoding_format": "bytes"},
            ),
        },
    )
    assert code == 1
    data = lines["vector"]["response"]["body"]["data"]
    assert [len(each["embedding"]) for each in data] == [32, 32]
    assert [each["score"] for each in lines["score"]["response"]["body"]["data"]][
        0
    ] == pytest.approx(1, abs=1e-3)
    assert len(lines["ranks"]["response"]["body"]["results"]) == 2
    assert lines["bytes"]["error"]["code"] == "invalid_answer"
