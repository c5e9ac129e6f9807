"""One Ray for all of these tests: it takes ten seconds to start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.ray.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator["Cluster"]:
    """Two replicas."""
    # Whoever collects all tests of this folder's parents has no Ray.
    from tests.ray.cluster import running  # noqa: PLC0415

    with running() as cluster:
        cluster.deploy(replicas=2)
        yield cluster
