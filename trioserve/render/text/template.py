"""The chat template: a program over a client's messages.

Blocking: it is pure Python, and runs in a renderer worker under a time limit. The
sandbox (sandbox.py) protects the process, but limits neither time nor memory. A
template that refuses its messages is the client's fault and becomes a 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
import functools
from typing import Any, Literal

from ...errors import InvalidParameter
from ...types.model_info import SEES_NO_IMAGES
from .model_tokenizer import ModelTokenizer
from .probing import PROBE_TOOL, TemplateProbe, find_roles
from .rendering import TemplateCall
from .template_form import TemplateForm
from .tool_prompt import add_tools

# Variables that a client may not set: variables that the renderer passes itself, and the
# other parameters of transformers' apply_chat_template, which no template expects.
RESERVED_NAMES = frozenset(
    {
        *("self", "conversation", "conversations", "messages", "tools", "documents"),
        *("chat_template", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "sanitize_control_tokens", "tokenizer_kwargs", "kwargs"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict"),
        "return_assistant_tokens_mask",
    }
)

# OpenAI's values.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The inputs of a template besides the messages.

    Args:
      add_generation_prompt: end with the header of the answer.
      continue_final_message: leave the last message open, so that the model continues
        it.
      variables: further variables by name.
      reasoning_effort: how much the model reasons before its answer.
      tools: JSON schemas of functions, for templates that show them to the model.
      chat_template: a template that is used instead of the model's own.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    tools: Sequence[Mapping[str, object]] = ()
    chat_template: str | None = None


class ChatTemplate:
    """A model's chat template, or its named templates.

    Args:
      tokenizer: has the templates and the special tokens.
      trusts_requests: whether a request may bring a template of its own.
      image_token: the model's image token; None for a model that takes no images.
      image_refusal: the reason why it takes none, for clients.
      describes_tools: whether tools are described in a text if the model's template has no
        place for them.

    Attributes:
      tokenizer: as above.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        trusts_requests: bool = False,
        image_token: str | None = None,
        image_refusal: str = SEES_NO_IMAGES,
        describes_tools: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._trusts_requests = trusts_requests
        self._image_token = image_token
        self._image_refusal = image_refusal
        self._describes_tools = describes_tools
        self._variables = tuple(tokenizer.special_tokens.items())
        # Compiled and probed now, so that the first request does not wait for it.
        with suppress(InvalidParameter):
            self.find_form(ChatOptions())

    def find_form(self, options: ChatOptions) -> TemplateForm:
        """Return the form of the template that these options choose.

        Blocks at the first call for a template, which is probed (probing.py).

        Raises:
          InvalidParameter: the model has no template, or the request may not bring one.
        """
        source = self._choose(options)
        if options.chat_template is not None:
            return self._assume_form(source)
        form = _probe(
            source, self._variables, bool(options.tools), self._describes_tools
        )
        return replace(
            form, image_token=self._image_token, image_refusal=self._image_refusal
        )

    def prepare(
        self, messages: list[dict[str, Any]], options: ChatOptions
    ) -> TemplateCall:
        """Check the options. The returned call may take long.

        Raises:
          InvalidParameter: the model has no template, the request may not bring one, or
            a client may not set one of the variables.
        """
        if options.add_generation_prompt and options.continue_final_message:
            raise InvalidParameter(
                "continue_final_message",
                "cannot be set together with add_generation_prompt",
            )
        for name in options.variables:
            if name in RESERVED_NAMES:
                raise InvalidParameter(
                    "chat_template_kwargs", f"{name} cannot be set here"
                )
        source = self._choose(options)
        tools = list(options.tools) or None
        if tools and not (form := self.find_form(options)).shows_tools:
            if not form.describes_tools:
                # The client would wait for calls of tools that the model does not see.
                raise InvalidParameter(
                    "tools", "the model's chat template has no place for tools"
                )
            messages, tools = add_tools(messages, tools, form), None
        elif tools and form.wants_descriptions:
            tools = list(map(_add_description, tools))
        effort = {}
        if options.reasoning_effort is not None:
            effort = _switch_reasoning(options.reasoning_effort, source)
        return TemplateCall(
            source=source,
            messages=messages,
            tools=tools,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            variables={**self.tokenizer.special_tokens, **effort, **options.variables},
        )

    def _choose(self, options: ChatOptions) -> str:
        if options.chat_template is not None:
            if not self._trusts_requests:
                raise InvalidParameter(
                    "chat_template",
                    "this server takes no templates from requests; start it with "
                    "--trust-request-chat-template if their senders can be trusted",
                )
            return options.chat_template
        templates = self.tokenizer.chat_templates
        if not templates:
            raise InvalidParameter(
                "messages",
                "this model has no chat template, so it takes no messages; send a "
                "prompt to /v1/completions, or start the server with --chat-template",
            )
        if options.tools and "tool_use" in templates:
            return templates["tool_use"]
        if "default" not in templates:
            raise InvalidParameter(
                "messages",
                f"the model has chat templates ({', '.join(sorted(templates))}), but "
                "no default one; start the server with --chat-template",
            )
        return templates["default"]

    def _assume_form(self, source: str) -> TemplateForm:
        """Return the form of a request's own template.

        It is not probed, because it may never end. Contents come in the form of the
        model's own template. The rest is assumed to work.
        """
        own = TemplateForm()
        with suppress(InvalidParameter):
            own = self.find_form(ChatOptions())
        return TemplateForm(
            takes_strings=own.takes_strings,
            takes_parts=own.takes_parts,
            image_token=self._image_token,
            image_refusal=self._image_refusal,
            shows_tools="tools" in source,
            shows_calls_beside=frozenset({"text", "empty"}),
            roles=frozenset(find_roles(source)),
            takes_any_role=True,
        )


@functools.lru_cache(maxsize=16)
def _probe(
    source: str,
    variables: tuple[tuple[str, str], ...],
    with_tools: bool,
    describes_tools: bool,
) -> TemplateForm:
    def render(
        messages: list[dict[str, Any]], tool: Mapping[str, object] = PROBE_TOOL
    ) -> str:
        return TemplateCall(
            source=source,
            messages=messages,
            tools=[tool] if with_tools else None,
            add_generation_prompt=True,
            variables=dict(variables),
        ).render()

    return TemplateProbe(source, render, describes_tools=describes_tools).find_form()


def _add_description(tool: Mapping[str, Any]) -> Mapping[str, object]:
    """Return a tool with an empty description, if it has none."""
    function = tool.get("function")
    if not isinstance(function, Mapping) or "description" in function:
        return tool
    return {**tool, "function": {**function, "description": ""}}


def _switch_reasoning(effort: ReasoningEffort, source: str) -> dict[str, object]:
    """Return the variables by which a template sets the effort of reasoning.

    Agents send an effort to every model, so it changes nothing if the template has none.
    """
    variables: dict[str, object] = {"reasoning_effort": effort}
    if effort == "none":
        # Qwen's name and DeepSeek's.
        variables |= {"enable_thinking": False, "thinking": False}
    return {name: value for name, value in variables.items() if name in source}
