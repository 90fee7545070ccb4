"""Adapters of a real server with several HTTP processes, asked by the official client."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from safetensors.torch import save_file
import torch

pytestmark = pytest.mark.slow

# Enough connections that each of two processes gets some, but in one of a million runs.
MANY = 20

JSON = {"Content-Type": "application/json"}


def save_adapter(folder: Path, seed: int) -> None:
    """Save an adapter of random numbers, large enough to change each token."""
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(2):
        module = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        tensors[f"{module}.lora_A.weight"] = torch.randn(4, 32)
        tensors[f"{module}.lora_B.weight"] = torch.randn(32, 4)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 4,
        "target_modules": ["o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def test_all_processes_agree_and_streams_keep_their_adapter(
    start_server: Callable[..., Any], model_folder: Path, tmp_path: Path
) -> None:
    for seed, name in enumerate(("one", "two"), 1):
        save_adapter(tmp_path / name, seed)
    (tmp_path / "half").mkdir()
    server = start_server(
        *(str(model_folder), "--kernels", "torch", "--num-threads", "1"),
        *("--kv-cache-memory", "16MiB", "--adapter", f"owner/first={tmp_path}/one"),
        *("--adapter-folder", str(tmp_path), "--api-processes", "2"),
        *("--response-max-age", "0", "--max-background-responses", "0"),
    )

    def connect() -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=60)

    def write(model: str) -> str:
        """Ask over a new connection; returns the text, or the message of an error.

        A client of OpenAI's takes far longer to make than to answer.
        """
        body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8}
        content = json.dumps(body | {"temperature": 0})
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", content, JSON)
        with closing(connection):
            answer = json.loads(connection.getresponse().read())
        if "error" in answer:
            return str(answer["error"]["message"])
        assert answer["model"] == model
        return str(answer["choices"][0]["text"])

    def change(verb: str, **body: object) -> httpx.Response:
        return httpx.post(f"{server.url}/v1/{verb}_lora_adapter", json=body, timeout=60)

    plain, first = write("tiny-llama"), write("owner/first")
    assert plain != first
    assert change("load", lora_name="second", lora_path="two").is_success
    second = write("second")
    assert second not in (plain, first)
    assert {write("second") for _ in range(MANY)} == {second}
    broken = change("load", lora_name="second", lora_path="half", load_inplace=True)
    assert broken.status_code == 400
    with connect() as client:
        with client.completions.create(
            model="second",
            prompt="Once upon a time",
            max_tokens=300,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            events = iter(stream)
            text = next(events).choices[0].text
            # Another content under the same name, whose prompt is in the cache.
            again = {"lora_name": "second", "lora_path": "one", "load_inplace": True}
            assert change("load", **again).is_success
            assert {write("second") for _ in range(MANY)} == {first}
            assert change("unload", lora_name="second").is_success
            [unknown] = {write("second") for _ in range(MANY)}
            assert "`second` does not exist" in unknown and "`owner/first`" in unknown
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model="second", prompt="Once")
            text += "".join(event.choices[0].text for event in events)
    assert text.startswith(second)
    with connect() as client:
        cards = client.models.list().data
        assert [each.id for each in cards] == ["tiny-llama", "owner/first"]
        assert cards[1].model_extra is not None
        assert cards[1].model_extra["parent"] == "tiny-llama"
    assert write("tiny-llama") == plain and write("owner/first") == first
