"""Requests of Ollama's API: one frozen struct for each endpoint.

Source: the types of Ollama's Python client 0.6 and of its server (api/types.go). Ranges of
sampling numbers are checked as in chats, after `chat.py` has made a chat of the request.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from ...errors import InvalidParameter, NotSupported
from ...frontend import MAX_STOP_STRINGS
from ..decode.fields import Int64, ModelRequest, Name, StopString
from ..decode.values import begins_with, has_value
from ..pooling.requests import MAX_INPUTS
from ..shared.messages import MAX_MESSAGES, MAX_PARTS
from ..shared.structured import JsonSchemaFormat, ResponseFormat
from ..shared.tools import ToolChoice

# As Go's ParseDuration, and plain seconds.
_DURATION: Final = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)?)+")
_LONGEST_DURATION: Final = 64

Effort = Literal["low", "medium", "high", "max"]
Images = Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MAX_PARTS)]


class OllamaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling of an answer; of the same names as in chats, unless it says otherwise.

    Args:
      repeat_penalty: repetition_penalty of chats.
      seed: -1 draws a fresh one, as no seed does.
      num_predict: the most tokens of the answer; -1 and -2 let it fill the context.
      num_ctx: the context that the client needs. The model's is as long or longer.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    num_predict: Int64 | None = None
    num_ctx: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    stop: (
        StopString
        | Annotated[tuple[StopString, ...], Meta(max_length=MAX_STOP_STRINGS)]
        | None
    ) = None

    def __post_init__(self) -> None:
        number = self.num_predict
        if number is not None and (number < -2 or number == 0):
            raise InvalidParameter(
                "options.num_predict", "must be -2, -1 or at least 1"
            )


class OllamaFunction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The function of an earlier call; `arguments` is an object."""

    name: Name
    arguments: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class OllamaCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that the assistant made earlier in the conversation."""

    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn of a conversation.

    Args:
      images: in base64, without the head of a data URL.
      tool_name: the tool whose result this is.
    """

    role: Name
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: Annotated[tuple[OllamaCall, ...], Meta(max_length=MAX_PARTS)] | None = (
        None
    )
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaRequest(ModelRequest, frozen=True, kw_only=True):
    """The fields of all requests to a model.

    Args:
      keep_alive: seconds, or a duration such as 5m. The model stays longer.
    """

    model: Name
    keep_alive: float | str | None = None

    def __post_init__(self) -> None:
        text = self.keep_alive
        if isinstance(text, str) and not (
            len(text) <= _LONGEST_DURATION and _DURATION.fullmatch(text)
        ):
            raise InvalidParameter(
                "keep_alive", "must be a number of seconds or a duration such as 5m"
            )

    def check_load(self) -> None:
        """Refuse a request that only unloads the model.

        Raises:
          NotSupported
        """
        kept = self.keep_alive
        is_zero = not re.search("[1-9]", kept) if isinstance(kept, str) else kept == 0
        if is_zero:
            raise NotSupported(
                "keep_alive", "POST /models/unload unloads one of several models"
            )


class OllamaGeneration(OllamaRequest, frozen=True, kw_only=True):
    """The fields of both endpoints that generate.

    Args:
      stream: by default an answer is streamed.
      format: json, or a JSON schema, which stays bytes.
      think: whether the model reasons before its answer, or how much.
      temperature, top_p, max_output_tokens: as temperature, top_p and num_predict of
        `options`, which come first. The provider of the Vercel AI SDK sends them here.
    """

    stream: bool | None = None
    format: msgspec.Raw | None = None
    options: OllamaOptions | None = None
    think: bool | Effort | None = None
    logprobs: bool | None = None
    top_logprobs: Int64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None

    @property
    def is_streamed(self) -> bool:
        return self.stream is not False

    @property
    def response_format(self) -> ResponseFormat | None:
        """The form of the answer in the words of chats.

        Raises:
          InvalidParameter: it is neither json nor a schema.
        """
        sent = self.format
        if sent is None or not has_value(sent) or bytes(memoryview(sent)[:3]) == b'""':
            return None
        if begins_with(sent, b"{"):
            return ResponseFormat(
                type="json_schema", json_schema=JsonSchemaFormat(schema=sent)
            )
        if bytes(memoryview(sent)[:7]) == b'"json"':
            return ResponseFormat(type="json_object")
        raise InvalidParameter("format", 'must be "json" or a JSON schema')


class OllamaChatRequest(OllamaGeneration, frozen=True, kw_only=True):
    """The body of POST /api/chat; without messages it loads the model.

    Args:
      tool_choice: as in chats; Ollama has nothing of the kind, but the provider of the
        Vercel AI SDK sends it.
    """

    messages: (
        Annotated[tuple[OllamaMessage, ...], Meta(max_length=MAX_MESSAGES)] | None
    ) = None
    tools: tuple[dict[str, object], ...] | None = None
    tool_choice: ToolChoice | None = None


class GenerateRequest(OllamaGeneration, frozen=True, kw_only=True):
    """The body of POST /api/generate; without a prompt it loads the model.

    Args:
      suffix: the text behind the answer, for models that fill in the middle.
      system: the message before the prompt.
      raw: the prompt is not put into the chat template.
    """

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    images: Images | None = None
    raw: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_plain:
            cause = "raw" if self.raw else "suffix"
            for name in ("system", "images", "think"):
                if getattr(self, name):
                    raise InvalidParameter(name, f"is not taken with {cause}")

    @property
    def is_plain(self) -> bool:
        """True if the prompt is continued without the chat template."""
        return bool(self.raw or self.suffix)

    @property
    def is_empty(self) -> bool:
        return not (self.prompt or self.suffix or self.images)


class EmbedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a model that embeds; see OllamaOptions."""

    num_ctx: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None


class OllamaEmbedRequest(OllamaRequest, frozen=True, kw_only=True):
    """The body of POST /api/embed; without texts it loads the model.

    Args:
      truncate: texts that are too long are cut (the default), or refused.
    """

    input: str | Annotated[tuple[str, ...], Meta(max_length=MAX_INPUTS)] | None = None
    truncate: bool | None = None
    dimensions: Int64 | None = None
    options: EmbedOptions | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        if isinstance(self.input, str):
            return (self.input,) if self.input else ()
        return self.input or ()


class OllamaEmbeddingRequest(OllamaRequest, frozen=True, kw_only=True):
    """The body of POST /api/embeddings; without a prompt it loads the model."""

    prompt: str | None = None
    options: EmbedOptions | None = None


class ShowRequest(ModelRequest, frozen=True, kw_only=True):
    """The body of POST /api/show.

    Args:
      name: the former name of `model`.
      verbose: changes nothing, because the answer has no long fields.
    """

    name: Name | None = None
    verbose: bool | None = None

    def __post_init__(self) -> None:
        if self.model is None and self.name is None:
            raise InvalidParameter("model", "is required")
