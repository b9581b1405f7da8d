"""The cluster of an end-to-end test, and a stack on it."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, cluster_of
from tests.e2e.live_stack import LiveStack, running_on


@pytest.fixture
def cluster_profile() -> str:
    """The fleet of the cluster, by name or as YAML; a test module may have its own."""
    return "mini"


@pytest.fixture
def cluster(cluster_profile: str) -> Iterator[Cluster]:
    """See `tests.e2e.cluster`; a test module may have one for all of its tests."""
    with cluster_of(cluster_profile) as running:
        yield running


@pytest.fixture
def scheduler_config() -> str:
    """The scheduler's settings as YAML; a test module may have its own."""
    return "{}"


@pytest.fixture
def stack(cluster: Cluster, scheduler_config: str) -> Iterator[LiveStack]:
    """A stack on the cluster, stopped in order; a test module may have its own."""
    with running_on(cluster, scheduler_config) as live:
        yield live
