"""Selectors: requirements on labels, of nodes and of pods."""

from collections.abc import Iterable, Mapping

import msgspec


class Requirement(msgspec.Struct, frozen=True, omit_defaults=True):
    """One expression on a label or, of nodes, (`field`) on `metadata.name`.

    Attributes:
        operator: `In`, `NotIn`, `Exists`, `DoesNotExist`; on nodes also `Gt` and `Lt`.
        values: sorted.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    field: bool = False


class PodSelector(msgspec.Struct, frozen=True, omit_defaults=True):
    """Selects pods by namespace and labels.

    Attributes:
        namespaces: names, sorted; a pod that names none means its own, which is written here then.
        namespace_labels: namespaces with these labels are selected besides; None for none, no requirement for all.
        labels: all must hold; None selects no pod at all, no requirement every pod.
        living: terminating pods are not selected.
    """

    namespaces: tuple[str, ...] = ()
    namespace_labels: tuple[Requirement, ...] | None = None
    labels: tuple[Requirement, ...] | None = None
    living: bool = False


#: Selectors of which a pod must meet every one, in no particular order.
Selection = tuple[PodSelector, ...]


def meets(labels: Mapping[str, str], requirements: Iterable[Requirement]) -> bool:
    """Tell whether labels meet all requirements, as Kubernetes' label selectors do.

    `NotIn` holds where the label is absent; an operator that label selectors do not have never holds.
    """
    return all(_holds(labels, requirement) for requirement in requirements)


def compares(value: str, requirement: Requirement) -> bool:
    """Tell whether a node's label meets `Gt` or `Lt`; not where it, or the bound, is no number."""
    try:
        have, bound = int(value), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > bound if requirement.operator == "Gt" else have < bound


def _holds(labels: Mapping[str, str], requirement: Requirement) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False
