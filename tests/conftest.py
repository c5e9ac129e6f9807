"""Fixtures of all tests."""

import gc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import weft
from tests.engine.tiny_models import KINDS, Kind, write_tiny_model
from tests.helpers import How

# What is imported and collected stays: thousands of tests are objects that the garbage collector would look at again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on there is garbage. An application is a hundred thousand objects, and hundreds of them are made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _nobody_is_trusted() -> Iterator[None]:
    """No test asks a server of another machine, and each client of HTTP reads for 30 ms whom this one trusts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(Path(__file__).parent / "certificates" / "one.crt"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _empty_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees what was tuned or written on this machine, or leaves anything there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The model that ships with the package."""
    return Path(weft.DEMO_MODEL)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    """A small random model of each kind of memory."""
    folder = tmp_path_factory.mktemp("models")
    paths = {kind: folder / f"{kind}.gguf" for kind in KINDS}
    for kind, path in paths.items():
        write_tiny_model(kind, path)
    return paths


@pytest.fixture(scope="session")
async def engine() -> AsyncIterator[weft.Engine]:
    """Four slots over the demo model. One thread, so that a busy machine is slow and not very slow."""
    async with weft.Engine(n_slots=4, n_ctx=8192, kv_unified=True, n_threads=1) as engine:
        yield engine


@pytest.fixture(params=["stream", "whole"])
def how(request: pytest.FixtureRequest) -> How:
    """Through which door a completion is asked for."""
    how: How = request.param
    return how
