"""The board, the alerts and Prometheus' file ask for metrics and labels that exist."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
import json
from pathlib import Path
import re
import shutil
import subprocess
import time
from typing import Any

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families
import promql_parser as promql
import pytest
import trio
import yaml

from trioserve.config import HttpConfig
from trioserve.testing.server import open_fake_server

DEPLOY = Path(__file__).parents[2] / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "trioserve.json").read_text())
ALERTS = yaml.safe_load((DEPLOY / "alerts.yml").read_text())

# Prometheus itself adds them.
FROM_PROMETHEUS = {"up": {"job", "instance"}}
LABELS_OF_TARGETS = {"job", "instance"}

# Grafana's values for its variables.
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*"}


def list_panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def list_expressions() -> dict[str, str]:
    """Return all queries by their place; the board's have its variables put in."""
    found = {}
    for panel in list_panels():
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = text
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            found[rule["alert"]] = rule["expr"]
    return found


EXPRESSIONS = list_expressions()


def walk(node: Any) -> Iterator[Any]:
    """Yield all parts of an expression."""
    yield node
    if isinstance(node, promql.Call):
        children = node.args
    elif isinstance(node, promql.BinaryExpr):
        children = [node.lhs, node.rhs]
    elif isinstance(node, promql.MatrixSelector):
        children = [node.vector_selector]
    elif isinstance(node, (promql.AggregateExpr, promql.ParenExpr)):
        children = [node.expr]
    else:
        assert isinstance(
            node, (promql.VectorSelector, promql.NumberLiteral)
        ), f"the test does not know {type(node)}"
        children = []
    for child in children:
        yield from walk(child)


def list_names(expression: str) -> tuple[dict[str, set[str]], set[str]]:
    """Return the metrics with the labels that select, and the labels that group."""
    metrics: dict[str, set[str]] = {}
    for node in walk(promql.parse(expression)):
        if isinstance(node, promql.VectorSelector):
            labels = {each.name for each in node.matchers.matchers}
            metrics.setdefault(node.name, set()).update(labels)
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    return metrics, {name.strip() for each in grouped for name in each.split(",")}


@pytest.fixture(scope="module")
def exported(
    tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, set[str]]:
    """The samples, with their labels, of a server that has answered and refused."""
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("ann one\nbatch two tokens_per_minute=1\n")
    text = trio.run(_scrape, tokenizer_folder, str(keys))
    samples: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def hold_the_loop() -> None:
    time.sleep(0.02)


async def _scrape(folder: Path, keys: str) -> str:
    body = {"prompt": "a", "max_tokens": 2}
    http = HttpConfig(api_key_file=keys)
    with trio.fail_after(60):
        async with (
            open_fake_server(folder, http=http) as server,
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        ):
            # `trioserve serve` adds it.
            trio.lowlevel.add_instrument(server.state.loop_stall)
            await trio.lowlevel.checkpoint()
            hold_the_loop()
            await trio.lowlevel.checkpoint()
            for key, status in (("one", 200), ("two", 200), ("two", 429)):
                headers = {"authorization": f"Bearer {key}"}
                answer = await client.post(
                    "/v1/completions", json=body, headers=headers
                )
                assert answer.status_code == status
            return (await client.get("/metrics")).text


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_each_name_of_a_query_exists(place: str, exported: dict[str, set[str]]) -> None:
    metrics, grouped = list_names(EXPRESSIONS[place])
    known = exported | FROM_PROMETHEUS
    for name, labels in metrics.items():
        assert name in known
        assert labels <= known[name] | LABELS_OF_TARGETS
        assert grouped <= known[name] | LABELS_OF_TARGETS


def test_a_name_that_does_not_exist_is_found(exported: dict[str, set[str]]) -> None:
    with pytest.raises(AssertionError):
        metrics, _ = list_names("sum(rate(trioserve_no_such_total[1m]))")
        assert set(metrics) <= set(exported)


@pytest.mark.parametrize("panel", list_panels(), ids=lambda panel: panel["title"])
def test_a_panel_names_only_labels_that_its_query_keeps(
    panel: dict[str, Any], exported: dict[str, set[str]]
) -> None:
    assert panel["description"]
    for target in panel["targets"]:
        used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        metrics, grouped = list_names(
            EXPRESSIONS[f"{panel['title']} {target['refId']}"]
        )
        if grouped or not re.match(r"trioserve_\w+\{", target["expr"]):
            assert used <= grouped
        else:
            assert used <= LABELS_OF_TARGETS


def test_the_board_has_no_two_panels_with_one_id_or_place() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_list_of_replicas_is_that_of_a_metric(
    exported: dict[str, set[str]],
) -> None:
    [variable] = [
        each for each in BOARD["templating"]["list"] if each["name"] == "instance"
    ]
    query = variable["query"]["query"]
    found = re.fullmatch(r"label_values\((\w+), instance\)", query)
    assert found is not None
    assert found[1] in exported


@cache
def find_promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs promtool (Debian: prometheus)")
    return program


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", str(DEPLOY / "prometheus.yml")),
        ("test", "rules", str(Path(__file__).parent / "alerts_test.yml")),
    ],
    ids=["config", "alerts"],
)
def test_prometheus_reads_the_files(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [find_promtool(), *arguments],
        check=False,
        timeout=60,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout


def test_each_alert_is_tried() -> None:
    tests = yaml.safe_load((Path(__file__).parent / "alerts_test.yml").read_text())
    fired = {
        each["alertname"]
        for test in tests["tests"]
        for each in test["alert_rule_test"]
        if each["exp_alerts"]
    }
    assert fired == {r["alert"] for group in ALERTS["groups"] for r in group["rules"]}
