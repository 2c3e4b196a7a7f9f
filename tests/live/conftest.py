"""One cluster for all long tests: those that kill parts of it wait until it is whole again."""

from collections.abc import Iterator

import pytest

from tests.live.cluster import LiveCluster, eventually, live_cluster


@pytest.fixture(scope="session")
def held_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Up for the session; afterwards nothing of it may be left."""
    with live_cluster(tmp_path_factory.mktemp("live"), "live") as cluster:
        yield cluster


@pytest.fixture
def cluster(held_cluster: LiveCluster) -> LiveCluster:
    """The cluster with both replicas ready and nothing running."""
    eventually(held_cluster.is_whole, 180)
    held_cluster.settle()
    return held_cluster


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Figures that a test measured: printed, and kept with its result."""
    figures: list[str] = []
    yield figures
    for figure in figures:
        request.node.user_properties.append(("figure", figure))
        print(figure)
