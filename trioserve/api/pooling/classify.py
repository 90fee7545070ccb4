"""POST /classify."""

from __future__ import annotations

from functools import partial

import msgspec
from quart import Response

from ...frontend import PoolingEngine
from ...http.scope import ScopedRequest
from ...http.state import ServerState
from ...http.wire.encode import encode
from ...render.pooling.vectors import read_floats, write_json
from ...types.tensors import TensorBytes
from ..decode.body import read_pooling_request
from .answers import ClassificationList, ClassifiedText, splice
from .body import CLASSIFICATION_BODY
from .steps import PoolingCall, make_params, pool_texts, require_task


async def answer_classify(state: ServerState, request: ScopedRequest) -> Response:
    """Label texts."""
    body, engine = await read_pooling_request(state, request, CLASSIFICATION_BODY)
    task = require_task(engine, ("classify",), "classify texts")
    params = make_params(engine, task, use_activation=body.use_activation)
    call = PoolingCall(state=state, request=request, engine=engine)
    header = call.make_header("classify", body.request_id)
    pooled = await pool_texts(call, body, params, partial(_write_entry, engine))
    content = header.begin(ClassificationList, pooled.num_tokens)
    return await call.respond(
        partial(splice, content, {"data": pooled.results}),
        sum(map(len, pooled.results)),
    )


def _write_entry(engine: PoolingEngine, index: int, tensor: TensorBytes) -> bytes:
    probs = read_floats(tensor)
    entry = ClassifiedText(
        index=index,
        label=engine.name_label(probs),
        probs=msgspec.Raw(write_json(tensor)),
        num_classes=len(probs),
    )
    return encode(entry)
