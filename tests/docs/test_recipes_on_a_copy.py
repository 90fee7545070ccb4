"""Recipes of docs/architecture.rst, each made on a copy of the package, which then works.

A recipe is files that are written and lines that are put behind others. What must then be
true is asked in a process that imports the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.rst").read_text()


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A change, by the title of its section.

    Attributes:
      written: new files and their texts.
      added: by file, places in it and the texts that are put before them.
      most_files: files outside of docs/ and tests/ that the change may touch.
      check: what the changed code must do.
    """

    title: str
    written: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    most_files: int
    check: str


ASK = """
import json, trio
from trioserve.config import HttpConfig
from trioserve.http.state import ServerState
from trioserve.server.app import create_http_app
from trioserve.server.openapi import openapi_document
from trioserve.server.routes import ROUTES

async def ask(method, path):
    app = create_http_app(ServerState(config=HttpConfig()))
    answer = await app.test_client().open(path, method=method)
    return answer.status_code, json.loads(await answer.get_data())
"""

HANDLER = """
async def answer_greeting(state: ServerState, request: ScopedRequest) -> Response:
    return respond_json(Greeting(text="Hello!"))
"""

STRUCT = """class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    text: str
"""

ROW = """    Route(
        method="GET",
        paths=("/greeting",),
        handler=answer_greeting,
        summary="Greet.",
        answers={JSON: Greeting},
        dialect=%s,
    ),
"""

RECIPES = [
    Recipe(
        title="A new endpoint",
        added={
            "api/tokens/answers.py": {"class Tokenized(": STRUCT},
            "api/tokens/handler.py": {
                "from .answers import": "from .answers import Greeting\n",
                "def _build_tokenized(": HANDLER,
            },
            "api/tokens/routes.py": {
                "from .handler import": "from ...http.dialect import OPENAI\n"
                "from .answers import Greeting\nfrom .handler import answer_greeting\n",
                "    Route(\n": ROW % "OPENAI",
            },
        },
        most_files=3,
        check="""
assert trio.run(ask, "GET", "/greeting") == (200, {"text": "Hello!"})
assert "/greeting" in openapi_document("1", ROUTES)["paths"]
""",
    ),
    Recipe(
        title="A new dialect",
        written={
            "api/greetings/__init__.py": '"""A dialect that greets."""\n',
            "api/greetings/routes.py": f"""
import msgspec
from quart import Response

from ...errors import InvalidParameter
from ...http.dialect import Dialect
from ...http.route import Route
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import JSON, respond_json

{STRUCT}
class Regret(msgspec.Struct):
    sorry: str
{HANDLER}
async def refuse_greeting(state: ServerState, request: ScopedRequest) -> Response:
    raise InvalidParameter("text", "is rude")

GREETINGS = Dialect(
    error=Regret,
    describe=lambda error, request_id: Regret(str(error)),
    list_fields=lambda request_id, use: {{"Polite": "1"}},
    statuses={{400: 418}},
)
ROUTES = (
{ROW % "GREETINGS"}
    Route(
        method="POST",
        paths=("/greeting/rude",),
        handler=refuse_greeting,
        summary="Refuse.",
        dialect=GREETINGS,
    ),
)
""",
        },
        added={
            "server/routes.py": {
                "ROUTES: Final": "from ..api.greetings.routes import ROUTES as NEW\n",
                "    *_CHAT,": "    *NEW,\n",
            },
        },
        most_files=3,
        check="""
assert trio.run(ask, "GET", "/greeting") == (200, {"text": "Hello!"})
assert trio.run(ask, "POST", "/greeting/rude") == (418, {"sorry": "text: is rude"})
status, error = trio.run(ask, "GET", "/greeting/other")
assert status == 404 and list(error) == ["sorry"]
assert "Regret" in openapi_document("1", ROUTES)["components"]["schemas"]
""",
    ),
    Recipe(
        title="A new metric",
        added={
            "server/metrics/server.py": {
                '    GaugeMetric(\n        "trioserve_http_requests_active"': '    GaugeMetric("trioserve_greetings", "Greetings.", lambda state: 7),\n'
            }
        },
        most_files=1,
        check="""
from trioserve.server.metrics import render_metrics
async def render():
    return render_metrics(ServerState(config=HttpConfig()))
assert b"\\ntrioserve_greetings 7.0\\n" in trio.run(render)
""",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda each: each.title)
def test_a_change_takes_the_files_that_its_recipe_names(
    tmp_path: Path, recipe: Recipe
) -> None:
    package = tmp_path / "trioserve"
    unused = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "trioserve", package, ignore=unused)
    for name, text in recipe.written.items():
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(text)
    for name, texts in recipe.added.items():
        changed = (package / name).read_text()
        for place, text in texts.items():
            assert place in changed, f"{name} has no {place!r}"
            changed = changed.replace(place, text + place, 1)
        (package / name).write_text(changed)
    assert len({*recipe.written, *recipe.added}) <= recipe.most_files
    subprocess.run(
        [sys.executable, "-c", ASK + recipe.check],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=True,
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda each: each.title)
def test_the_page_has_the_recipe_and_names_its_files(recipe: Recipe) -> None:
    found = re.search(
        rf"\n{recipe.title}\n~+\n(.+?)(?=\n\n[^\n]+\n[~-]+\n)", PAGE, re.S
    )
    assert found is not None
    for name in recipe.added:
        assert name.rpartition("/")[2] in found[1] or str(Path(name).parent) in found[1]
