"""The nodes that the ResourceFlavors of a pod's queue allow.

As in Kueue, the requests of a pod belong to a flavor. The pod runs on nodes with that flavor's labels, and the pod or
the flavor must tolerate their taints. Placement determines the flavor: any of the queue's flavors of a resource is
possible if the pod tolerates its taints.
"""

from collections.abc import Iterable, Mapping
from itertools import product

import msgspec

from kaicore.rules.engine.constraints.node_matching import tolerates
from kaicore.rules.model.pod import Amounts, Toleration
from kaicore.rules.model.queue import Queue, ResourceFlavor
from kaicore.rules.model.selector import Requirement


class FlavorTolerance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Flavors, one of each resource's, that tolerate more than the pod does on the nodes that have all their labels."""

    tolerations: tuple[Toleration, ...]
    nodes: tuple[Requirement, ...] = ()


class FlavorDemand(msgspec.Struct, frozen=True, omit_defaults=True):
    """The demand of a queue's flavors: the nodes to which they let a pod go.

    Attributes:
        queue: name; empty where there is nothing to say.
        unknown: flavors that the queue names and that do not exist; the pod waits for them.
        places: node selector terms, any of which must hold; each with what asks for it.
        tolerances: what is tolerated besides what the pod says, and where.
    """

    queue: str = ""
    unknown: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[tuple[Requirement, ...], ...]], ...] = ()
    tolerances: tuple[FlavorTolerance, ...] = ()


#: Any node will do.
ANY_FLAVOR = FlavorDemand()

#: Terms that no node meets.
_NOWHERE: tuple[tuple[Requirement, ...], ...] = ((),)


def flavor_demand(
    queue: Queue, flavors: Mapping[str, ResourceFlavor], *, requests: Amounts, tolerations: tuple[Toleration, ...]
) -> FlavorDemand:
    """Return where a queue's flavors let a pod go.

    Args:
        flavors: those that exist, by name. Without any, a queue's flavors are only names.
    """
    if not flavors:
        return ANY_FLAVOR
    by_flavors: dict[tuple[str, ...], list[str]] = {}
    for resource in sorted(requests):
        named = tuple(quota.flavor for quota in queue.flavors if resource in quota.quotas)
        if named:
            by_flavors.setdefault(named, []).append(resource)
    unknown = sorted({name for named in by_flavors for name in named} - set(flavors))
    if unknown:
        return FlavorDemand(queue.name, unknown=tuple(unknown))
    places = []
    choices = []
    for named, resources in by_flavors.items():
        usable = [flavors[name] for name in named if _tolerated(flavors[name], tolerations)]
        choices.append(usable)
        terms = tuple(dict.fromkeys(_term(flavor) for flavor in usable))
        if () not in terms:
            what = f"{queue.name}: {', '.join(resources)} of {' or '.join(named)}"
            places.append((what, terms or _NOWHERE))
    tolerances = tuple(dict.fromkeys(_tolerances(choices)))
    if not places and not tolerances:
        return ANY_FLAVOR
    return FlavorDemand(queue.name, places=tuple(places), tolerances=tolerances)


def _tolerances(choices: Iterable[list[ResourceFlavor]]) -> Iterable[FlavorTolerance]:
    for chosen in product(*choices):
        # One flavor may be that of several resources.
        together = tuple(dict.fromkeys(flavor.name for flavor in chosen))
        flavors = {flavor.name: flavor for flavor in chosen}
        tolerations = tuple(dict.fromkeys(one for name in together for one in flavors[name].tolerations))
        if tolerations:
            terms = (requirement for name in together for requirement in _term(flavors[name]))
            yield FlavorTolerance(tolerations, tuple(dict.fromkeys(terms)))


def _tolerated(flavor: ResourceFlavor, tolerations: tuple[Toleration, ...]) -> bool:
    return all(tolerates((*tolerations, *flavor.tolerations), taint) for taint in flavor.node_taints)


def _term(flavor: ResourceFlavor) -> tuple[Requirement, ...]:
    return tuple(Requirement(key, "In", (value,)) for key, value in sorted(flavor.node_labels.items()))
