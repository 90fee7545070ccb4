"""The table of fields agrees with the server, and leaves out no field of a real client."""

from __future__ import annotations

import inspect
from pathlib import Path
import runpy
from typing import Any, get_type_hints

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
import pytest

from trioserve.api.anthropic.requests import CountTokensRequest, MessagesRequest
from trioserve.api.chat.request import ChatRequest
from trioserve.api.cohere.requests import CohereEmbedRequest
from trioserve.api.completions.request import CompletionRequest
from trioserve.api.pooling.requests import EmbeddingRequest, RerankRequest
from trioserve.api.responses.request import ResponseRequest
from trioserve.server.routes import ROUTES

WRITER = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "write_fields.py"))
DECODERS = {body.request_type: body for route in ROUTES for body in route.bodies}

# The clients send these as headers.
HEADERS = {"betas", "user_profile_id", "workspace_id"}

# The arguments of the clients' methods, as typed dictionaries.
PARAMS: list[tuple[type[Any], list[Any]]] = [
    (
        ChatRequest,
        [
            chat_create_params.CompletionCreateParamsBase,
            chat_create_params.CompletionCreateParamsStreaming,
        ],
    ),
    (
        CompletionRequest,
        [
            completion_create_params.CompletionCreateParamsBase,
            completion_create_params.CompletionCreateParamsStreaming,
        ],
    ),
    (
        ResponseRequest,
        [
            response_create_params.ResponseCreateParamsBase,
            response_create_params.ResponseCreateParamsStreaming,
        ],
    ),
    (EmbeddingRequest, [embedding_create_params.EmbeddingCreateParams]),
]


def test_the_page_is_what_its_program_writes() -> None:
    """If it fails: python docs/write_fields.py."""
    assert WRITER["PAGE"].read_text() == WRITER["write_page"]()


@pytest.mark.parametrize("request_type", DECODERS)
def test_no_field_is_in_two_lists(request_type: Any) -> None:
    decoder: Any = DECODERS[request_type]
    taken = set(request_type.__struct_fields__)
    assert not taken & decoder.refused.keys()
    assert not decoder.ignored & decoder.refused.keys()


@pytest.mark.parametrize(("request_type", "params"), PARAMS)
def test_each_field_of_the_official_clients_is_in_a_list(
    request_type: Any, params: list[Any]
) -> None:
    """A field that a new release of a client sends is not ignored unnoticed."""
    check_known(
        request_type, {name for each in params for name in get_type_hints(each)}
    )


def test_each_field_of_anthropics_client_is_in_a_list() -> None:
    from anthropic.types import message_count_tokens_params, message_create_params
    from anthropic.types.beta import (
        message_count_tokens_params as beta_count_tokens_params,
        message_create_params as beta_create_params,
    )

    for request_type, params in [
        (MessagesRequest, message_create_params.MessageCreateParamsBase),
        (MessagesRequest, message_create_params.MessageCreateParamsStreaming),
        (MessagesRequest, beta_create_params.MessageCreateParamsBase),
        (CountTokensRequest, message_count_tokens_params.MessageCountTokensParams),
        (CountTokensRequest, beta_count_tokens_params.MessageCountTokensParams),
    ]:
        check_known(request_type, set(get_type_hints(params)))


def test_each_field_of_coheres_client_is_in_a_list() -> None:
    from cohere import ClientV2

    for request_type, method in [
        (CohereEmbedRequest, ClientV2.embed),
        (RerankRequest, ClientV2.rerank),
    ]:
        names = set(inspect.signature(method).parameters)
        check_known(request_type, names - {"self", "request_options"})


def check_known(request_type: Any, names: set[str]) -> None:
    decoder: Any = DECODERS[request_type]
    known = {*request_type.__struct_fields__, *decoder.refused, *decoder.ignored}
    assert len(names) > 3
    assert names - HEADERS <= known
