"""Snapshots of the state: how they are taken and verified."""

from kaicore.errors import CorruptLog
from kaicore.ledger.log.port import Snapshot
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, decode_state, encode_state


def take_state(state: ClusterState) -> Snapshot:
    """Return a snapshot of a state as it is now."""
    return Snapshot(STATE_SNAPSHOT, state.position, SNAPSHOT_SCHEMA, encode_state(state))


def read_state(cluster: str, snapshot: Snapshot) -> ClusterState:
    """Return the state that a snapshot holds.

    Raises:
        msgspec.DecodeError: its bytes are no state.
        CorruptLog: it is another cluster's, or of another position.
    """
    state = decode_state(snapshot.body)
    if (state.cluster, state.position) != (cluster, snapshot.position):
        raise CorruptLog(
            f"cluster {cluster}: the snapshot at {snapshot.position} holds cluster {state.cluster} at {state.position}"
        )
    return state
