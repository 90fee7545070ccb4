"""A report of a defect tells the machine, and no secret."""

from __future__ import annotations

import json
import re
import sys

import pytest

from trioserve import __version__
from trioserve.__main__ import main


def test_a_report_has_no_secret_and_needs_no_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("https_proxy", "http://me:password@proxy")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["env", "--json"]) == 0
    text = capsys.readouterr().out
    facts = json.loads(text)
    assert facts["trioserve"] == __version__
    assert facts["HF_TOKEN"] == facts["HTTPS_PROXY"] == "is set"
    assert facts["OMP_NUM_THREADS"] == "3"
    assert re.fullmatch(r"\d+\.\d GiB, available \d+\.\d GiB", facts["memory"])
    assert "secret" not in text and "password" not in text
    assert main(["env"]) == 0
    assert "\nkernels " in capsys.readouterr().out
