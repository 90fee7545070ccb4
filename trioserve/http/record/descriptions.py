"""The structs of answers about models, tokens and the server itself."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...types.model_info import ModelInfo
from ...types.pooling import Task
from .progress import Phase

Modality = Literal["text", "image", "embeddings", "labels"]


class ModelArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs and outputs of a model, with the names of OpenRouter and llama.cpp.

    Args:
      output_modalities: of models that pool, "embeddings" or "labels".
    """

    input_modalities: tuple[Modality, ...]
    output_modalities: tuple[Modality, ...]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["trioserve"] = "trioserve"
    root: str
    parent: None = None
    max_model_len: int
    architecture: ModelArchitecture


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: tuple[ModelCard, ...]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of POST /detokenize."""

    prompt: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /tokenizer_info: fields of a tokenizer_config.json.

    Special tokens that the model does not have are left out.
    """

    tokenizer_class: str
    bos_token: str | UnsetType = UNSET
    eos_token: str | UnsetType = UNSET
    unk_token: str | UnsetType = UNSET
    pad_token: str | UnsetType = UNSET
    sep_token: str | UnsetType = UNSET
    cls_token: str | UnsetType = UNSET
    mask_token: str | UnsetType = UNSET
    extra_special_tokens: tuple[str, ...]
    padding_side: str
    model_max_length: int
    chat_template: str | None


class RequestCard(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is being answered.

    Args:
      key: the name of the client's key; None if the server has no keys.
      phase: body, render, queue, prefill, decode or write.
      timeout_seconds: its time limit; None if it has none.
      prompt_tokens, completion_tokens: 0 before the engine has the request, and for
        requests that do not generate.
    """

    id: str
    object: Literal["request"] = "request"
    method: str
    path: str
    key: str | None
    phase: Phase
    age_seconds: float
    timeout_seconds: float | None
    prompt_tokens: int
    completion_tokens: int


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET and DELETE /v1/requests, the oldest request first."""

    object: Literal["list"] = "list"
    data: tuple[RequestCard, ...]


class TaskNode(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a request.

    Args:
      name: of its function.
      awaits: the functions in which it waits, with their lines; the innermost is last.
      tasks: those below it.
      num_tasks_left_out: tasks below it that are not shown, because there are too many.
    """

    name: str
    awaits: tuple[str, ...]
    tasks: tuple[TaskNode, ...]
    num_tasks_left_out: int = 0


class RequestDetails(RequestCard, frozen=True, kw_only=True):
    """A request that is being answered, with everything that it holds.

    Args:
      worker: where it is: "upload", "event loop", "renderer thread", "template process",
        "media thread", "media connection", "image processor" or the queue for one of these,
        "engine queue", "device" or "client".
      deadline_seconds: the time that is left of its limit; None if it has none.
      kv_blocks: of the KV cache, those that it shares counted once for each sequence; None
        if the engine process did not answer in time.
      task: the task that runs it; None when it has just ended.
    """

    worker: str
    deadline_seconds: float | None
    kv_blocks: int | None
    task: TaskNode | None


class RequestDetailsList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/requests/{request_id}, the oldest request first.

    Args:
      num_left_out: requests with this id that are not shown, because there are too many.
    """

    object: Literal["list"] = "list"
    data: tuple[RequestDetails, ...]
    num_left_out: int = 0


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /version."""

    version: str


_OUTPUTS: Final[dict[Task, Modality]] = {
    "generate": "text",
    "embed": "embeddings",
    "token_embed": "embeddings",
    "classify": "labels",
    "token_classify": "labels",
}


def describe_model(info: ModelInfo, *, task: Task, created: int) -> ModelCard:
    """Describe the one model that is served.

    Args:
      task: the one that it is served for.
      created: in seconds since 1970.
    """
    return ModelCard(
        id=info.name,
        created=created,
        root=info.name,
        max_model_len=info.max_model_len,
        architecture=ModelArchitecture(
            input_modalities=("text", "image") if info.takes_images else ("text",),
            output_modalities=(_OUTPUTS[task],),
        ),
    )
