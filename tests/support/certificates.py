"""Certificates for servers of tests."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess

import pytest


def make_certificate(folder: Path) -> Path:
    """Make a certificate for localhost; skip the test where openssl is missing.

    Returns:
      `folder`, which has fullchain.pem and privkey.pem.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    kind = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split()
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subject = ["-subj", "/CN=localhost", "-addext", names]
    out = ["-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"]
    subprocess.run(
        [openssl, "req", "-x509", *kind, *subject, *out],
        check=True,
        capture_output=True,
    )
    return folder
