"""POST /classify."""

from __future__ import annotations

from functools import partial

import msgspec
from quart import Response

from ...pooling_engine import PoolingEngine
from ...render.pooling.vectors import read_floats, write_json
from ...steps import TensorBytes
from ..body import read_pooling_request
from ..responses import encode
from ..scope import ScopedRequest
from ..state import ServerState
from .responses import ClassificationList, ClassifiedText, splice
from .schema import decode_classification
from .serving import Exchange, make_params, pool_texts, require_task


async def answer_classify(state: ServerState, request: ScopedRequest) -> Response:
    """Classify texts."""
    asked, engine = await read_pooling_request(state, request, decode_classification)
    task = require_task(engine, ("classify",), "classify texts")
    params = make_params(engine, task, use_activation=asked.use_activation)
    exchange = Exchange(state=state, request=request, engine=engine)
    header = exchange.make_header("classify", asked.request_id)
    pooled = await pool_texts(exchange, asked, params, partial(_write_entry, engine))
    content = header.begin(ClassificationList, pooled.num_tokens)
    return await exchange.respond(
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
