"""bench/pooling.py asks all for the same, and divides what it should."""

from __future__ import annotations

import argparse
from array import array
import base64
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
import io
import json
import os
from pathlib import Path
import signal
import sys
from typing import Any

import h11
import msgspec
import pooling
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
import torch
import trio
import trio.testing

from trioserve.testing.encoders import save_tiny_encoder

ONE = pooling.Case(name="one", num_texts=1, lengths=(5, 5), has_floor=True)
MANY = pooling.Case(
    name="many", num_texts=3, lengths=(4, 9), clients=4, has_probes=True
)

# The fake encoder takes 10 ms for a call, so that a round has five.
LOAD = pooling.Load(cases=(ONE, MANY), rounds=2, seconds=0.05, pause=0.0, timeout=30.0)

VOCABULARY = pooling.Vocabulary(words=["a", "b"], num_special_tokens=2)

# Speaks like sentence-transformers' process; takes no time, and says that it took 10 ms
# for a call, or 4 for the model alone. A vector is the text's number of words.
ENCODER = """
import json, sys
vocabulary = {"words": ["a", "b"], "num_special_tokens": 2}
print(json.dumps({"about": "fake 1.0", "vocabulary": vocabulary}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["task"] == "vectors":
        answer = {"vectors": [[len(each.split()), 0.5] for each in asked["texts"]]}
    else:
        answer = {"seconds": 0.01 if asked["task"] == "encode" else 0.004}
    print(json.dumps(answer), flush=True)
"""

ENCODER_COMMAND = [sys.executable, "-I", "-S", "-c", ENCODER]

METRICS = """\
# TYPE trioserve_event_loop_turn_seconds histogram
trioserve_event_loop_turn_seconds_bucket{{le="0.002"}} {few}
trioserve_event_loop_turn_seconds_bucket{{le="0.005"}} {all}
trioserve_event_loop_turn_seconds_bucket{{le="+Inf"}} {all}
trioserve_event_loop_turn_seconds_count {all}
trioserve_event_loop_turn_seconds_sum 1.0
# TYPE trioserve_task_step_seconds histogram
trioserve_task_step_seconds_bucket{{le="0.002"}} {all}
trioserve_task_step_seconds_bucket{{le="0.005"}} {all}
trioserve_task_step_seconds_bucket{{le="+Inf"}} {all}
trioserve_task_step_seconds_count {all}
trioserve_task_step_seconds_sum 1.0
# TYPE trioserve_slow_task_steps_total counter
trioserve_slow_task_steps_total{{task="some.task"}} {few}
"""


@dataclass
class FakeServer:
    """A server of vectors that tell how many words a text has; it remembers requests.

    Its model's tokens are words and two special ones. `offset` is added to vectors;
    `refused` is answered 400 to after the first request, whose vectors are compared.
    Later requests wait until `num_probes_awaited` probes of /health have come.
    """

    offset: float = 0.0
    has_metrics: bool = True
    num_left_out: int = 0
    refuses: bool = False
    num_probes_awaited: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_probes: int = 0
    num_refused: int = 0
    probed: trio.Event = field(default_factory=trio.Event)

    async def handle(self, stream: trio.SocketStream) -> None:
        # A client that has seen enough may leave with a reset.
        with suppress(trio.BrokenResourceError, h11.RemoteProtocolError):
            async with stream:
                await self.converse(stream)

    async def converse(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        while (request := await read_request(stream, http)) is not None:
            status, body = await self.answer(*request)
            head = h11.Response(
                status_code=status, headers=[("Content-Length", str(len(body)))]
            )
            events = (head, h11.Data(data=body), h11.EndOfMessage())
            await stream.send_all(b"".join(http.send(each) or b"" for each in events))
            http.start_next_cycle()

    async def answer(self, target: str, body: bytes) -> tuple[int, bytes]:
        if target == "/health":
            self.num_probes += 1
            if self.num_probes >= self.num_probes_awaited:
                self.probed.set()
            return 200, b""
        if target == "/v1/models":
            return 200, b'{"data": [{"id": "tiny"}]}'
        if target == "/metrics":
            return self.answer_metrics()
        assert target == "/v1/embeddings"
        if body == b"{}":
            self.num_refused += 1
            return 400, b"what"
        return await self.embed(json.loads(body))

    def answer_metrics(self) -> tuple[int, bytes]:
        few = len(self.bodies)
        text = METRICS.format(few=few, all=2 * few)
        return (200, text.encode()) if self.has_metrics else (404, b"")

    async def embed(self, asked: dict[str, Any]) -> tuple[int, bytes]:
        self.bodies.append(asked)
        if len(self.bodies) > 1 and self.refuses:
            return 400, b"too many"
        # Beside the first, and those that warm up, nobody probes.
        if len(self.bodies) > 3 and len(asked["input"]) > 1:
            if self.num_probes < self.num_probes_awaited:
                await self.probed.wait()
        data = [
            {"embedding": self.write_vector(text, asked["encoding_format"])}
            for text in asked["input"][self.num_left_out :]
        ]
        num_tokens = sum(len(text.split()) + 2 for text in asked["input"])
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return 200, json.dumps({"data": data, "usage": usage}).encode()

    def write_vector(self, text: str, encoding: str) -> list[float] | str:
        vector = array("f", [len(text.split()) + self.offset, 0.5])
        if encoding == "float":
            return list(vector)
        return base64.b64encode(vector.tobytes()).decode()


async def read_request(
    stream: trio.SocketStream, http: h11.Connection
) -> tuple[str, bytes] | None:
    target, body = "", b""
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some())
        elif isinstance(event, h11.Request):
            target = event.target.decode()
        elif isinstance(event, h11.Data):
            body += event.data
        else:
            return None
    return target, body


async def run_against(fake: FakeServer, load: Any = LOAD) -> Any:
    """Measure one fake server on a real socket, against the fake encoder."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            url = await listen(nursery, fake)
            servers = [pooling.Server(label="fake", url=url)]
            report = await pooling.measure(
                load, servers, encoder_command=ENCODER_COMMAND
            )
            nursery.cancel_scope.cancel()
    return report


async def listen(nursery: trio.Nursery, fake: FakeServer) -> str:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, fake.handle, listeners)
    return f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"


def raises_once(error: type[Exception], match: str) -> Any:
    """Expect one error, in however many groups."""
    return pytest.RaisesGroup(
        pytest.RaisesExc(error, match=match), flatten_subgroups=True
    )


def find(report: Any, label: str, case: Any = ONE) -> Any:
    (system,) = [each for each in report.systems if each.label == label]
    return system.find(case.name)


# What is asked.


def test_lengths_are_spread_log_uniformly() -> None:
    case = pooling.Case(name="x", num_texts=4, lengths=(2, 512))

    assert case.list_lengths() == [4, 16, 64, 256]
    assert case.num_tokens == 340


def test_texts_have_their_lengths_and_are_seeded() -> None:
    texts = pooling.write_texts(MANY, VOCABULARY, 0, "x")

    assert sorted(len(text.split()) + 2 for text in texts) == MANY.list_lengths()
    assert texts == pooling.write_texts(MANY, VOCABULARY, 0, "x")
    assert texts != pooling.write_texts(MANY, VOCABULARY, 0, "y")


@pytest.mark.parametrize(
    ("seconds", "clients", "expected"),
    [(0.5, 1, 4), (0.3, 1, 7), (60.0, 1, 1), (60.0, 16, 16), (1e-9, 1, 2000)],
)
def test_a_round_lasts_its_time_and_asks_for_each_client(
    seconds: float, clients: int, expected: int
) -> None:
    load = replace(LOAD, seconds=2.0)

    assert load.count_requests(replace(ONE, clients=clients), seconds) == expected


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in pooling.CASES}) == len(pooling.CASES)
    assert len({case.describe() for case in pooling.CASES}) == len(pooling.CASES)


# A whole run.


async def test_all_get_the_same_requests() -> None:
    fake = FakeServer()

    report = await run_against(fake)

    for case, num_requests in ((ONE, 10), (MANY, 10)):
        for label in ("sentence-transformers", "fake"):
            seen = find(report, label, case)
            assert (seen.num_requests, seen.num_errors) == (num_requests, 0)
        assert find(report, "fake", case).server_tokens_per_request == case.num_tokens
    # Those that are compared, one to warm each case up, and two rounds.
    assert len(fake.bodies) == 1 + 2 + 2 * (5 + 5)
    assert {body["model"] for body in fake.bodies} == {"tiny"}
    texts = [tuple(body["input"]) for body in fake.bodies[3:] if len(body["input"]) > 1]
    assert len(set(texts)) > 5


async def test_speeds_and_ratios_are_those_of_the_encoders_own_clock() -> None:
    report = await run_against(FakeServer())

    reference, fake = (
        find(report, label, MANY) for label in ("sentence-transformers", "fake")
    )
    assert reference.requests_per_second == pytest.approx(100.0)
    assert reference.texts_per_second == pytest.approx(300.0)
    assert reference.tokens_per_second == pytest.approx(100.0 * MANY.num_tokens)
    assert fake.ratio_by_round == pytest.approx(
        [speed / 100.0 for speed in fake.requests_per_second_by_round]
    )
    # Four clients behind a lock.
    assert reference.latency_seconds.maximum == pytest.approx(0.04)


async def test_one_text_is_divided_into_model_http_and_the_rest() -> None:
    fake = FakeServer()

    report = await run_against(fake)

    server = next(each for each in report.systems if each.label == "fake")
    (addition,) = server.additions
    assert addition.case == "one"
    assert addition.model == pytest.approx(0.004)
    assert addition.rest == pytest.approx(
        addition.whole - addition.http - 0.004, abs=1e-9
    )
    assert find(report, "bare model", MANY) is None
    # One to warm up, and two rounds.
    assert fake.num_refused == 1 + 2 * 5
    assert "HTTP alone" in pooling.render_report(report)


async def test_health_is_probed_beside_the_cases_that_say_so() -> None:
    report = await run_against(FakeServer(num_probes_awaited=4))

    assert find(report, "fake", ONE).health_seconds is None
    # The first of the four asked whether there is such a path.
    assert find(report, "fake", MANY).health_seconds.count >= 2
    assert find(report, "fake", MANY).num_health_failures == 0


async def test_the_loop_is_read_from_metrics() -> None:
    report = await run_against(FakeServer())

    loop = find(report, "fake").loop
    assert loop.longest_turn == pooling.Bucket(above=0.002, up_to=0.005)
    assert loop.longest_step == pooling.Bucket(above=0.0, up_to=0.002)
    assert loop.slow_steps == {"some.task": 10}
    assert find(report, "sentence-transformers").loop is None


async def test_a_server_without_metrics_is_measured_without_them() -> None:
    report = await run_against(FakeServer(has_metrics=False))

    assert find(report, "fake").loop is None
    assert find(report, "fake").num_requests == 10


@pytest.mark.parametrize("encoding", ["base64", "float"])
async def test_vectors_are_compared_in_either_encoding(encoding: str) -> None:
    fake = FakeServer(offset=0.25)

    report = await run_against(fake, replace(LOAD, encoding=encoding, cases=(ONE,)))

    server = next(each for each in report.systems if each.label == "fake")
    assert server.largest_difference == pytest.approx(0.25)
    assert {body["encoding_format"] for body in fake.bodies} == {encoding}
    assert "up to 2.5e-01 from" in pooling.render_report(report)


async def test_failed_requests_are_counted_and_told() -> None:
    load = replace(LOAD, cases=(MANY,), rounds=1, seconds=0.02)

    report = await run_against(FakeServer(refuses=True), load)

    seen = find(report, "fake", MANY)
    assert (seen.num_requests, seen.num_errors) == (0, 4)
    assert pooling.list_failed(report) == ["fake"]
    assert "4 x HTTP 400: too many" in pooling.render_report(report)


async def test_a_server_that_gives_too_few_vectors_cannot_be_measured() -> None:
    with raises_once(pooling.ServerUnusable, "fake"):
        await run_against(FakeServer(num_left_out=1))


async def test_a_server_that_never_answers_ends_with_the_time_limit() -> None:
    fake = FakeServer(num_probes_awaited=10**9)
    load = replace(LOAD, timeout=0.2, cases=(replace(MANY, has_probes=False),))

    report = await run_against(fake, load)

    assert report.is_cut
    assert "cut by --timeout" in pooling.render_report(report)


async def test_sigterm_ends_a_run_and_what_it_started() -> None:
    # It never greets, so that the run waits for it.
    command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    measure = partial(pooling.measure, LOAD, [], encoder_command=command)
    with trio.fail_after(30), raises_once(pooling.ProcessEnded, "stopped by SIGTERM"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(os.getpid(), signal.SIGTERM)


async def test_an_encoder_that_ends_is_told() -> None:
    command = [sys.executable, "-I", "-S", "-c", "pass"]
    with raises_once(pooling.ProcessEnded, "sentence-transformers has ended"):
        await pooling.measure(LOAD, [], encoder_command=command)


@pytest.mark.slow
def test_sentence_transformers_does_what_it_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In this process: another one would import it for five seconds."""
    save_tiny_encoder("bert", tmp_path)
    save_word_tokenizer(tmp_path)
    load = pooling.Load(
        model=str(tmp_path), max_model_len=64, num_threads=torch.get_num_threads()
    )
    texts = pooling.write_texts(MANY, VOCABULARY, 0)
    questions = b"".join(
        msgspec.json.encode(pooling.Question(task=task, texts=texts)) + b"\n"
        for task in ("vectors", "encode", "forward")
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(questions)))
    assert pooling.main(pooling.write_encoder_command(load)[2:]) == 0
    answers = capfd.readouterr().out.splitlines()

    greeting = msgspec.json.decode(answers[0], type=pooling.Greeting)
    vectors = msgspec.json.decode(answers[1], type=pooling.Vectors).vectors
    assert [len(vector) for vector in vectors] == [32, 32, 32]
    for answer in answers[2:]:
        assert msgspec.json.decode(answer, type=pooling.Timing).seconds > 0
    assert len(answers) == 4
    assert "float32" in greeting.about
    assert greeting.vocabulary.words == list(pooling.serving.WORDS)
    assert greeting.vocabulary.num_special_tokens == 2


def save_word_tokenizer(folder: Path) -> None:
    """Save a tokenizer to which every word is a token, as nearly all are to BERT's."""
    words = ["[PAD]", "[CLS]", "[SEP]", *dict.fromkeys(pooling.serving.WORDS)]
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, "[PAD]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


# The server's process.

SERVER = """
import signal, sys, time
print("loading", file=sys.stderr)
print("x: ready after 1.0 s: tiny on http://127.0.0.1:81", file=sys.stderr)
sys.stderr.write("a lot\\n" * 100_000)
signal.pause()
"""


async def test_a_servers_address_is_in_its_log_which_is_read_on() -> None:
    command = [sys.executable, "-I", "-S", "-c", SERVER]
    with trio.fail_after(30):
        async with pooling.open_server(command) as url:
            assert url == "http://127.0.0.1:81"


async def test_a_server_that_does_not_start_is_told_with_its_log() -> None:
    command = [sys.executable, "-I", "-S", "-c", "raise SystemExit('no such model')"]
    with raises_once(pooling.ProcessEnded, "no such model"):
        async with pooling.open_server(command):
            raise AssertionError("it has no address")


# Figures.


def test_clients_behind_a_lock_wait_for_all_others() -> None:
    waits = pooling.wait_behind_lock([1.0, 2.0, 4.0, 8.0], clients=2)

    assert waits == [1.0, 3.0, 6.0, 12.0]


@pytest.mark.parametrize(
    ("after", "expected", "text"),
    [
        ({0.1: 9, 1.0: 9, float("inf"): 9}, (0.0, 0.1), "0-100"),
        ({0.1: 7, 1.0: 9, float("inf"): 9}, (0.1, 1.0), "100-1000"),
        ({0.1: 7, 1.0: 8, float("inf"): 9}, (1.0, None), "> 1000"),
    ],
)
def test_the_longest_is_in_the_highest_bucket_that_gained(
    after: dict[float, int], expected: tuple[float, float | None], text: str
) -> None:
    before = {0.1: 5, 1.0: 5, float("inf"): 5}

    bucket = pooling.find_longest(before, after)

    assert (bucket.above, bucket.up_to) == expected
    assert bucket.write() == text


def test_a_server_that_counts_other_tokens_is_doubted() -> None:
    rounds = [
        pooling.Round(latencies=[0.1], wall_seconds=0.1, server_tokens=tokens)
        for tokens in (6, 6)
    ]
    seen = pooling.report_case(ONE, rounds, rounds)

    assert list(pooling.doubt(ONE, seen)) == [
        "the server counts 6 tokens a request, not 5"
    ]


async def test_saved_results_are_read_back_and_shown_side_by_side(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "monday.json", tmp_path / "tuesday.json"]
    for path, case in zip(paths, (ONE, MANY)):
        report = await run_against(FakeServer(), replace(LOAD, cases=(case,)))
        path.write_bytes(pooling.msgspec.json.encode(report))

    merged = pooling.merge_reports(pooling.load_reports(paths))

    assert find(merged, "fake", ONE).num_requests == 10
    assert find(merged, "fake (2)", MANY).num_requests == 10
    assert merged.load.cases == (ONE, MANY)


def test_results_of_different_loads_are_not_shown_together() -> None:
    reports = [
        pooling.Report(created="", machine="", load=load, is_cut=False, systems=())
        for load in (LOAD, replace(LOAD, num_threads=7))
    ]
    with pytest.raises(ValueError, match="different loads"):
        pooling.merge_reports(reports)


# The command line.


def test_cases_are_chosen_by_name() -> None:
    names = [case.name for case in pooling.read_cases("mixed-32,short-1")]

    assert names == ["short-1", "mixed-32"]
    with pytest.raises(argparse.ArgumentTypeError, match="short-2"):
        pooling.read_cases("short-2")


def test_without_sentence_transformers_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What Python itself does with a module that is known not to be there.
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)

    assert pooling.main(["--url", "http://127.0.0.1:1"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install sentence-transformers" in line


@pytest.mark.slow
async def test_a_plot_is_a_png(tmp_path: Path) -> None:
    report = await run_against(FakeServer())

    pooling.save_plot(report, tmp_path / "drawn.png")

    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
