"""Names of clusters and events on the bus."""

import re

from kaicore.errors import InvalidObject

_CLUSTER = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_cluster(cluster: str) -> str:
    """Return the name of a cluster if it can be part of a subject, a stream's name and a path.

    Raises:
        InvalidObject: it is no DNS label (RFC 1123).
    """
    if not _CLUSTER.fullmatch(cluster):
        raise InvalidObject(
            "cluster", "name", cluster, "must be 1 to 63 of a-z, 0-9 and -, with no - at either end, to have a stream"
        )
    return cluster


def stream_name(cluster: str) -> str:
    """Return the name of a cluster's stream."""
    return f"kai-{check_cluster(cluster)}"


def subject_prefix(cluster: str) -> str:
    """Return what the subjects of a cluster's events begin with; the event's type follows."""
    return f"kai.{check_cluster(cluster)}."
