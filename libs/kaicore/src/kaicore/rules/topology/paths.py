"""The source of a tree: an object that gives the path of each node."""

from collections.abc import Mapping
from typing import Protocol

from kaicore.rules.model.network_topology import TopologyLevel

#: Names of domains, from the widest to the narrowest; a domain is named by all of them, for racks of different blocks
#: may have the same name.
Path = tuple[str, ...]


class Paths(Protocol):
    """Tells where nodes are.

    Attributes:
        levels: from the widest to the narrowest.
        problems: what is wrong with the definitions, each with the names of the objects; no node has a path then.
    """

    levels: tuple[TopologyLevel, ...]
    problems: tuple[str, ...]

    def path(self, name: str, labels: Mapping[str, str]) -> Path:
        """Return names of a node's domains, as far as it is in any.

        Raises:
            OverlappingDomains: it is in several domains of which none is in another.
        """
        ...
