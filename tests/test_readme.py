"""README is short, its markup is sound, and its links lead somewhere.

tests/docs/test_programs.py runs its programs.
"""

from __future__ import annotations

from pathlib import Path
import re

import docutils.core
import docutils.utils
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.rst").read_text()


def test_the_markup_has_no_errors() -> None:
    docutils.core.publish_doctree(
        README, settings_overrides={"halt_level": 2, "report_level": 2}
    )


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 300


def test_each_page_is_linked() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.rst")} - {"index.rst"}
    assert {Path(link).name for link in list_links()} == pages


def list_links() -> list[str]:
    return re.findall(r"<(docs/[^>]+)>`_", README)


@pytest.mark.parametrize("link", sorted({*list_links()}))
def test_a_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / link).is_file()


def test_ci_runs_the_command_that_runs_the_tests() -> None:
    found = re.search(
        r"The tests::\n\n    pip install -e '\.\[test]' && (.+)\n", README
    )
    assert found is not None
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert found[1] in ci
