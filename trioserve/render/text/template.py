"""The chat template: a program over a client's messages.

Blocking: it is pure Python and runs in a renderer worker, under a clock. transformers
renders it in its sandbox, which keeps it from the process but bounds neither its time
nor its memory; what it refuses is the request's fault and becomes a 400.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
import inspect
from typing import TYPE_CHECKING, Any

import jinja2

from ...errors import InvalidParameter
from .probing import PROBE_TOOL, TemplateProbe
from .template_form import TemplateForm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A template is a program over a client's messages: what it raises, short of running
# out of memory, says that it was not written for them.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

# Names that the renderer itself passes to a template, or that would change how it is
# called, besides the parameters of transformers' apply_chat_template.
_RENDERER_NAMES = frozenset({"self", "conversations", "messages"})

# A reason may quote the whole chat; a client needs its beginning.
_MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a template is told besides the messages.

    Args:
      add_generation_prompt: end with the header of the answer.
      continue_final_message: leave the last message open, to be continued.
      variables: further ones, by name.
      tools: JSON schemas of functions, for templates that show them to the model.
      chat_template: used instead of the model's own.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)
    tools: Sequence[Mapping[str, object]] = ()
    chat_template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateCall:
    """One rendering, as plain values: it may be made in another process."""

    source: str
    messages: list[dict[str, Any]]
    tools: list[Mapping[str, object]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    variables: dict[str, object]

    def render(self) -> str:
        """Run the template.

        Raises:
          InvalidParameter: it refuses these messages.
        """
        # Here because it takes a second, which `import trioserve` need not.
        from transformers.utils.chat_template_utils import render_jinja_template

        render: Any = render_jinja_template
        try:
            texts, _ = render(
                conversations=[self.messages],
                tools=self.tools,
                chat_template=self.source,
                add_generation_prompt=self.add_generation_prompt,
                continue_final_message=self.continue_final_message,
                **self.variables,
            )
        except _TEMPLATE_ERRORS as error:
            raise InvalidParameter(
                "messages", f"the chat template refuses them: {_shorten(error)}"
            ) from None
        text: str = texts[0]
        return text


class ChatTemplate:
    """A model's chat template, or templates.

    Args:
      tokenizer: its `chat_template`, special tokens and choice among named templates.
      trusts_requests: whether a request may bring a template of its own.
      image_token: the model's, if it sees images.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        trusts_requests: bool = False,
        image_token: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._trusts_requests = trusts_requests
        self._reserved = _RENDERER_NAMES.union(
            inspect.signature(tokenizer.apply_chat_template).parameters
        )
        self._image_token = image_token
        # By the template's source, and by whether it is given tools.
        self._forms: dict[tuple[str, bool], TemplateForm] = {}
        # Compiled and tried before the first request, which would wait for it.
        with suppress(InvalidParameter):
            self.find_form(ChatOptions())

    def find_form(self, options: ChatOptions) -> TemplateForm:
        """Return what the template that these options choose reads.

        Blocking, once for each template: it is tried (probing.py).

        Raises:
          InvalidParameter: there is no template, or the request's is not welcome.
        """
        source = self._choose(options)
        if options.chat_template is not None:
            return self._believe(source)
        key = source, bool(options.tools)
        if key not in self._forms:
            self._forms[key] = self._probe(*key)
        return self._forms[key]

    def prepare(
        self, messages: list[dict[str, Any]], options: ChatOptions
    ) -> TemplateCall:
        """Check everything but the messages; what is left to do may take long.

        Raises:
          InvalidParameter: there is no template, the request's is not welcome, or a
            variable is not the client's to set.
        """
        if options.add_generation_prompt and options.continue_final_message:
            raise InvalidParameter(
                "continue_final_message",
                "cannot be set together with add_generation_prompt",
            )
        for name in options.variables:
            if name in self._reserved:
                raise InvalidParameter(
                    "chat_template_kwargs", f"{name} cannot be set here"
                )
        source = self._choose(options)
        if options.tools and not self.find_form(options).shows_tools:
            # A client would wait for calls that the model cannot know of.
            raise InvalidParameter(
                "tools", "the model's chat template has no place for tools"
            )
        return TemplateCall(
            source=source,
            messages=messages,
            tools=list(options.tools) or None,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            variables={**self._tokenizer.special_tokens_map, **options.variables},
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
        if self._tokenizer.chat_template is None:
            raise InvalidParameter(
                "messages",
                "this model has no chat template, so it takes no messages; send a "
                "prompt to /v1/completions, or start the server with --chat-template",
            )
        try:
            # Among several named ones, the one for tools or the default.
            return self._tokenizer.get_chat_template(
                tools=list(map(dict, options.tools)) or None
            )
        except ValueError as error:
            raise InvalidParameter("messages", _shorten(error)) from None

    def _believe(self, source: str) -> TemplateForm:
        """Return the form for a request's own template.

        It is not tried, because it may not end. Contents come as the model's own template
        wants them, and what else it shows is its sender's business.
        """
        own = TemplateForm()
        with suppress(InvalidParameter):
            own = self.find_form(ChatOptions())
        return TemplateForm(
            takes_strings=own.takes_strings,
            takes_parts=own.takes_parts,
            image_token=self._image_token,
            shows_tools="tools" in source,
            shows_calls_beside=frozenset({"text", "empty"}),
        )

    def _probe(self, source: str, with_tools: bool) -> TemplateForm:
        def render(messages: list[dict[str, Any]]) -> str:
            return TemplateCall(
                source=source,
                messages=messages,
                tools=[PROBE_TOOL] if with_tools else None,
                add_generation_prompt=True,
                continue_final_message=False,
                variables=dict(self._tokenizer.special_tokens_map),
            ).render()

        return TemplateProbe(source, render).find_form(image_token=self._image_token)


def _shorten(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself too deeply"
    reason = str(error) or type(error).__name__
    return reason[:_MAX_REASON_CHARACTERS]
