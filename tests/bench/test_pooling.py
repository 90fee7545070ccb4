"""The benches of embeddings send all systems the same texts, and report the figures."""

from __future__ import annotations

from array import array
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
import io
import json
from pathlib import Path
import sys
from typing import Any

from kit.embedding import cases, encoder
from kit.embedding.cases import Case, Load, Vocabulary
from kit.embedding.figures import Report, merge_reports, report_case
from kit.embedding.plot import save_plot
from kit.embedding.server import Timed
from kit.embedding.table import render_report
import msgspec
import pooling
import pooling_health
import pooling_overhead
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
import torch
import trio

from trioserve.programs.bench.measuring.clients import Round
from trioserve.programs.bench.measuring.measured_servers import Server, ServerUnusable
from trioserve.programs.bench.measuring.report import load_reports, save
from trioserve.programs.bench.measuring.texts import WORDS
from trioserve.testing.encoders import save_tiny_encoder

ONE = Case(name="one", num_texts=1, lengths=(5, 5))
MANY = Case(name="many", num_texts=3, lengths=(4, 9), clients=4, is_large=True)

# The fake encoder takes 10 ms for a call, so that a round has five.
LOAD = Load(cases=(ONE, MANY), rounds=2, seconds=0.05, pause=0.0, timeout=30.0)

VOCABULARY = Vocabulary(words=["a", "b"], num_special_tokens=2)

RunAgainst = Callable[..., Awaitable[Any]]

# Has the protocol of sentence-transformers' process. It takes no time, and reports 10
# ms for a call and 4 ms for the model alone. A vector has the number of words of its
# text.
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
    """A server whose vectors have the number of words of a text.

    The tokens of a text are its words and two special ones. `offset` is added to
    vectors. The first request is answered, for the comparison of vectors. With
    `refuses` all later ones are refused, and with `hangs` they are never answered.
    """

    write_answer: Callable[..., bytes]
    offset: float = 0.0
    has_metrics: bool = True
    num_left_out: int = 0
    refuses: bool = False
    hangs: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    num_probes: int = 0
    num_refused: int = 0

    async def answer(self, line: str, body: bytes) -> bytes:
        if line == "GET /health":
            self.num_probes += 1
            return self.write_answer("200 OK")
        if line == "GET /v1/models":
            return self.write_answer("200 OK", b'{"data": [{"id": "tiny"}]}')
        if line == "GET /metrics":
            few = len(self.bodies)
            text = METRICS.format(few=few, all=2 * few)
            status = "200 OK" if self.has_metrics else "404 Not Found"
            return self.write_answer(status, text.encode())
        assert line == "POST /v1/embeddings"
        if body == b"{}":
            self.num_refused += 1
            return self.write_answer("400 Bad Request", b"what")
        return await self.embed(json.loads(body))

    async def embed(self, asked: dict[str, Any]) -> bytes:
        self.bodies.append(asked)
        if len(self.bodies) > 1 and self.hangs:
            await trio.sleep_forever()
        if len(self.bodies) > 1 and self.refuses:
            return self.write_answer("400 Bad Request", b"too many")
        data = [
            {"embedding": self.write_vector(text, asked["encoding_format"])}
            for text in asked["input"][self.num_left_out :]
        ]
        num_tokens = sum(len(text.split()) + 2 for text in asked["input"])
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        answer = json.dumps({"data": data, "usage": usage}).encode()
        return self.write_answer("200 OK", answer)

    def write_vector(self, text: str, encoding: str) -> list[float] | str:
        vector = array("f", [len(text.split()) + self.offset, 0.5])
        if encoding == "float":
            return list(vector)
        return base64.b64encode(vector.tobytes()).decode()


@pytest.fixture
def make_server(write_answer: Any) -> Callable[..., FakeServer]:
    """Make a fake server with some attributes."""
    return lambda **attributes: FakeServer(write_answer, **attributes)


@pytest.fixture
def run_against(listen: Any) -> RunAgainst:
    """Run a bench against one fake server on a real socket, and the fake encoder."""

    async def run(
        fake: FakeServer, load: Load = LOAD, measure: Any = pooling.measure, *args: Any
    ) -> Any:
        has_encoder = measure is not pooling_health.measure
        command = {"encoder_command": ENCODER_COMMAND} if has_encoder else {}
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                http = await listen(nursery, fake.answer)
                servers = [Server(label="fake", url=http.url)]
                report = await measure(load, servers, *args, **command)
                nursery.cancel_scope.cancel()
        return report

    return run


def raises_once(error: type[Exception], match: str) -> Any:
    """Expect one error, inside any number of groups."""
    return pytest.RaisesGroup(
        pytest.RaisesExc(error, match=match), flatten_subgroups=True
    )


def find(report: Report, label: str, case: Case = ONE) -> Any:
    (system,) = [each for each in report.systems if each.label == label]
    return system.find(case.name)


# The requests.


def test_lengths_are_spread_log_uniformly() -> None:
    case = Case(name="x", num_texts=4, lengths=(2, 512))

    assert case.list_lengths() == [4, 16, 64, 256]
    assert case.num_tokens == 340


def test_texts_have_their_lengths_and_are_seeded() -> None:
    texts = cases.write_texts(MANY, VOCABULARY, 0, "x")

    assert sorted(len(text.split()) + 2 for text in texts) == MANY.list_lengths()
    assert texts == cases.write_texts(MANY, VOCABULARY, 0, "x")
    assert texts != cases.write_texts(MANY, VOCABULARY, 0, "y")


@pytest.mark.parametrize(
    ("seconds", "clients", "expected"),
    [(0.5, 1, 4), (0.3, 1, 7), (60.0, 1, 1), (60.0, 16, 16), (1e-9, 1, 2000)],
)
def test_a_round_lasts_its_time_and_has_a_request_of_each_client(
    seconds: float, clients: int, expected: int
) -> None:
    load = replace(LOAD, seconds=2.0)

    assert load.count_requests(replace(ONE, clients=clients), seconds) == expected


# Speed.


async def test_all_systems_get_the_same_requests(
    run_against: RunAgainst, make_server: Any
) -> None:
    fake = make_server()

    report = await run_against(fake)

    for case in (ONE, MANY):
        for label in ("sentence-transformers", "fake"):
            clients = find(report, label, case).clients
            assert (clients.num_requests, clients.num_errors) == (10, 0)
        doubts = find(report, "fake", case).doubts
        assert not [doubt for doubt in doubts if "tokens" in doubt]
    # The compared texts, a warm-up request for each case, and two rounds.
    assert len(fake.bodies) == 1 + 2 + 2 * (5 + 5)
    assert {body["model"] for body in fake.bodies} == {"tiny"}
    texts = [tuple(body["input"]) for body in fake.bodies[3:] if len(body["input"]) > 1]
    assert len(set(texts)) > 5


async def test_speeds_and_ratios_use_the_encoders_own_clock(
    run_against: RunAgainst, make_server: Any
) -> None:
    report = await run_against(make_server())

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
    assert reference.latency.maximum == pytest.approx(0.04)


@pytest.mark.parametrize("encoding", ["base64", "float"])
async def test_vectors_are_compared_in_either_encoding(
    run_against: RunAgainst, make_server: Any, encoding: str
) -> None:
    fake = make_server(offset=0.25)

    report = await run_against(fake, replace(LOAD, encoding=encoding, cases=(ONE,)))

    server = next(each for each in report.systems if each.label == "fake")
    assert server.largest_difference == pytest.approx(0.25)
    assert {body["encoding_format"] for body in fake.bodies} == {encoding}
    assert "up to 2.5e-01 from" in render_report(report)


async def test_failed_requests_are_counted_and_reported(
    run_against: RunAgainst, make_server: Any
) -> None:
    load = replace(LOAD, cases=(MANY,), rounds=1, seconds=0.02)

    report = await run_against(make_server(refuses=True), load)

    clients = find(report, "fake", MANY).clients
    assert (clients.num_requests, clients.num_errors) == (0, 4)
    assert report.list_failed() == ["fake"]
    assert "4 x HTTP 400: too many" in render_report(report)


async def test_a_server_that_gives_too_few_vectors_cannot_be_measured(
    run_against: RunAgainst, make_server: Any
) -> None:
    with raises_once(ServerUnusable, "fake"):
        await run_against(make_server(num_left_out=1))


async def test_a_server_that_never_answers_ends_with_the_time_limit(
    run_against: RunAgainst, make_server: Any
) -> None:
    report = await run_against(make_server(hangs=True), replace(LOAD, timeout=0.2))

    assert report.is_cut
    assert "cut by --timeout" in render_report(report)


def test_clients_behind_a_lock_wait_for_all_other_clients() -> None:
    waits = pooling.wait_behind_lock([1.0, 2.0, 4.0, 8.0], clients=2)

    assert waits == [1.0, 3.0, 6.0, 12.0]


def test_a_doubt_is_reported_if_the_server_counts_other_tokens() -> None:
    rounds = [Round(answers=[Timed(seconds=0.1, num_tokens=6)], wall_seconds=0.1)] * 2
    seen = report_case(ONE, rounds, rounds)

    assert seen.doubts == ("the server counts 6 tokens a request, not 5",)


async def test_saved_results_are_read_back_and_shown_side_by_side(
    run_against: RunAgainst, make_server: Any, tmp_path: Path
) -> None:
    paths = [tmp_path / "monday.json", tmp_path / "tuesday.json"]
    for path, case in zip(paths, (ONE, MANY)):
        save(path, await run_against(make_server(), replace(LOAD, cases=(case,))))

    merged = merge_reports(load_reports(paths, Report))
    save_plot(merged, tmp_path / "drawn.png")

    assert find(merged, "fake", ONE).clients.num_requests == 10
    assert find(merged, "fake (2)", MANY).clients.num_requests == 10
    assert merged.load.cases == (ONE, MANY)
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


# Overhead.


async def test_the_time_of_one_text_is_divided_into_model_http_and_the_rest(
    run_against: RunAgainst, make_server: Any
) -> None:
    fake = make_server()

    found = await run_against(fake, LOAD, pooling_overhead.measure, 3)

    assert {name: len(seconds) for name, seconds in found.items()} == {
        "server": 6,
        "encode": 6,
        "bare model": 6,
        "HTTP alone": 6,
    }
    # A round to warm up, and two that count.
    assert fake.num_refused == 3 * 3


def test_the_rest_is_the_time_without_model_and_http() -> None:
    found = {
        "server": [0.009, 0.01, 0.011],
        "encode": [0.008],
        "bare model": [0.004],
        "HTTP alone": [0.001],
    }

    rows = dict(pooling_overhead.build_table(found))

    assert (rows["server"], rows["the rest"]) == ("10.0", "5.00")


# Health.


async def test_health_and_the_loop_are_watched_beside_the_load(
    run_against: RunAgainst, make_server: Any
) -> None:
    fake = make_server()

    (seen,) = await run_against(
        fake, replace(LOAD, cases=(MANY,)), pooling_health.measure
    )

    assert fake.num_probes >= 2
    row = seen.write_row()
    assert row[0] == MANY.describe()
    assert row[-3:-1] == ["2-5", "0-2"]
    assert any("slow steps of some.task" in doubt for doubt in seen.list_doubts())
    assert "/health ms" in pooling_health.render([seen])


# sentence-transformers.


@pytest.mark.slow
def test_sentence_transformers_answers_each_kind_of_question(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It runs in this process: another one would take five seconds to import it."""
    save_tiny_encoder("bert", tmp_path)
    save_word_tokenizer(tmp_path)
    load = Load(
        model=str(tmp_path), max_model_len=64, num_threads=torch.get_num_threads()
    )
    texts = cases.write_texts(MANY, VOCABULARY, 0)
    questions = b"".join(
        msgspec.json.encode(encoder.Question(task=task, texts=texts)) + b"\n"
        for task in ("vectors", "encode", "forward")
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(questions)))
    encoder.main(encoder.write_encoder_command(load)[3:])
    answers = capfd.readouterr().out.splitlines()

    greeting = msgspec.json.decode(answers[0], type=encoder.Greeting)
    vectors = msgspec.json.decode(answers[1], type=encoder.Vectors).vectors
    assert [len(vector) for vector in vectors] == [32, 32, 32]
    for answer in answers[2:]:
        assert msgspec.json.decode(answer, type=encoder.Timing).seconds > 0
    assert len(answers) == 4
    assert "float32" in greeting.about
    assert greeting.vocabulary.words == list(WORDS)
    assert greeting.vocabulary.num_special_tokens == 2


def save_word_tokenizer(folder: Path) -> None:
    """Save a tokenizer that makes one token of every word."""
    words = ["[PAD]", "[CLS]", "[SEP]", *dict.fromkeys(WORDS)]
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
