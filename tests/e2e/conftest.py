"""The cluster of an end-to-end test."""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster
from tests.servers import scratch_directory


@pytest.fixture
def cluster_profile() -> str:
    """The fleet of the cluster, by name or as YAML; a test module may have its own."""
    return "mini"


@pytest.fixture
def cluster(cluster_profile: str) -> Iterator[Cluster]:
    """See `tests.e2e.cluster`."""
    with scratch_directory() as root:
        profile = cluster_profile
        if "\n" in profile:
            (root / "profile.yaml").write_text(profile)
            profile = str(root / "profile.yaml")
        running = Cluster(root, profile=profile)
        try:
            running.start()
            yield running
        finally:
            running.stop()
