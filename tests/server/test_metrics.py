"""GET /metrics of real servers, and the table of metrics in docs/metrics.rst."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
import re
from typing import Any

import docutils.core
import docutils.nodes
import httpx2 as httpx
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
import pytest
import trio
import trio_parallel

from trioserve.frontend.models.router import ModelEntry, ModelRouter
from trioserve.observe.exposition import collect_rows
from trioserve.render.workers.processes import TemplateProcesses
from trioserve.server.metrics import METRICS
from trioserve.server.metrics.models import MODELS
from trioserve.testing.processors import save_tiny_processor
from trioserve.testing.server import open_fake_pooling_server, open_fake_server

PAGE = Path(__file__).parents[2] / "docs" / "metrics.rst"

# Metrics that both servers have must keep vLLM's names, on which dashboards rely. Under
# these names another meaning would mislead a dashboard.
NAMES_OF_VLLM = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total"),
    *("mm_cache_queries_total", "mm_cache_hits_total", "num_preemptions_total"),
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total"),
    *("time_to_first_token_seconds", "inter_token_latency_seconds"),
    *("request_time_per_output_token_seconds", "e2e_request_latency_seconds"),
    *("request_queue_time_seconds", "request_inference_time_seconds"),
    *("request_prefill_time_seconds", "request_decode_time_seconds"),
    *("request_prompt_tokens", "request_generation_tokens"),
    *("request_params_n", "request_params_max_tokens"),
}


def name_family(family: Family) -> str:
    """Return a family's name as it stands in the text."""
    return f"{family.name}_total" if family.type == "counter" else family.name


async def scrape(url: str) -> list[Family]:
    async with httpx.AsyncClient(base_url=url, timeout=20) as client:
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return list(text_string_to_metric_families(answer.text))


def read_samples(families: Iterable[Family]) -> dict[str, float]:
    """Return all samples by name and labels, as they stand in the text."""
    return {
        sample.name
        + "".join(f'{{{key}="{value}"}}' for key, value in sample.labels.items()): (
            sample.value
        )
        for family in families
        for sample in family.samples
    }


def read_table() -> list[tuple[str, ...]]:
    """Return the rows of the page's table of metrics, without its head."""
    # Only the table is parsed: it has no sphinx markup.
    _, mark, text = PAGE.read_text().partition(".. list-table::")
    page = docutils.core.publish_doctree(mark + text)
    [table] = page.findall(docutils.nodes.table)
    rows = [
        tuple(
            " ".join(entry.astext().split())
            for entry in row.findall(docutils.nodes.entry)
        )
        for row in table.findall(docutils.nodes.row)
    ]
    return rows[1:]


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_processor("qwen2_vl", tmp_path_factory.mktemp("processor"))


async def scrape_generating(folder: Path) -> list[Family]:
    """Scrape a generating server with all optional parts, after a request."""
    async with open_fake_server(folder, takes_images=True) as server:
        engine = server.state.engine
        assert engine is not None
        async with trio_parallel.open_worker_context() as context:
            # No template needs a process here, so the pool starts none.
            engine.renderer.chats.processes = TemplateProcesses(context, 1)
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
                body = {"prompt": "Hello", "max_tokens": 3, "n": 2, "stream": True}
                await client.post("/v1/completions", json=body)
            return await scrape(server.url)


async def scrape_pooling(folder: Path) -> list[Family]:
    async with open_fake_pooling_server(folder) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            await client.post("/v1/embeddings", json={"input": [10, 11, 12]})
        return await scrape(server.url)


def test_the_page_has_the_rows_of_the_table() -> None:
    assert read_table() == [
        (each.name, each.kind, ", ".join(each.labels), each.help) for each in METRICS
    ]


def make_router() -> ModelRouter:
    """Make a router, which runs nothing."""
    return ModelRouter([ModelEntry(name="a", open_engine=Any)])


async def test_servers_export_the_documented_metrics_and_no_others(
    image_folder: Path, tokenizer_folder: Path
) -> None:
    with trio.fail_after(30):
        families = {
            name_family(family): family
            for family in (
                *await scrape_generating(image_folder),
                *await scrape_pooling(tokenizer_folder),
                *collect_rows(MODELS, make_router()),
            )
        }
    documented = {name: (kind, meaning) for name, kind, _, meaning in read_table()}
    assert {
        name: (family.type, family.documentation) for name, family in families.items()
    } == documented


def test_no_name_is_given_twice_and_all_have_a_sentence() -> None:
    names = [each.name for each in METRICS]
    assert len(names) == len(set(names))
    for each in METRICS:
        assert re.fullmatch(r"trioserve_[a-z0-9]+(_[a-z0-9]+)*", each.name)
        assert each.name.endswith("_total") == (each.kind == "counter")
        assert re.fullmatch(r"[A-Z0-9].+\.", each.help)


def test_metrics_that_vllm_has_too_have_its_names() -> None:
    assert {f"trioserve_{name}" for name in NAMES_OF_VLLM} <= {
        each.name for each in METRICS
    }


async def test_a_streamed_request_is_counted_and_timed(tokenizer_folder: Path) -> None:
    body = {"prompt": [10] * 40, "max_tokens": 3, "n": 2, "stream": True}
    with trio.fail_after(30):
        async with open_fake_server(tokenizer_folder) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
                await client.post("/v1/completions", json=body)
            samples = read_samples(await scrape(server.url))
    expected = {
        'http_requests_total{handler="/v1/completions"}{status="200"}': 1,
        'request_success_total{finished_reason="length"}': 2,
        'request_success_total{finished_reason="stop"}': 0,
        "prompt_tokens_total": 80,
        "generation_tokens_total": 6,
        "prefix_cache_queries_total": 80,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0,
        "time_to_first_token_seconds_count": 2,
        "request_time_per_output_token_seconds_count": 2,
        "e2e_request_latency_seconds_count": 1,
        "request_queue_time_seconds_count": 1,
        "request_prefill_time_seconds_count": 1,
        "request_decode_time_seconds_count": 1,
        "request_inference_time_seconds_count": 1,
        "request_prompt_tokens_sum": 40,
        "request_generation_tokens_sum": 6,
        "request_params_n_sum": 2,
        "request_params_max_tokens_sum": 3,
    }
    assert {name: samples[f"trioserve_{name}"] for name in expected} == expected
    # A request's phases add up to its time, except for the way in and out.
    total = samples["trioserve_request_inference_time_seconds_sum"]
    parts = ("prefill", "decode")
    assert sum(
        samples[f"trioserve_request_{part}_time_seconds_sum"] for part in parts
    ) == pytest.approx(total)
    queued = samples["trioserve_request_queue_time_seconds_sum"]
    latency = samples["trioserve_e2e_request_latency_seconds_sum"]
    assert 0 <= queued <= queued + total <= latency


async def test_a_pooling_request_is_counted_and_timed(tokenizer_folder: Path) -> None:
    with trio.fail_after(30):
        samples = read_samples(await scrape_pooling(tokenizer_folder))
    expected = {
        'http_requests_total{handler="/v1/embeddings"}{status="200"}': 1,
        "prompt_tokens_total": 3,
        "pooling_texts_total": 1,
        "e2e_request_latency_seconds_count": 1,
        "num_requests_open": 0,
    }
    assert {name: samples[f"trioserve_{name}"] for name in expected} == expected


async def test_no_series_tells_when_a_counter_was_created(
    tokenizer_folder: Path,
) -> None:
    with trio.fail_after(30):
        samples = read_samples(await scrape_pooling(tokenizer_folder))
    assert samples
    assert not [name for name in samples if "_created" in name]


def test_numbers_of_the_engine_are_not_added_up() -> None:
    """All HTTP processes have the same ones."""
    joins = {each.name: each.joins for each in METRICS}
    assert joins["trioserve_steps_total"] == joins["trioserve_kv_cache_blocks"] == "own"
    assert joins["trioserve_num_prompt_tokens_waiting"] == "own"
    assert joins["trioserve_num_requests_open"] == "sum"
    assert joins["trioserve_key_tokens_total"] == "sum"
    assert joins["trioserve_slow_task_longest_seconds"] == "max"
