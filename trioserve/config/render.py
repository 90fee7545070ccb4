"""Options of the renderer: text and images."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidConfig
from ..types.families import ReasoningParser, ToolCallParser
from .checks import FilePath, Size, check_at_least, check_seconds, parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderConfig:
    """Renderer workers: threads that turn messages into tokens.

    Args:
      renderer_num_workers: Threads that apply chat templates and tokenize. If there are
        several, long texts leave one to short ones. With one thread a short text waits
        for a long one that has begun.
      renderer_max_requests: Most requests that are being tokenized or wait for it;
        further ones are answered 429. The default is as for --max-queued-requests.
      renderer_max_text: Most text that is being tokenized or waits for it. Each
        character counts as one byte. Beyond the limit requests are answered 429. The
        default is the text of 4096 prompts of 8000 tokens. For models that pool, this
        limit and --renderer-max-requests count a request until it is answered.
      template_timeout: Longest run of the chat template for one request, in seconds.
        Time in the queue does not count. Then the request is refused.
      renderer_processes: Processes that run chat templates in place of threads. Long
        templates then do not slow down the event loop, and they end when their time is
        over.
      trust_request_chat_template: Take chat templates from requests. A template is a
        program: trust only clients that you would let run programs.
      enable_prompt_embeds: Take prompts as tensors of embeddings.
      reasoning_parser: Family of models whose tags mark the reasoning. Chats then have
        reasoning and answer in separate fields. none leaves the reasoning in the text.
      tool_call_parser: Family of models whose form tool calls have. Chats then have calls
        and text in separate fields. auto recognises the family by the chat template, if
        the template tells. none leaves calls in the text.
    """

    renderer_num_workers: int = 2
    renderer_max_requests: int = 4096
    renderer_max_text: Size = "128MiB"
    template_timeout: float = 10.0
    renderer_processes: int = 0
    trust_request_chat_template: bool = False
    enable_prompt_embeds: bool = False
    reasoning_parser: ReasoningParser = "none"
    tool_call_parser: ToolCallParser = "auto"

    def __post_init__(self) -> None:
        check_at_least("renderer_num_workers", self.renderer_num_workers, 1)
        check_at_least("renderer_max_requests", self.renderer_max_requests, 1)
        parse_bytes("renderer_max_text", self.renderer_max_text)
        check_seconds("template_timeout", self.template_timeout)
        check_at_least("renderer_processes", self.renderer_processes, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaConfig:
    """Images in requests: sources and limits.

    Args:
      max_images: Most images in one request; 0 refuses all.
      max_image_bytes: Longest encoded image.
      max_image_pixels: Largest decoded image, in pixels (width times height).
      allowed_media_domains: Hosts from which images are fetched, each written in full.
        Both http and https serve. By default images arrive as data URLs only. Private
        addresses are never contacted.
      allowed_local_media_path: Folder below which file URLs are read; by default none
        are.
      media_timeout: Longest fetch of one image, redirects included, in seconds;
        decoding may take as long again.
      media_num_connections: Images that are fetched at once.
      media_num_workers: Threads that decode images. One thread decodes images faster
        than the model's processor prepares them, and leaves a core to the event loop.
      max_images_memory: Memory for prepared images, their cache included; beyond it new
        images are answered 503. The model's processor prepares images.
      processor_cache_memory: Memory for the cache of prepared images; 0 keeps none. The
        cache finds images by content.
    """

    max_images: int = 16
    max_image_bytes: Size = "32MiB"
    max_image_pixels: int = 2**25
    allowed_media_domains: tuple[str, ...] = ()
    allowed_local_media_path: FilePath | None = None
    media_timeout: float = 10.0
    media_num_connections: int = 8
    media_num_workers: int = 1
    max_images_memory: Size = "4GiB"
    processor_cache_memory: Size = "512MiB"

    def __post_init__(self) -> None:
        check_at_least("max_images", self.max_images, 0)
        parse_bytes("max_image_bytes", self.max_image_bytes)
        check_at_least("max_image_pixels", self.max_image_pixels, 1)
        check_seconds("media_timeout", self.media_timeout)
        check_at_least("media_num_connections", self.media_num_connections, 1)
        check_at_least("media_num_workers", self.media_num_workers, 1)
        room = parse_bytes("max_images_memory", self.max_images_memory)
        if self.processor_cache_memory not in ("0", 0):
            kept = parse_bytes("processor_cache_memory", self.processor_cache_memory)
            if kept >= room:
                raise InvalidConfig(
                    "processor_cache_memory", "must be less than --max-images-memory"
                )
