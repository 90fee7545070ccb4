"""Metrics of renderers: their workers, chat templates and forms of answers."""

from __future__ import annotations

from ...observe import CounterMetric, GaugeMetric, Rows
from ...render import PoolingRenderer, Renderer
from ...render.shared.structure import StructureCompiler
from ...render.workers.processes import TemplateProcesses

RENDERER: Rows[Renderer | PoolingRenderer] = (
    GaugeMetric(
        "trioserve_renderer_requests",
        "Requests that are being converted to tokens, or wait for that.",
        lambda renderer: renderer.room.statistics().num_requests,
    ),
    GaugeMetric(
        "trioserve_renderer_characters",
        "Characters of text in those requests.",
        lambda renderer: renderer.room.statistics().num_characters,
    ),
    CounterMetric(
        "trioserve_renderer_requests_refused_total",
        "Requests refused because too many requests or too much text waited for the "
        "renderer.",
        lambda renderer: renderer.room.num_refused,
    ),
    GaugeMetric(
        "trioserve_renderer_workers",
        "Renderer threads that may work at once.",
        lambda renderer: renderer.workers.statistics().workers,
    ),
    GaugeMetric(
        "trioserve_renderer_workers_busy",
        "Renderer threads that are working.",
        lambda renderer: renderer.workers.statistics().busy,
    ),
    GaugeMetric(
        "trioserve_renderer_calls_waiting",
        "Calls that wait for a renderer thread.",
        lambda renderer: renderer.workers.statistics().waiting,
    ),
    GaugeMetric(
        "trioserve_renderer_threads_abandoned",
        "Renderer threads that still run a call whose request is gone.",
        lambda renderer: renderer.workers.statistics().abandoned,
    ),
)

STRUCTURES: Rows[StructureCompiler] = (
    CounterMetric(
        "trioserve_structure_cache_hits_total",
        "Forms of structured output that had been compiled for an earlier request.",
        lambda structures: structures.num_hits,
    ),
    CounterMetric(
        "trioserve_structure_cache_misses_total",
        "Forms of structured output that had to be compiled.",
        lambda structures: structures.num_misses,
    ),
)

TEMPLATES: Rows[TemplateProcesses] = (
    GaugeMetric(
        "trioserve_template_processes",
        "Processes for chat templates that may work at once.",
        lambda processes: processes.statistics().processes,
    ),
    GaugeMetric(
        "trioserve_template_processes_busy",
        "Processes for chat templates that are working.",
        lambda processes: processes.statistics().busy,
    ),
    GaugeMetric(
        "trioserve_template_calls_waiting",
        "Chat templates that wait for a process.",
        lambda processes: processes.statistics().waiting,
    ),
    CounterMetric(
        "trioserve_template_processes_killed_total",
        "Processes killed because a chat template did not end.",
        lambda processes: processes.num_killed,
    ),
)
