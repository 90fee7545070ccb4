"""From a request of Ollama's API to the chat, or the completion, that the server answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from ...errors import InvalidParameter, NotSupported
from ...frontend import PoolingEngine, TextEngine
from ..chat.request import ChatRequest
from ..completions.request import CompletionRequest
from ..shared.generation import renaming
from .requests import (
    EmbedOptions,
    GenerateRequest,
    OllamaChatRequest,
    OllamaGeneration,
    OllamaMessage,
    OllamaOptions,
)

# The fields that have the same name in chats.
_SAME: Final = (
    *("temperature", "top_p", "top_k", "min_p", "stop"),
    *("presence_penalty", "frequency_penalty"),
)

# Fields beside `options`, with their names in it.
_BESIDE: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_output_tokens": "num_predict",
}

# The names of fields that are called otherwise in chats, for errors.
_CLIENT_NAMES: Final[Mapping[str, str]] = {
    **{name: f"options.{name}" for name in (*_SAME, "seed")},
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
    "thinking_token_budget": "think",
}


def check_context(
    options: OllamaOptions | EmbedOptions | None, engine: TextEngine | PoolingEngine
) -> None:
    """Refuse a longer context than the model has.

    Raises:
      InvalidParameter
    """
    limit = engine.info.max_model_len
    if options is not None and (options.num_ctx or 0) > limit:
        raise InvalidParameter(
            "options.num_ctx", f"the model's context has {limit} tokens here"
        )


def to_chat_request(body: OllamaGeneration, engine: TextEngine) -> ChatRequest:
    """Make a chat of a request. It has no messages; OllamaMappings has them.

    Raises:
      RequestError: the chat is refused; `explain_fields` changes the names in its message.
    """
    fields: dict[str, Any] = {
        **_read_options(body),
        **_read_thinking(body, engine),
        "messages": (),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
    }
    if isinstance(body, OllamaChatRequest):
        last = body.messages[-1] if body.messages else None
        # A model goes on where the last message ends, if that is its own.
        continues = last is not None and last.role.lower() == "assistant"
        fields |= {
            "tools": body.tools,
            "tool_choice": body.tool_choice,
            "continue_final_message": continues,
        }
    return ChatRequest(**fields)


def to_completion_request(body: GenerateRequest) -> CompletionRequest:
    """Make a completion of a prompt that is not put into the chat template.

    Raises:
      RequestError: as to_chat_request.
    """
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs", "is only taken with logprobs=true")
    return CompletionRequest(
        **_read_options(body),
        prompt=body.prompt or "",
        suffix=body.suffix,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


def list_messages(body: GenerateRequest) -> list[OllamaMessage]:
    """Return the conversation of a prompt."""
    prompt = OllamaMessage(role="user", content=body.prompt, images=body.images)
    if not body.system:
        return [prompt]
    return [OllamaMessage(role="system", content=body.system), prompt]


def explain_fields(
    locate: Callable[[str], str] = lambda name: name,
    body: OllamaGeneration | None = None,
) -> AbstractContextManager[None]:
    """Name fields as Ollama's API does in errors that leave the block.

    Args:
      locate: finds the parts of messages.
      body: may have fields beside its options.
    """
    beside = [] if body is None else _list_beside(body)

    def find_name(name: str) -> str:
        if name in beside:
            return name
        if name.startswith("response_format"):
            return "format"
        if name.startswith("stop["):
            return f"options.{name}"
        return locate(_CLIENT_NAMES.get(name, name))

    return renaming(find_name)


def locate_prompt(body: GenerateRequest, name: str) -> str:
    """Return the client's name of a field of the messages that list_messages returns."""
    prompt = "messages[1]" if body.system else "messages[0]"
    if name.startswith("messages[0]") and body.system:
        return "system"
    if name.startswith(f"{prompt}.images"):
        return name.removeprefix(f"{prompt}.")
    return "prompt" if name.startswith("messages") else name


def _list_beside(body: OllamaGeneration) -> list[str]:
    """List the fields beside `options` that count, because it does not have them."""
    options = body.options or OllamaOptions()
    return [
        name
        for name, inside in _BESIDE.items()
        if getattr(body, name) is not None and getattr(options, inside) is None
    ]


def _read_options(body: OllamaGeneration) -> dict[str, Any]:
    options = body.options or OllamaOptions()
    beside = {name: getattr(body, name) for name in _list_beside(body)}
    limit = beside.get("max_output_tokens", options.num_predict)
    return {
        **{name: beside.get(name, getattr(options, name)) for name in _SAME},
        "model": body.model,
        "stream": body.is_streamed,
        "response_format": body.response_format,
        "seed": None if options.seed == -1 else options.seed,
        "max_tokens": None if limit is None or limit < 0 else limit,
        "repetition_penalty": options.repeat_penalty,
    }


def _read_thinking(body: OllamaGeneration, engine: TextEngine) -> dict[str, Any]:
    if body.think is None:
        return {}
    renderer = engine.renderer
    if body.think is False:
        # The template may switch it off; a budget ends what begins nevertheless.
        budget = None if renderer.reasoning is None else 0
        return {"reasoning_effort": "none", "thinking_token_budget": budget}
    if not renderer.separates_reasoning:
        raise NotSupported(
            "think", "this model does not think, or needs --reasoning-parser"
        )
    # Some templates let a model think only if they are told. Qwen's name and DeepSeek's.
    fields: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True}
    }
    if body.think is not True:
        fields["reasoning_effort"] = body.think
    return fields
