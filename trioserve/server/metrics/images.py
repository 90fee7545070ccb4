"""Metrics of images."""

from __future__ import annotations

from ...observe import CounterMetric, GaugeMetric, Rows
from ...render.images.renderer import ImageRenderer

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
