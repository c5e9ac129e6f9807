"""Fetches the chat templates of llama.cpp's tree, which `make compare` renders with both servers.

    python -m tests.compare.fetch_templates

They are part of llama-cpp-python's source distribution, which pip downloads and whose checksum is verified. The templates stay
out of the repository: the folder is ignored by git.
"""

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

__all__ = ["FOLDER", "fetch"]

PACKAGE = "llama-cpp-python==0.3.36"
"""Contains llama.cpp 0c1e57098."""
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SOURCE = "vendor/llama.cpp/models/templates"
FOLDER = Path(__file__).parent / "chat_templates"
MARKER = FOLDER / "SHA256"
"""Holds the checksum of the source distribution that the folder was filled from."""


def fetch(archive: Path | None = None) -> int:
    """Fills the folder and returns how many templates it holds.

    Args:
        archive: The source distribution; None downloads it.

    Raises:
        ValueError: The source distribution has another checksum, or holds no templates.
    """
    if MARKER.is_file() and MARKER.read_text(encoding="utf-8") == SHA256:
        return len(list(FOLDER.glob("*.jinja")))
    with TemporaryDirectory() as folder:
        path = archive or _download(Path(folder))
        content = path.read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != SHA256:
            raise ValueError(f"{path.name} has the SHA-256 {found}, not {SHA256}")
        templates = _templates(path)
    if not templates:
        raise ValueError(f"{path.name} has no templates in {SOURCE}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in templates.items():
        FOLDER.joinpath(name).write_bytes(text)
    MARKER.write_text(SHA256, encoding="utf-8")
    return len(templates)


def _download(folder: Path) -> Path:
    """Downloads the source distribution; pip verifies the checksum before it runs any code of the package."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
    # Build dependencies, which pip installs to read the package's metadata, may be wheels.
    options = ("--require-hashes", "--no-deps", "--no-binary", PACKAGE.partition("==")[0], "--dest", str(folder))
    command = (sys.executable, "-m", "pip", "download", "--quiet", *options, "-r", str(requirements))
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    found = list(folder.glob("llama_cpp_python-*.tar.gz"))
    if not found:
        raise ValueError(f"pip could not download {PACKAGE}:\n{ended.stderr}")
    return found[0]


def _templates(archive: Path) -> dict[str, bytes]:
    """The templates in a source distribution, by file name."""
    found: dict[str, bytes] = {}
    with tarfile.open(archive) as files:
        for member in files:
            path = PurePosixPath(member.name)
            # The first part is the folder of the package.
            if path.suffix == ".jinja" and "/".join(path.parts[1:-1]) == SOURCE and (file := files.extractfile(member)):
                found[path.name] = file.read()
    return found


def main() -> int:
    """Fetches them."""
    try:
        n_templates = fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    except (OSError, ValueError) as error:
        print(f"weft: {error}", file=sys.stderr)
        return 1
    print(f"{n_templates} templates in {FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
