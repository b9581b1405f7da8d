"""The plan: operands to create, change and delete, so that the cluster matches the Config and the shards.

An object is changed where fields differ from its desired form. Only fields that the operator sets are compared. Fields
that the API server fills in, or that others add, are left unchanged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kaicore.errors import InvalidQuantity
from kaicore.kube.kinds.operands.specs import (
    CONFIG_NAME,
    MANAGED_BY,
    OPERAND_KINDS,
    OPERATOR,
    ConfigSpec,
    Key,
    ShardSpec,
    controller_uid,
    enables_numa,
    is_ours,
    key_of,
    read_config,
    read_shard,
    title_of,
)
from kaicore.kube.kinds.operands.templates import exporter_operands, scheduler_operands
from kaicore.rules.model.quantity import CPU, parse_amount
from kaicore.rules.objects.mappings import Object

#: What tells the elements of Kubernetes' lists apart, where they are objects.
_NAMES = ("name", "mountPath", "containerPort", "port", "uid", "topologyKey")


def lacks(wanted: Any, live: Any) -> str:
    """Return the path of the first thing that is wanted and not so; empty where there is none."""
    return next(_differences(wanted, live, ""), "")


def _differences(wanted: Any, live: Any, path: str) -> Iterator[str]:
    if isinstance(wanted, dict):
        if not isinstance(live, dict):
            yield path or "."
            return
        for key, value in wanted.items():
            at = f"{path}.{key}" if path else key
            if key not in live:
                # What is empty may be left out.
                if value not in (None, {}, [], ""):
                    yield at
            else:
                yield from _differences(value, live[key], at)
    elif isinstance(wanted, list):
        yield from _of_lists(wanted, live, path)
    elif wanted != live and not _same_amount(wanted, live, path):
        yield path


def _of_lists(wanted: list[Any], live: Any, path: str) -> Iterator[str]:
    if not isinstance(live, list):
        if wanted:
            yield path
        return
    name = next((name for name in _NAMES if _tells_apart(wanted, name) and _tells_apart(live, name)), None)
    if name is None:
        if len(wanted) != len(live):
            yield path
            return
        for index, (one, other) in enumerate(zip(wanted, live, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
        return
    by_name = {element[name]: element for element in live}
    for element in wanted:
        at = f"{path}[{name}={element[name]}]"
        if element[name] in by_name:
            yield from _differences(element, by_name[element[name]], at)
        else:
            yield at


def _tells_apart(elements: list[Any], name: str) -> bool:
    return all(isinstance(element, dict) and name in element for element in elements) and len(
        {str(element[name]) for element in elements}
    ) == len(elements)


def _same_amount(wanted: Any, live: Any, path: str) -> bool:
    """Tell whether two quantities are one: an API server writes `1000m` as `1`."""
    if ".requests." not in path and ".limits." not in path:
        return False
    resource = CPU if path.endswith(".cpu") else "memory"
    try:
        one, other = (parse_amount(text, resource=resource, subject="", field=path) for text in (wanted, live))
    except InvalidQuantity:
        return False
    return one == other


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentObjects:
    """The cluster's present objects.

    Attributes:
        configs: every Config.
        shards: every SchedulingShard.
        objects: every object of the operands' kinds in their namespace, also those that are no operands.
    """

    configs: Sequence[Object]
    shards: Sequence[Object]
    objects: Sequence[Object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The operator's own settings.

    Attributes:
        image: of operands for which the Config names none; empty for the templates'.
        exporter: templates of the exporter.
        scheduler: templates of a scheduler.
    """

    namespace: str
    image: str
    exporter: tuple[Object, ...]
    scheduler: tuple[Object, ...]


@dataclass(slots=True, kw_only=True)
class Part:
    """The desired operands of one owner.

    Attributes:
        owner: the Config or the shard.
        reason: why it is as it is, for conditions: `Wanted`, `NotWanted`, `InvalidSpec`, `NoConfig`, `NotTheConfig`.
        wanted: the operands as they are to be; None for as they are, where it is not known.
        ignored: fields that count for nothing.
        taken: objects that have an operand's name and are not the operator's.
        apply: operands that lack something, with what.
        prune: operands that are to go.
    """

    owner: Object
    reason: str = "Wanted"
    because: str = ""
    wanted: tuple[Object, ...] | None = None
    ignored: tuple[str, ...] = ()
    taken: list[str] = field(default_factory=list)
    apply: list[tuple[Object, str]] = field(default_factory=list)
    prune: list[Object] = field(default_factory=list)


def plan(seen: PresentObjects, given: Given) -> list[Part]:
    """Return what is to be done for each Config and shard; the Config that counts first, shards by age."""
    configs = [config for config in seen.configs if is_ours(config)]
    config = next((one for one in configs if one["metadata"]["name"] == CONFIG_NAME and not _goes(one)), None)
    parts = [
        Part(owner=other, reason="NotTheConfig", because=f"only the Config {CONFIG_NAME} counts")
        for other in configs
        if other is not config and not _goes(other)
    ]
    shards = sorted((shard for shard in seen.shards if not _goes(shard)), key=_age)
    if config is None:
        because = f"there is no Config {CONFIG_NAME}; what was made before stays as it is"
        return [*parts, *(Part(owner=shard, reason="NoConfig", because=because) for shard in shards)]
    spec, faults = read_config(config)
    parts.append(_exporter_part(config, spec, faults, shards, given))
    if faults:
        because = f"the Config {CONFIG_NAME} cannot be read; what was made before stays as it is"
        parts.extend(Part(owner=shard, reason="NoConfig", because=because) for shard in shards)
    else:
        parts.extend(_shard_parts(shards, spec, given))
    live = {key_of(obj): obj for obj in seen.objects}
    for part in parts:
        _compare(part, live)
    return parts


def _exporter_part(
    config: Object, spec: ConfigSpec, faults: Sequence[str], shards: Iterable[Object], given: Given
) -> Part:
    if faults:
        return Part(owner=config, reason="InvalidSpec", because="; ".join(faults))
    enabling = [shard["metadata"]["name"] for shard in shards if enables_numa(shard)]
    enabled, field_name = spec.exporter.enabled, "numaPlacementExporter.service.enabled"
    if enabled is None:
        because = f"NUMA is enabled in {', '.join(enabling)}" if enabling else "no SchedulingShard enables NUMA"
    else:
        because = f"{field_name} is {str(enabled).lower()}"
    if not (bool(enabling) if enabled is None else enabled):
        return Part(owner=config, reason="NotWanted", because=because, wanted=())
    operands = exporter_operands(given.exporter, config, spec, namespace=given.namespace, image=given.image)
    return Part(owner=config, because=because, wanted=tuple(operands))


def _shard_parts(shards: Iterable[Object], spec: ConfigSpec, given: Given) -> Iterator[Part]:
    pools: dict[str, str] = {}
    for shard in shards:
        read = read_shard(shard)
        faults = list(read.faults)
        if not faults and (other := pools.setdefault(read.node_pool, read.name)) != read.name:
            faults = [f"spec.partitionLabelValue: is SchedulingShard {other}'s already: {read.node_pool!r}"]
        yield _shard_part(shard, read, faults, spec, given)


def _shard_part(shard: Object, read: ShardSpec, faults: Sequence[str], spec: ConfigSpec, given: Given) -> Part:
    if faults:
        return Part(owner=shard, reason="InvalidSpec", because="; ".join(faults), ignored=read.ignored)
    operands = scheduler_operands(given.scheduler, shard, read, spec, namespace=given.namespace, image=given.image)
    return Part(owner=shard, wanted=tuple(operands), ignored=read.ignored)


def _compare(part: Part, live: dict[Key, Object]) -> None:
    """Find what a part's operands lack, and which of the owner's are not among them."""
    if part.wanted is None:
        return
    uid = part.owner["metadata"]["uid"]
    for operand in part.wanted:
        there = live.get(key_of(operand))
        if there is None:
            part.apply.append((operand, "is not there"))
        elif _is_operand_of(there, uid):
            if not _goes(there) and (lacking := lacks(operand, there)):
                part.apply.append((operand, lacking))
        elif not _goes(there) and not controller_uid(there):
            part.taken.append(
                f"{title_of(there)} is there and was not made by the operator: delete it, or label it "
                f"{MANAGED_BY}={OPERATOR} to have it taken over"
            )
        else:
            part.taken.append(f"{title_of(there)} is another owner's, or about to go")
    keys = {key_of(operand) for operand in part.wanted}
    part.prune.extend(
        obj
        for key, obj in live.items()
        if key not in keys and controller_uid(obj) == uid and _is_managed(obj) and not _goes(obj)
    )
    part.apply.sort(key=lambda wanted: list(OPERAND_KINDS).index(wanted[0]["kind"]))


def _is_operand_of(obj: Object, uid: str) -> bool:
    """Tell whether an object is an owner's, or the operator's without an owner (which was deleted without it)."""
    controller = controller_uid(obj)
    return controller == uid or (not controller and _is_managed(obj))


def _is_managed(obj: Object) -> bool:
    return (obj["metadata"].get("labels") or {}).get(MANAGED_BY) == OPERATOR


def _goes(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _age(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("creationTimestamp") or "", obj["metadata"]["name"]
