"""One Ray for all of these tests: it takes ten seconds to start."""

from collections.abc import Iterator

import pytest

from tests.ray.cluster import Cluster, running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two replicas."""
    with running() as cluster:
        cluster.deploy(replicas=2)
        yield cluster
