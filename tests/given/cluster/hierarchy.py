"""Queues for tests, in few words."""

from collections.abc import Mapping
from typing import Any

from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.queues.accounts import LeafUse, QueueAccounts
from kaicore.rules.queues.division import Shares, divide
from kaicore.rules.queues.tree import QueueTree

GPU = "gpu"


def queue(name: str, parent: str = "", *, share: QueueShare | None = None, **kwargs: Any) -> Queue:
    """A queue of GPUs; `quota`, `limit`, `weight`, `lendable` and `borrowing` are of them."""
    given = {key: kwargs.pop(key) for key in list(kwargs) if key in QueueShare.__struct_fields__}
    shares = {GPU: share or QueueShare(**given)} if "shares" not in kwargs else kwargs.pop("shares")
    return Queue(name=name, uid=kwargs.pop("uid", f"uid-{name}"), parent=parent, shares=shares, **kwargs)


def tree(*queues: Queue) -> QueueTree:
    return QueueTree({one.name: one for one in queues})


def number(of: QueueTree, name: str) -> int:
    index = of.find(name)
    assert index is not None
    return index


def table(of: QueueTree, amounts: Mapping[str, int | Mapping[str, int]]) -> list[list[int]]:
    """Amounts by queue and resource; a bare number is of the first resource."""
    rows = [[0] * len(of.resources) for _ in of.queues]
    for name, amount in amounts.items():
        by_name = amount if isinstance(amount, Mapping) else {of.resources[0]: amount}
        for resource, value in by_name.items():
            rows[number(of, name)][of.resources.index(resource)] = value
    return rows


def fair(of: QueueTree, shares: Shares, resource: str = GPU) -> dict[str, int]:
    """Fair shares of a resource by queue; the default queue that is no object only if it has any."""
    place = of.resources.index(resource)
    rows = enumerate(row[place] for row in shares.fair)
    return {of.queues[index].name: share for index, share in rows if share or index != of.implied_default}


def accounts(
    of: QueueTree,
    total: int,
    *,
    used: Mapping[str, int],
    pending: Mapping[str, int] | None = None,
    non_preemptible: Mapping[str, int] | None = None,
) -> QueueAccounts:
    """Accounts of GPUs, the shares divided by what is used and pending."""
    names = {*used, *(pending or {})}
    requested = table(of, {name: used.get(name, 0) + (pending or {}).get(name, 0) for name in names})
    shares = divide(of, totals=[total], requested=requested)
    firm = non_preemptible or {}
    uses = {number(of, name): LeafUse((amount,), (firm.get(name, 0),)) for name, amount in used.items()}
    return QueueAccounts.of(of, shares, uses)
