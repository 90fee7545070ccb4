"""bench/tool_streams.py asks for what its docstring says, and reports its figures."""

from __future__ import annotations

import pytest
import tool_streams

from trioserve.api.decode.decoder import BodyDecoder
from trioserve.render.tools.hermes import HermesScanner
from trioserve.render.tools.tool_table import ToolTable
from trioserve.server.routes import ROUTES


@pytest.mark.parametrize("api", tool_streams.APIS)
def test_each_api_gets_a_stream_with_tools(api: str) -> None:
    request = tool_streams.write_stream(api, 3)
    (route,) = (route for route in ROUTES if request.path in route.paths[:1])
    (decoder,) = route.bodies
    assert isinstance(decoder, BodyDecoder)
    body = decoder.decode(request.body)
    assert body.stream
    num_tools = 0 if api == "text" else tool_streams.NUM_TOOLS
    assert len(body.tools or ()) == num_tools


def test_an_answer_has_four_calls() -> None:
    answer = tool_streams.write_answer(9)
    text, calls = HermesScanner(ToolTable(())).push(answer, is_last=True)
    assert "Let me see." in text
    names = [call.name for call in calls if call.name]
    assert names == ["tool_0", "tool_1", "tool_2", "tool_3"]
    assert len(tool_streams.write_answer(15)) > len(answer)
