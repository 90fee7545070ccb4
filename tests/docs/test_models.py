"""The table of models in docs/models.rst is made of the record of their tests."""

from __future__ import annotations

import json
from pathlib import Path
import runpy

WRITER = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "write_models.py"))


def test_the_table_is_that_of_the_record() -> None:
    page = WRITER["PAGE"].read_text()
    assert WRITER["write_page"](page) == page, "run python docs/write_models.py"


def test_most_models_run_and_none_is_wrong() -> None:
    results = [
        row["result"] for row in json.loads(WRITER["RECORD"].read_text()).values()
    ]
    assert {*results} == {"equal", "refused", "not buildable"}
    assert results.count("equal") >= 110
