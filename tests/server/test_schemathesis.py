"""A stranger's tool sends what /openapi.json allows, and what it forbids.

More of it, by hand, against any server (10,800 requests in 80 seconds):

    schemathesis run http://localhost:8000/openapi.json --phases coverage,fuzzing
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from pathlib import Path
import subprocess
import sys
from typing import Any, Final

from examples import is_thorough
import pytest
import trio

from trioserve.testing.server import open_fake_pooling_server, open_fake_server

pytestmark = [
    pytest.mark.slow,
    # .ci/run runs the tests with this mark once more, thoroughly.
    pytest.mark.hypothesis,
    pytest.mark.skipif(find_spec("schemathesis") is None, reason="needs schemathesis"),
]

# A request whose time limit is far below a second ends with 504, as it should. The hook
# names the served model, because otherwise all answers were 404.
CONFIG: Final = """
hooks = "{hooks}"

[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]
"""
HOOKS: Final = """
import schemathesis

@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and "model" in body:
        body["model"] = "fake"
    return body
"""
CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
START: Final = "from schemathesis.cli import schemathesis; schemathesis()"
POOLING: Final = "embed|pooling|classify|score|rerank"

Open = Callable[[Path], AbstractAsyncContextManager[Any]]


# Most of the time goes into the first example of each endpoint.
SERVERS: Final[list[tuple[Open, str]]] = [
    (open_fake_server, "--exclude-path-regex"),
    (open_fake_pooling_server, "--include-path-regex"),
]
NUM_EXAMPLES: Final = 4 if is_thorough() else 1


@pytest.mark.parametrize(
    ("open_server", "option"), SERVERS if is_thorough() else SERVERS[:1]
)
async def test_no_request_gets_an_answer_that_is_not_described(
    tokenizer_folder: Path, tmp_path: Path, open_server: Open, option: str
) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG.format(hooks=tmp_path / "hooks.py"))
    with trio.fail_after(100):
        async with open_server(tokenizer_folder) as server:
            done = await trio.run_process(
                [
                    *(sys.executable, "-c", START),
                    *("--config-file", str(config)),
                    *("run", f"{server.url}/openapi.json", option, POOLING),
                    *(
                        "--phases",
                        "fuzzing",
                        "--max-examples",
                        str(NUM_EXAMPLES),
                        "--no-color",
                    ),
                    *("--checks", ",".join(CHECKS), "--request-timeout", "20"),
                    "--generation-deterministic",
                ],
                cwd=tmp_path,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
    report = done.stdout.decode()
    assert done.returncode == 0, report
    assert "No test cases" not in report and " passed" in report
