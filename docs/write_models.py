"""Write the table of docs/models.rst: all types of models, and whether they run.

    python docs/write_models.py

The table comes from tests/model/families/record.json, which `python -m
tests.model.families.record` writes. tests/docs/test_models.py fails if the page is older.
"""

from __future__ import annotations

from collections.abc import Iterator
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.rst"
RECORD = ROOT / "tests" / "model" / "families" / "record.json"

_BEGIN = ".. docs/write_models.py writes the table below. Do not change it by hand.\n"
_END = ".. The table ends here.\n"

_ANSWERS = {"equal": "yes", "refused": "no", "not buildable": "not tried"}


def write_page(page: str) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + _BEGIN + "\n" + "".join(_write_table()) + "\n" + _END + after


def _write_table() -> Iterator[str]:
    rows = json.loads(RECORD.read_text())
    yield ".. list-table::\n   :header-rows: 1\n   :widths: 25 10 65\n\n"
    yield "   * - ``model_type``\n     - Runs\n     - How, or why not\n"
    for model_type, row in rows.items():
        detail = row["detail"]
        if row["result"] == "equal":
            detail = "kernels" if detail == "native" else "modules"
        elif row["result"] == "not buildable":
            detail = "no tiny configuration of it was found that computes something"
        yield f"   * - ``{model_type}``\n     - {_ANSWERS[row['result']]}\n"
        yield f"     - {detail}\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(PAGE.read_text()))
