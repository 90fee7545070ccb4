"""A whole server without a model, for tests that speak HTTP.

    async with open_fake_server(tokenizer_folder) as server:
        ...  # send requests to server.url; every answer repeats server.answer

Sockets, renderer, scheduler and engine are real; only the device is a fake.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
import math
from pathlib import Path

import hypercorn.trio
from tokenizers import Tokenizer
import trio

from ..config import HttpConfig, MediaConfig, RenderConfig
from ..engine.generation.core import LocalCore
from ..engine.generation.engine import TokenEngine
from ..engine.pooling.core import LocalPoolingCore
from ..engine.pooling.engine import TensorEngine
from ..frontend import PoolingEngine, TextEngine
from ..http.connection import guard_connections, make_config
from ..http.state import ServerState
from ..scheduler.generation.scheduler import Scheduler
from ..scheduler.pooling.scheduler import PoolingScheduler
from ..server.app import create_http_app
from ..types.adapter import AdapterFacts, AdapterSource
from ..types.logits import LogitsProcessor
from ..types.plan import StepPlan
from ..types.pooling import LongText, PoolingTask
from ..types.repetition import RepetitionDetection
from ..types.sentence import SentenceFolder
from .fake_device import (
    FakeDevice,
    FakeExecutor,
    FakeMemory,
    FakePoolingDevice,
    make_adapter,
    make_info,
    make_pooling_info,
)
from .processes import HostedCore
from .renderers import load_pooling_renderer, load_renderer

_MAX_RUNNING = 32
ANSWER = "The quick brown fox jumps over the lazy dog. "


@dataclass(frozen=True, kw_only=True)
class FakeServer:
    """A running server.

    Attributes:
      url: its address, as http://127.0.0.1:PORT.
      answer: the text of every sequence, or of the first one.
      answer_ids: the tokens of this text.
      device: its `plans` are all plans so far.
    """

    url: str
    port: int
    state: ServerState
    engine: TokenEngine
    answer: str
    answer_ids: tuple[int, ...]
    device: FakeDevice


def _read_answer(source: AdapterSource) -> str:
    return Path(source.path, "answer.txt").read_text()


@asynccontextmanager
async def open_fake_server(
    tokenizer_folder: Path,
    *,
    http: HttpConfig | None = None,
    render: RenderConfig | None = None,
    media: MediaConfig | None = None,
    step_seconds: float = 0.001,
    seconds_of: Callable[[StepPlan], float] | None = None,
    max_step_seconds: float = math.inf,
    fail_at_step: int | None = None,
    max_num_seqs: int = _MAX_RUNNING,
    max_queued_requests: int = 1000,
    max_queued_tokens: int | None = None,
    max_model_len: int = 256,
    hidden_size: int = 8,
    takes_images: bool = False,
    logits_processors: Sequence[type[LogitsProcessor]] = (),
    is_remote: bool = False,
    answer: str | Sequence[str] = ANSWER,
    eos_token: str | None = None,
    stop_repetition: RepetitionDetection | None = None,
    chat_template: str | None = None,
    read_adapter: Callable[[AdapterSource], str] = _read_answer,
    memory: FakeMemory | None = None,
) -> AsyncIterator[FakeServer]:
    """Serve until the block is left; the device does not call the plug-ins.

    Args:
      memory: given back during a sleep; None if sleep is not possible.
      is_remote: the core is behind a connection, as in an engine process.
      answer: the text of every sequence, or the texts of successive sequences with
        different seeds; the last one is repeated.
      read_adapter: returns the text of an adapter's sequences, or refuses to load it; by
        default the text is in its file answer.txt.
      eos_token: the token that ends it; None repeats it until max_tokens.
    """
    answers = [answer] if isinstance(answer, str) else answer
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    texts = [tuple(tokenizer.encode(text).ids) for text in answers]
    ends = () if eos_token is None else tuple(tokenizer.encode(eos_token).ids)
    adapters = _FakeAdapters(tokenizer, read_adapter)
    device = FakeDevice(
        _make_writer([text + ends for text in texts]),
        block_size=16,
        adapter_tokens=adapters.writers,
    )
    info = replace(
        make_info(
            max_model_len,
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=hidden_size,
            takes_images=takes_images,
        ),
        logits_processors=tuple(each.name for each in logits_processors),
        eos_token_ids=frozenset(ends),
        stop_repetition=stop_repetition,
    )
    executor = FakeExecutor(
        device.step,
        step_seconds=step_seconds,
        seconds_of=seconds_of,
        fail_at_step=fail_at_step,
        adapter_seconds=0.0,
        read_adapter=adapters.read,
        depth=2,
    )
    scheduler = _make_scheduler(max_num_seqs, max_model_len, max_step_seconds)
    core = LocalCore(scheduler, executor, info=info, memory=memory)
    engine = TokenEngine(
        HostedCore(core) if is_remote else core,
        info=info,
        max_num_sequences=max_num_seqs + max_queued_requests,
        max_num_running=max_num_seqs,
        max_queued_tokens=max_queued_tokens,
    )
    renderer = load_renderer(
        tokenizer_folder,
        render or RenderConfig(),
        info=info,
        media=media or MediaConfig(),
        chat_template=chat_template,
    )
    state = ServerState(config=_take_all_hosts(http or HttpConfig()))
    state.engine = TextEngine(engine, renderer, logits_processors)
    async with _open_server(state, engine) as port:
        yield FakeServer(
            url=f"http://127.0.0.1:{port}",
            port=port,
            state=state,
            engine=engine,
            answer=answers[0],
            answer_ids=texts[0],
            device=device,
        )


class _FakeAdapters:
    """Adapters that answer with texts of their own.

    Attributes:
      writers: the tokens of each adapter for a FakeDevice, by its number.
    """

    def __init__(
        self, tokenizer: Tokenizer, read: Callable[[AdapterSource], str]
    ) -> None:
        self._tokenizer = tokenizer
        self._read = read
        self.writers: dict[int, Callable[[int, int], int]] = {}

    def read(self, source: AdapterSource) -> AdapterFacts:
        text = self._read(source)
        ids = tuple(self._tokenizer.encode(text).ids)
        self.writers[source.number] = _make_writer([ids])
        digest = blake2b(text.encode(), digest_size=16).digest()
        return replace(make_adapter(source), digest=digest)


def _make_writer(texts: Sequence[tuple[int, ...]]) -> Callable[[int, int], int]:
    """Return the tokens of a FakeDevice: each new seed has the next text.

    The last text is repeated.
    """
    numbers: dict[int, int] = {}

    def write(seed: int, index: int) -> int:
        number = numbers.setdefault(seed, len(numbers)) if len(texts) > 1 else 0
        text = texts[min(number, len(texts) - 1)]
        return text[index % len(text)]

    return write


def _make_scheduler(
    max_num_seqs: int, max_model_len: int, max_step_seconds: float
) -> Scheduler:
    return Scheduler(
        num_blocks=max(1024, max_num_seqs * max_model_len // 16),
        block_size=16,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=256,
        max_model_len=max_model_len,
        max_step_seconds=max_step_seconds,
    )


@dataclass(frozen=True, kw_only=True)
class FakePoolingServer:
    """A running server.

    Attributes:
      url: its address, as http://127.0.0.1:PORT.
      device: it turns a text into the fake_vector of its tokens.
    """

    url: str
    port: int
    state: ServerState
    engine: TensorEngine
    device: FakePoolingDevice


@asynccontextmanager
async def open_fake_pooling_server(
    tokenizer_folder: Path,
    *,
    task: PoolingTask = "embed",
    num_outputs: int = 8,
    labels: tuple[str, ...] = (),
    matryoshka: tuple[int, ...] | None = None,
    sentence: SentenceFolder | None = None,
    http: HttpConfig | None = None,
    render: RenderConfig | None = None,
    long_texts: LongText = "refuse",
    step_seconds: float = 0.001,
    fail_at_step: int | None = None,
    max_queued_requests: int = 4096,
    max_queued_tokens: int | None = None,
    max_model_len: int = 256,
) -> AsyncIterator[FakePoolingServer]:
    """Serve a pooling model until the block is left."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    info = make_info(max_model_len, vocab_size=tokenizer.get_vocab_size())
    pooling = make_pooling_info(
        task, num_outputs=num_outputs, labels=labels, matryoshka=matryoshka
    )
    device = FakePoolingDevice(num_outputs)
    core = LocalPoolingCore(
        PoolingScheduler(max_num_seqs=_MAX_RUNNING, max_num_batched_tokens=256),
        FakeExecutor(device.step, step_seconds=step_seconds, fail_at_step=fail_at_step),
    )
    engine = TensorEngine(
        core,
        info=info,
        pooling=pooling,
        max_num_inputs=_MAX_RUNNING + max_queued_requests,
        max_queued_tokens=max_queued_tokens,
    )
    renderer = load_pooling_renderer(
        tokenizer_folder,
        render or RenderConfig(),
        info=info,
        pooling=pooling,
        sentence=sentence,
    )
    state = ServerState(config=_take_all_hosts(http or HttpConfig()))
    state.engine = PoolingEngine(engine, renderer, long_texts=long_texts)
    async with _open_server(state, engine) as port:
        yield FakePoolingServer(
            url=f"http://127.0.0.1:{port}",
            port=port,
            state=state,
            engine=engine,
            device=device,
        )


def _take_all_hosts(config: HttpConfig) -> HttpConfig:
    """Let clients name any host, as tests do, unless the test is about that."""
    return config if config.allowed_host else replace(config, allowed_host=("*",))


@asynccontextmanager
async def _open_server(
    state: ServerState, engine: TokenEngine | TensorEngine
) -> AsyncIterator[int]:
    """Run an engine and serve it on a free port."""
    guard_connections(state.config)
    with state.recording():
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            binds = await nursery.start(_serve, state)
            yield int(binds[0].rpartition(":")[2])
            nursery.cancel_scope.cancel()


async def _serve(
    state: ServerState,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    await hypercorn.trio.serve(
        create_http_app(state),
        make_config(bind=["127.0.0.1:0"]),
        shutdown_trigger=state.finish_drain,
        task_status=task_status,
    )
