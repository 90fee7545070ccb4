"""Metrics of rendering: its workers, structured output, templates and images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...observe.exposition import CounterMetric, GaugeMetric, Rows
from ...render import PoolingRenderer, Renderer
from ...render.shared.structure import StructureCompiler
from ...render.workers.processes import TemplateProcesses

if TYPE_CHECKING:
    # It imports PIL, which few models need.
    from ...render.images.renderer import ImageRenderer

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


IMAGES: Rows[ImageRenderer] = (
    CounterMetric(
        "trioserve_mm_cache_queries_total",
        "Images looked up in the cache of prepared images.",
        lambda images: images.num_hits + images.num_misses,
    ),
    CounterMetric(
        "trioserve_mm_cache_hits_total",
        "Images found in the cache of prepared images.",
        lambda images: images.num_hits,
    ),
    GaugeMetric(
        "trioserve_mm_cache_images",
        "Images in the cache of prepared images.",
        lambda images: images.statistics().entries,
    ),
    GaugeMetric(
        "trioserve_mm_cache_bytes",
        "Bytes of the images in the cache of prepared images.",
        lambda images: images.statistics().num_bytes,
    ),
    GaugeMetric(
        "trioserve_images_bytes",
        "Bytes of all prepared images in memory: in the cache, a request or a step.",
        lambda images: images.num_held_bytes,
    ),
    GaugeMetric(
        "trioserve_media_workers",
        "Threads that may load and decode images at once.",
        lambda images: images.statistics().media.workers,
    ),
    GaugeMetric(
        "trioserve_media_workers_busy",
        "Threads that load and decode images.",
        lambda images: images.statistics().media.busy,
    ),
    GaugeMetric(
        "trioserve_media_calls_waiting",
        "Images that wait for a thread to load or decode them.",
        lambda images: images.statistics().media.waiting,
    ),
    GaugeMetric(
        "trioserve_media_threads_abandoned",
        "Threads that still load or decode an image whose request is gone.",
        lambda images: images.statistics().media.abandoned,
    ),
    GaugeMetric(
        "trioserve_image_processor_busy",
        "1 while the thread that prepares images for the model works, else 0.",
        lambda images: images.statistics().processing.busy,
    ),
    GaugeMetric(
        "trioserve_image_processor_calls_waiting",
        "Images that wait to be prepared for the model.",
        lambda images: images.statistics().processing.waiting,
    ),
    GaugeMetric(
        "trioserve_image_processor_threads_abandoned",
        "Threads that still prepare an image whose request is gone.",
        lambda images: images.statistics().processing.abandoned,
    ),
)
