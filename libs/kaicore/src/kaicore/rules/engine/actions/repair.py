"""Pods on zones that their own NUMA policy does not allow: evicted one by one where a successor has a better node."""

from kaicore.rules.engine.decisions import Healing
from kaicore.rules.engine.session import Session


def heal(session: Session) -> None:
    """Have stray pods evicted for which another node is left; it is charged, so that nobody else counts on it."""
    done: set[tuple[str, str]] = set()
    waiting = {session.key_of(member) for turn in session.turns.values() for member in turn.left}
    for stray in session.given.stray:
        member, pod = stray.member, stray.member.pod
        class_key = session.key_of(member)
        owner = "" if pod.owner is None else pod.owner.uid
        # Where alike pods wait, a successor would only wait with them.
        if (owner, class_key) in done or class_key in waiting or pod.uid in session.evicted:
            continue
        if session.failures.refuse([member]):
            # Its Job would rather have it where it is than fail.
            continue
        workload = session.given.workloads.get(member.group)
        if workload is not None and workload.unsupported:
            continue
        if session.placer.place(member, besides=session.trail.columns.rows[member.node]) is None:
            continue
        done.add((owner, class_key))
        session.failures.take([member])
        session.healings.append(
            Healing(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                node=member.node,
                pod_class=class_key,
                owner=owner,
                missed=stray.missed,
            )
        )
