"""The recipes of docs/architecture.rst: their files are right, and what they say works.

Some name the files in which the code has an example. The others are made on a copy of the
package: files that are written, and lines that are put before others. What must then be true
is asked in a process that imports the copy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
import shutil
import subprocess

import pytest
from warm_start import FORK

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "trioserve"
PAGE = (ROOT / "docs" / "architecture.rst").read_text()


def read_recipe(title: str) -> set[str]:
    """Return the files in the list of a section."""
    _, _, section = PAGE.partition(f"\n{title}\n~~~")
    items = re.findall(
        r"^\* ``([a-z_/0-9]+\.py)``", section.partition("\n~~~")[0], re.M
    )
    assert items, f"{title} has a list of files"
    return set(items)


def find_uses(name: str) -> Iterator[str]:
    """Yield the files that use a name, in code or as a whole string."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if name in text and any(
            name
            in (
                getattr(node, "id", None),
                getattr(node, "attr", None),
                getattr(node, "arg", None),
                getattr(node, "value", None),
            )
            for node in ast.walk(ast.parse(text))
        ):
            yield path.relative_to(PACKAGE).as_posix()


def find_sampling_field() -> set[str]:
    """Return the files of min_p, which has all that a field can have."""
    # A flag, and what other APIs take or advise, are a choice for each field.
    others = {"programs/chat/config.py", "api/anthropic/body.py"}
    others |= {f"api/ollama/{name}.py" for name in ("body", "chat", "requests")}
    kernels = {
        path.relative_to(PACKAGE).as_posix()
        for path in (PACKAGE / "kernels" / "triton").glob("*.py")
        if "MIN_P" in path.read_text()
    }
    return {*find_uses("min_p"), *kernels} - others


def find_vision_family() -> set[str]:
    """Return the files of SmolVLM, a family that takes images."""
    # Its processor of images is tiny, too, which is for tests alone.
    return {*find_uses("smolvlm")} - {"testing/processors.py"}


def find_capability() -> set[str]:
    """Return the files of a fact about a decoder that few models have."""
    return {*find_uses("logit_softcap")}


# The title of a section, and the files by the code. No change needs more files.
EXAMPLES: dict[str, tuple[Callable[[], set[str]], int]] = {
    "A new sampling field": (find_sampling_field, 6),
    "A new capability of decoders": (find_capability, 5),
    "A new model family": (find_vision_family, 2),
}


@pytest.mark.parametrize(("title", "recipe"), EXAMPLES.items())
def test_a_recipe_names_the_files_of_a_change(
    title: str, recipe: tuple[Callable[[], set[str]], int]
) -> None:
    find_files, most = recipe
    assert read_recipe(title) == find_files()
    assert len(read_recipe(title)) <= most


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


# A fork has imported the package, and what it needs.
ASK = """
import sys
for name in [*sys.modules]:
    if name.partition(".")[0] == "trioserve":
        del sys.modules[name]
import json, trio
import trioserve
assert trioserve.__path__ == [f"{sys.path[0]}/trioserve"]
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
        paths=("%s",),
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
                "from .handler import": "from ...http.route import OPENAI\n"
                "from .answers import Greeting\nfrom .handler import answer_greeting\n",
                "    Route(\n": ROW % ("/greeting", "OPENAI"),
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
from ...http.route import Dialect
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
{ROW % ("/polite", "GREETINGS")}
    Route(
        method="POST",
        paths=("/polite/rude",),
        handler=refuse_greeting,
        summary="Refuse.",
        dialect=GREETINGS,
    ),
)
""".replace(
                "Greeting", "Welcome"
            ).replace(
                "_greeting", "_welcome"
            ),
        },
        added={
            "server/routes.py": {
                "ROUTES: Final": "from ..api.greetings.routes import ROUTES as NEW\n",
                "    *_CHAT,": "    *NEW,\n",
            },
        },
        most_files=3,
        check="""
assert trio.run(ask, "GET", "/polite") == (200, {"text": "Hello!"})
assert trio.run(ask, "POST", "/polite/rude") == (418, {"sorry": "text: is rude"})
status, error = trio.run(ask, "GET", "/polite/other")
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
def test_changes_take_the_files_that_their_recipes_name(tmp_path: Path) -> None:
    """All are made on one copy, because each process imports the whole server."""
    package = tmp_path / "trioserve"
    # Python's caches come along: they are valid, because a copy keeps the times of files.
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("*.so"))
    for recipe in RECIPES:
        assert len({*recipe.written, *recipe.added}) <= recipe.most_files
        for name, text in recipe.written.items():
            (package / name).parent.mkdir(exist_ok=True)
            (package / name).write_text(text)
        for name, texts in recipe.added.items():
            changed = (package / name).read_text()
            for place, text in texts.items():
                assert place in changed, f"{name} has no {place!r}"
                changed = changed.replace(place, text + place, 1)
            (package / name).write_text(changed)
    subprocess.run(
        [*FORK, "-c", ASK + "".join(each.check for each in RECIPES)],
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
