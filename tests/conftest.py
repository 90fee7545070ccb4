"""Settings and fixtures for the tests of all rooms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack
import functools
import gc
import logging
import os
from pathlib import Path
import sys
from typing import TYPE_CHECKING, Any

import _pytest.logging
from certificates import make_certificate
from examples import THOROUGH
import httpcore2
import httpx2 as httpx
import hypercorn.protocol
import hypercorn.protocol.h2
import hypercorn.trio.run
from hypothesis import settings
import pytest
import trio
from warm_start import WarmClient, warm_start
from xdist.scheduler import LoadFileScheduling

from trioserve.http.connection import guard
from trioserve.kernels.library import NoKernels, open_library
from trioserve.testing import renderers
from trioserve.testing.tokenizer import tiny_tokenizer

if TYPE_CHECKING:
    from trioserve.render.generation.loading import TextParts
    from trioserve.testing.server import FakeServer

# No deadlines, because the machine may be busy and no test is about them.
settings.register_profile(THOROUGH, deadline=None)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("quick")

# Some eighty processes of the tests import trioserve. They keep what they have compiled of
# it, in __pycache__, even where a machine's setting says otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Processes compute in one thread, if a test does not ask for more. The models are tiny: two
# threads only wait for each other, and they spin meanwhile on cores that servers and the
# other process of pytest need. OpenMP reads the number when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

# Kernels for GPUs are run by Triton's interpreter. It is chosen before triton is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# One process of pytest runs these, because some share a server, and the others import
# Anthropic's client, for two seconds.
SERVER = (
    "tests/api/anthropic/test_messages.py",
    "tests/docs/test_fields.py",
    "tests/docs/test_programs.py",
    "tests/e2e/test_anthropic_client.py",
    "tests/e2e/test_logits_processors.py",
    "tests/e2e/test_openai_client.py",
    "tests/e2e/test_run_batch.py",
    "tests/e2e/test_structured.py",
    "tests/http/keys/test_keys.py",
    "tests/http/streams/test_keepalive.py",
    "tests/server/test_agent.py",
)

# And these, because they import sentence-transformers, for another two seconds.
SENTENCES = (
    "tests/bench/test_pooling.py",
    "tests/e2e/test_pooling",
    "tests/model/encoder/test_encoding_heads.py",
    "tests/model/pooling/",
    "tests/render/pooling/test_sentence_folders.py",
)

# One process runs each of these, because its tests share a library that takes half a minute
# to compile, a server, or a browser.
TOGETHER = (SERVER, SENTENCES, "tests/kernels/", "tests/clients/", "tests/ui/")

# These take longest, so they begin first; the others fill the gaps.
LONGEST = (
    *("tests/kernels/", "tests/e2e/", "tests/server/test_schemathesis.py"),
    *("tests/ui/", "tests/clients/", "tests/deploy/", "tests/http/connection/"),
    *("tests/docs/test_programs.py", "tests/whole_server/"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--list-skipped",
        type=Path,
        metavar="FILE",
        help="write what is skipped to a file, which `pytest @FILE` takes; .ci/run uses it",
    )
    parser.addoption(
        "--never-skip",
        action="append",
        default=[],
        metavar="TEXT",
        help="a test that is skipped for a reason with this text fails; .ci/run uses it",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, leave out the files and folders without such tests.

    The clients and the oracles that they import need not be on a machine with a GPU.
    """
    if config.getoption("markexpr") != "gpu":
        return None
    return None if collection_path in _list_gpu_paths() else True


@functools.cache
def _list_gpu_paths() -> set[Path]:
    files = Path(__file__).parent.rglob("test_*.py")
    marked = {path for path in files if "pytest.mark.gpu" in path.read_text()}
    return marked.union(*(path.parents for path in marked))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if any(text in reason for text in item.config.getoption("--never-skip")):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} must run here: {reason}"
    return report


class _SkippedList:
    """Lists skipped tests, and files of tests, in the process that starts the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: set[str] = set()

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped:
            self._names.add(report.nodeid)

    pytest_runtest_logreport = pytest_collectreport = _add

    def pytest_sessionfinish(self) -> None:
        self._path.write_text("".join(f"{name}\n" for name in sorted(self._names)))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--list-skipped")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SkippedList(path))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the processes that run the tests by forks, too: torch is imported once."""
    if session.config.pluginmanager.hasplugin("dsession"):
        stack = ExitStack()
        stack.enter_context(warm_start())
        session.config.add_cleanup(stack.close)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Run the whole suite in three processes, and a part of it in one.

    On two cores the third computes while another waits for a server. Each has to collect
    all tests, which takes longer than the tests of most files.
    A machine with a GPU runs one process, because tests measure the GPU's free memory.
    """
    folder = Path(__file__).parent
    is_whole = folder in (config.invocation_params.dir / arg for arg in config.args)
    return 3 if is_whole and not Path("/dev/nvidiactl").exists() else 0


class _Scheduling(LoadFileScheduling):
    """Gives whole files, whose tests share models, to a process, and some groups of files."""

    def _split_scope(self, nodeid: str) -> str:
        for number, group in enumerate(TOGETHER):
            if nodeid.startswith(group):
                return str(number)
        return super()._split_scope(nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    for number, prefix in enumerate(LONGEST):
        if item.nodeid.startswith(prefix):
            return number
    return len(LONGEST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _Scheduling(config, log)


# How many modules the garbage collector leaves alone.
_num_frozen = 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from imported objects, as a running server does.

    A collection of all objects of torch and transformers takes half a second. Together
    they take a quarter of the time of the imports, and a sixth of the whole run. Young
    objects are collected less often: that took a tenth of the tests of the API.
    """
    global _num_frozen
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        _num_frozen = len(sys.modules)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Freeze also what tests import, if it is much, and end threads of torch."""
    global _num_frozen
    if torch := sys.modules.get("torch"):
        # A test may have chosen more. They would spin in all tests after it.
        torch.set_num_threads(1)
    if len(sys.modules) > _num_frozen + 300:
        gc.collect()
        gc.freeze()
        _num_frozen = len(sys.modules)


@pytest.fixture(scope="session", autouse=True)
def helper() -> Iterator[WarmClient]:
    """Start most processes of trioserve by a fork, without the seconds of their imports.

    These are real executions: the server of tests/e2e/conftest.py with its engine process,
    and wherever a test asks for `executable`.
    """
    with warm_start() as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Generator[None, object, object]:
    """Do once what servers and clients of all tests would repeat.

    These are no fixtures, because each costs 0.1 ms in each of 6,000 tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        _share_certificates(patch)
        _share_parts(patch)
        _watch_few_loggers(patch)
        return (yield)


def _share_certificates(patch: pytest.MonkeyPatch) -> None:
    """Let all clients of HTTP read the system's certificates once.

    A client would read them when it is made, which is half of the processor time of a
    test of the API.
    """
    read = functools.cache(httpcore2.default_ssl_context)
    patch.setattr(httpcore2, "default_ssl_context", read)


def _share_parts(patch: pytest.MonkeyPatch) -> None:
    """Let all servers share what they would read again: a third of the start of most."""
    read = renderers.load_text_parts
    read_once = functools.cache(read)

    def load(*args: Any, **options: Any) -> TextParts:
        # Parts that prepare images keep them.
        is_shared = options["image_refusal"] is not None
        return (read_once if is_shared else read)(*args, **options)

    patch.setattr(renderers, "load_text_parts", load)


def _watch_few_loggers(patch: pytest.MonkeyPatch) -> None:
    """Let pytest look for records at the root and at transformers alone.

    It would walk over all loggers, and a hundred of torch do not propagate. It does so six
    times in each test, for 2 ms.
    """

    def enter(self: Any) -> Any:
        if self.level is not None:
            return original(self)
        self.attached_loggers += [logging.root, logging.getLogger("transformers")]
        for logger in self.attached_loggers:
            logger.addHandler(self.handler)
        return self.handler

    original = _pytest.logging.catching_logs.__enter__
    patch.setattr(_pytest.logging.catching_logs, "__enter__", enter)
    patch.setattr(guard, "version", functools.cache(guard.version))
    patch.setattr(guard, "signature", functools.cache(guard.signature))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with fullchain.pem and privkey.pem of localhost."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server_options() -> dict[str, Any]:
    """Options of `server` in files whose options need other fixtures."""
    return {}


@pytest.fixture
async def server(
    request: pytest.FixtureRequest,
    tokenizer_folder: Path,
    server_options: dict[str, Any],
) -> AsyncIterator[FakeServer]:
    """A server without a model.

    The mark `server` has options of open_fake_server, or `open`, another such function.
    """
    # It imports torch, which most tests do without.
    from trioserve.testing.server import open_fake_server

    options: dict[str, Any] = {"open": open_fake_server} | server_options
    for mark in reversed([*request.node.iter_markers("server")]):
        options |= mark.kwargs
    open_server = options.pop("open")
    async with open_server(tokenizer_folder, **options) as server:
        with trio.fail_after(60):
            yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `server`."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def needs_kernels() -> None:
    """Skip a test where the native kernels cannot run."""
    try:
        open_library()
    except NoKernels as error:
        pytest.skip(str(error))


_HYPERCORN = [
    (module, name, getattr(module, name))
    for module, name in (
        (hypercorn.trio.run, "TCPServer"),
        (hypercorn.protocol, "H11Protocol"),
        (hypercorn.protocol, "H2Protocol"),
        (hypercorn.protocol.h2, "StreamBuffer"),
    )
]


@pytest.fixture(autouse=True)
def restored_hypercorn() -> Iterator[None]:
    """Undo install_guard behind each test: it replaces these classes of hypercorn."""
    yield
    for module, name, value in _HYPERCORN:
        setattr(module, name, value)


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Hide other tests' objects from the collector, as a ready server does."""
    gc.collect()
    gc.freeze()
