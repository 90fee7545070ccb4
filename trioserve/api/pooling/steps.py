"""Steps that all pooling endpoints share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import time
from typing import Any, TypeVar, cast

from quart import Response
import trio

from ...errors import InvalidParameter, TaskNotServed
from ...frontend import Pooled, PoolingEngine, StreamLimits
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.respond import JSON, run_writing
from ...render import ChatInput, ChatOptions, TextInput, TextOptions
from ...types.client import Client
from ...types.pooling import LongText, PoolingParams, PoolingTask
from ...types.tensors import TensorBytes
from ..shared.message_mappings import MessageMappings
from ..shared.messages import Message
from .answers import PooledAnswer, PoolingUsage
from .requests import PoolingFields, TextFields

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", bound=PooledAnswer[Any])

# Joining this many bytes takes as long as writing one entry of run_writing.
_BYTES_PER_ENTRY = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The fields at the beginning of all answers."""

    id: str
    created: int
    model: str

    def begin(self, answer_type: type[AnswerT], num_tokens: int) -> AnswerT:
        """Make an answer without its entries."""
        return answer_type(
            id=self.id,
            created=self.created,
            model=self.model,
            usage=PoolingUsage.of(num_tokens),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingCall:
    """One call of a pooling endpoint: its request, and the engine that answers it."""

    state: ServerState
    request: ScopedRequest
    engine: PoolingEngine

    def make_header(self, prefix: str, request_id: str | None = None) -> Header:
        """Make the fields of an answer. Its id ends with the client's id, if it sent one."""
        return Header(
            id=f"{prefix}-{self.request.id.take(request_id)}",
            created=int(time.time()),
            model=self.engine.info.name,
        )

    def note_submitted(self) -> None:
        """Note that the engine has got the first texts of the request."""
        self.request.progress.enter("prefill")

    @property
    def client(self) -> Client:
        return self.request.ticket.use.key.client

    @property
    def limits(self) -> StreamLimits:
        return self.request.time_limit.limit_stream(None)

    def note_pooled(self, num_tokens: int) -> None:
        """Note the tokens of all texts of the request."""
        self.request.num_pooled_tokens = num_tokens
        self.request.ticket.use.charge(num_tokens)

    async def respond(
        self,
        write: Callable[[], bytes],
        num_bytes: int,
        *,
        content_type: str = JSON,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """Write the answer and count the request as answered.

        Args:
          num_bytes: the approximate length; long answers are written in a renderer
            worker.
        """
        self.request.progress.enter("write")
        content = await run_writing(
            self.engine.renderer.workers, write, num_bytes // _BYTES_PER_ENTRY
        )
        self.state.counts.latency.observe(trio.current_time() - self.request.arrived_at)
        return Response(content, 200, headers, content_type=content_type)


def require_task(
    engine: PoolingEngine, tasks: Sequence[PoolingTask], wanted: str
) -> PoolingTask:
    """Return the model's task if it is one of `tasks`.

    Raises:
      TaskNotServed
    """
    task = engine.pooling.task
    if task not in tasks:
        raise TaskNotServed(engine.info.name, wanted=wanted, served=task)
    return task


def make_params(
    engine: PoolingEngine,
    task: PoolingTask,
    *,
    dimensions: int | None = None,
    use_activation: bool | None = None,
    param: str = "dimensions",
) -> PoolingParams:
    """Return the parameters by which the model's last layer becomes vectors.

    Raises:
      InvalidParameter: the model's vectors cannot be cut to this size; names `param`.
    """
    params = PoolingParams(
        task=task, dimensions=dimensions, use_activation=use_activation
    )
    engine.pooling.check(params, engine.info.name, param=param)
    return params


def _resolve_long_text(
    body: PoolingFields, engine: PoolingEngine, *, can_average: bool
) -> LongText:
    """Return the treatment of texts that are too long for the model.

    Raises:
      InvalidParameter: the request wants chunks, but its results cannot be averaged.
    """
    if body.truncate_prompt_tokens is not None:
        return "truncate"
    if body.long_text is None:
        return engine.choose_long_text(can_average=can_average)
    if body.long_text == "chunk" and not can_average:
        raise InvalidParameter(
            "long_text", "only texts that become a vector have chunks"
        )
    return body.long_text


def make_text_options(
    body: PoolingFields, engine: PoolingEngine, *, can_average: bool = False
) -> TextOptions:
    """Return the options by which texts become token ids.

    Raises:
      InvalidParameter: the request names a side, but texts are not truncated; or as
        _resolve_long_text.
    """
    limit = body.truncate_prompt_tokens
    long_text = _resolve_long_text(body, engine, can_average=can_average)
    if body.truncation_side is not None and long_text != "truncate":
        raise InvalidParameter(
            "truncation_side",
            "is only taken with truncate_prompt_tokens or long_text=truncate",
        )
    return TextOptions(
        # -1 means the length of the model. `long_text` truncates to that, too.
        truncate_to=None if limit == -1 else limit,
        truncation_side=body.truncation_side or "right",
        long_text=long_text,
    )


async def pool_texts(
    call: PoolingCall,
    body: TextFields,
    params: PoolingParams,
    finish: Callable[[int, TensorBytes], T],
) -> Pooled[T]:
    """Pool the inputs of a request, and release its body.

    Args:
      finish: makes an entry of the answer from a text's number and tensor, in a renderer
        worker.

    Raises: the errors of make_text_options and PoolingEngine.pool.
    """
    engine = call.engine
    options = replace(
        make_text_options(body, engine, can_average=params.task == "embed"),
        add_special_tokens=body.add_special_tokens,
        prompt_name=body.prompt_name,
    )
    pooled = await engine.pool(
        to_text_inputs(body),
        params,
        options,
        finish=finish,
        priority=body.priority or 0,
        client=call.client,
        limits=call.limits,
        param=body.param,
        on_submit=call.note_submitted,
    )
    call.note_pooled(pooled.num_tokens)
    call.request.body.release()
    return pooled


def to_text_inputs(body: TextFields) -> Sequence[TextInput]:
    """Return the inputs of a request in the renderer's form."""
    if not body.has_chats:
        return cast(tuple[str | tuple[int, ...], ...], body.items)
    chats = cast(tuple[tuple[Message, ...], ...], body.items)
    options = ChatOptions(
        add_generation_prompt=bool(body.add_generation_prompt),
        continue_final_message=bool(body.continue_final_message),
        variables=body.chat_template_kwargs or {},
        chat_template=body.chat_template,
    )
    return [
        ChatInput(messages=MessageMappings(messages), chat=options)
        for messages in chats
    ]
