"""The first mistakes of a user end in one sentence."""

from __future__ import annotations

from contextlib import ExitStack
import os
from pathlib import Path
import signal
import subprocess
import sys

import pytest
import trio

from trioserve.__main__ import main
from trioserve.config import HttpConfig, RemoteConfig
from trioserve.errors import StartupError
from trioserve.programs.batch.askers import RemoteAsker, open_remote
from trioserve.programs.batch.command import Batch
from trioserve.programs.batch.output import open_output
from trioserve.testing.server import open_fake_server

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["in", "out"], "--input-file: is missing: run-batch -i FILE -o FILE"),
        (["-i", "in"], "--output-file: is missing: run-batch -i FILE -o FILE"),
        (["-i", "in", "-o", "out.gz"], "--output-file: is written without compression"),
        (["-i", "no", "-o", "out"], "--input-file: cannot read no"),
        (["-i", "in", "-o", "in"], "--output-file: is the input"),
        (["-i", "in", "-o", "no/out"], "--output-file: cannot write no/out"),
        (["-i", "in", "-o", "out", "--url", NOBODY], f"no server answers at {NOBODY}"),
        (
            ["-i", "in", "-o", "out", "--url", NOBODY, "a-model"],
            "--model: is for an engine of this command",
        ),
        (["-i", "in", "-o", "out", "--api-key", "k"], "--api-key: is for a server"),
        (["-i", "in", "-o", "out", "/no/such"], "/no/such"),
    ],
)
def test_a_mistake_is_explained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("{}\n")
    assert main(["run-batch", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("trioserve: ") and sentence in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(("key", "reason"), [(None, "wants a key"), ("b", "not know")])
async def test_a_wrong_key_is_told_before_the_first_line(
    tokenizer_folder: Path, key: str | None, reason: str
) -> None:
    http = HttpConfig(api_key=("a",))
    async with open_fake_server(tokenizer_folder, http=http) as server:
        with pytest.raises(StartupError, match=reason):
            async with open_remote(RemoteConfig(url=server.url, api_key=key)):
                pass
        async with open_remote(RemoteConfig(url=server.url, api_key="a")) as asker:
            assert isinstance(asker, RemoteAsker)


async def test_more_requests_than_a_server_takes_are_answered_in_the_end(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """A line of two prompts takes two of its four places."""
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_text(
        "".join(
            f'{{"custom_id": "{number}", "method": "POST", "url": "/v1/completions", '
            '"body": {"prompt": ["a", "b"], "max_tokens": 2}}\n'
            for number in range(30)
        )
    )
    async with open_fake_server(
        tokenizer_folder, max_num_seqs=2, max_queued_requests=2
    ) as server:
        with open_output(str(target)) as (output, done):
            asking = open_remote(RemoteConfig(url=server.url))
            assert await Batch(output, done, 30).run(str(source), asking, 30) == 0
        assert server.state.counts.answered["/v1/completions", "429"] > 0
    assert target.read_bytes().count(b"\n") == 30


async def test_a_full_disk_is_told(tokenizer_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_text("{}\n")
    async with open_fake_server(tokenizer_folder) as server:
        with open_output("/dev/full") as (output, done):
            asking = open_remote(RemoteConfig(url=server.url))
            assert await Batch(output, done, 1).run(str(source), asking, 1) == 3


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_batch_that_waits_for_its_next_line_can_be_interrupted(
    tokenizer_folder: Path, tmp_path: Path, is_named: bool
) -> None:
    pipe, target = tmp_path / "pipe", tmp_path / "out"
    os.mkfifo(pipe)
    source = str(pipe) if is_named else "-"
    command = ["-m", "trioserve", "run-batch", "-i", source, "-o", str(target)]
    async with open_fake_server(tokenizer_folder) as server:
        with trio.fail_after(120), ExitStack() as stack:
            process = stack.enter_context(start([*command, "--url", server.url]))
            stack.callback(process.kill)
            writer = process.stdin
            if is_named:
                writer = stack.enter_context(
                    await trio.to_thread.run_sync(lambda: open(pipe, "wb"))
                )
            assert writer is not None and process.stderr is not None
            writer.write(b'{"custom_id": "a"}\n')
            writer.flush()
            while not (target.exists() and target.read_bytes()):
                await trio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            code = await trio.to_thread.run_sync(process.wait, 60)
            errors = process.stderr.read().decode()
    assert code == 130
    assert "trioserve: interrupted; " in errors and "Traceback" not in errors
