"""The table of endpoints: its documentation, and the app made from it."""

from __future__ import annotations

from pathlib import Path
import re

from trioserve.config import HttpConfig
from trioserve.http.state import ServerState
from trioserve.server.app import create_http_app
from trioserve.server.routes import ROUTES

PAGE = Path(__file__).parents[2] / "docs" / "api.rst"

# A path stands alone or after its method.
ENDPOINT = re.compile(r"``(?:(GET|POST|DELETE) )?(/[^`]*)``")


def read_rows() -> list[tuple[str, tuple[str, ...], str]]:
    """Return the method, the paths and the text of each row of the page's table."""
    section = PAGE.read_text().partition("\nEndpoints\n---")[2].partition("\n\n\n")[0]
    rows = []
    for row in section.split("\n   * - ")[2:]:
        endpoints, _, text = row.partition("\n     - ")
        found = ENDPOINT.findall(endpoints)
        paths = tuple(path for _, path in found)
        rows.append((found[0][0], paths, " ".join(text.split())))
    return rows


def test_the_page_has_a_row_for_each_route_and_no_other() -> None:
    assert [(method, paths) for method, paths, _ in read_rows()] == [
        (route.method, route.documented_paths) for route in ROUTES
    ]


def test_each_row_of_the_page_begins_with_the_summary() -> None:
    for route, (_, _, text) in zip(ROUTES, read_rows()):
        assert text.startswith(route.summary)


def test_the_app_serves_the_routes_and_nothing_else() -> None:
    app = create_http_app(ServerState(config=HttpConfig()))
    served = {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }
    assert served == {(route.method, path) for route in ROUTES for path in route.paths}


def test_no_path_is_in_two_rows() -> None:
    endpoints = [(route.method, path) for route in ROUTES for path in route.paths]
    assert len(endpoints) == len(set(endpoints))
