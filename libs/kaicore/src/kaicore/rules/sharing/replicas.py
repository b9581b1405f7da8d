"""Replicas of a shard: their names, and the rule for changing the log's list of them.

The list of a shard's replicas is in the log (`ReplicasChanged`), and every cycle's append names its version. So within
one version of the list each group has one owner, and a replica's decisions by an older version are refused as a whole.
Liveness (`kaicore.rules.sharing.liveness`) only shows when the list should change.
"""

from collections.abc import Collection

#: Between a shard's name and a replica's, in the name under which a replica records its cycles.
_SEPARATOR = "/"


def replica_shard(shard: str, replica: str) -> str:
    """Return the name under which a replica records its cycles; the shard's own where it is the only one."""
    return f"{shard}{_SEPARATOR}{replica}" if replica else shard


def split_shard(name: str) -> tuple[str, str]:
    """Return a shard's name and its replica's, from the name under which cycles are recorded."""
    shard, _, replica = name.partition(_SEPARATOR)
    return shard, replica


def replicas_stream(shard: str) -> str:
    """Return the stream of a shard's lists of replicas."""
    return f"replicas/{shard}"


def due_replicas(
    listed: Collection[str],
    live: Collection[str],
    *,
    replica: str,
    fresh: bool = True,
    unlike_s: float,
    step_s: float = 1.0,
) -> tuple[str, ...] | None:
    """Return the list that a replica is to record in place of the one in the log; None as long as it leaves that be.

    A replica that is not listed lists itself at once. Those that are no longer live are taken off by the first of the
    live ones, by name; each further one waits `step_s` longer, in case those before it do not come to it. As long as
    none can be seen the list stays as it is, unless it is empty: one that cannot see the others leaves them their work.

    Args:
        listed: the list in the log.
        live: the replicas that count as live, this one among them.
        replica: this one.
        fresh: whether it is known who is live.
        unlike_s: for how long the two have been unlike, seconds.
        step_s: see above.
    """
    if not fresh:
        return None if listed else (replica,)
    if set(listed) == set(live):
        return None
    if replica in listed:
        gone = set(listed) - set(live)
        if not gone or unlike_s < sorted(live).index(replica) * step_s:
            return None
        return tuple(sorted(live))
    # It takes none off by the way: two that begin at once do not see each other yet.
    return tuple(sorted({*listed, replica}))
