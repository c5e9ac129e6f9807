"""Certificates that nobody has signed but themselves."""

import subprocess
from pathlib import Path


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    """The files of a new key and of a certificate of it for this machine."""
    key, certificate = str(folder / f"{name}.key"), str(folder / f"{name}.crt")
    about = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", "-x509", *about, *made], check=True, capture_output=True, timeout=20)
    return key, certificate
