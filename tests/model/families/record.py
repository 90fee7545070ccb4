"""The record of all types: which of them answer as transformers' generate() does.

    python -m tests.model.families.record          writes it again, in about ten minutes
    python -m tests.model.families.record llama    writes a row again

docs/write_models.py makes the table in docs/models.rst of it.
"""

from __future__ import annotations

from dataclasses import asdict
import json
from pathlib import Path
import sys
from tempfile import TemporaryDirectory

import transformers

from .compare import Row, compare, list_types

PATH = Path(__file__).with_name("record.json")


def read_record() -> dict[str, Row]:
    """Return the rows by their types."""
    rows = json.loads(PATH.read_text()) if PATH.exists() else {}
    return {model_type: Row(**row) for model_type, row in rows.items()}


def write_record(rows: dict[str, Row]) -> None:
    described = {name: asdict(row) for name, row in sorted(rows.items())}
    PATH.write_text(json.dumps(described, indent=1) + "\n")


def main(types: list[str]) -> None:
    transformers.logging.set_verbosity_error()
    rows = read_record()
    for model_type in types or list_types():
        with TemporaryDirectory() as folder:
            rows[model_type] = compare(model_type, Path(folder))
        print(model_type, rows[model_type].result, rows[model_type].detail, flush=True)
        write_record(rows)


if __name__ == "__main__":
    main(sys.argv[1:])
