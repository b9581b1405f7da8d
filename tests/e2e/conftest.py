"""The cluster of an end-to-end test, and a stack on it."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, cluster_of
from tests.e2e.live_stack import LiveStack, running_on


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """See `tests.e2e.cluster`: with the fleet that the test module has as `FLEET`; or it has one for all its tests."""
    with cluster_of(getattr(request.module, "FLEET", "mini")) as running:
        yield running


@pytest.fixture
def stack(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[LiveStack]:
    """A stack on the cluster, stopped in order: with the scheduler's settings that the module has as `SETTINGS`."""
    with running_on(cluster, getattr(request.module, "SETTINGS", "{}")) as live:
        yield live
