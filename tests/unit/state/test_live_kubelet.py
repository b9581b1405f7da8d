"""The accounts of the run on real kubelets: what they were denied for must not be promised again."""

from kaicore.events.codec import decode_payload
from kaicore.events.payloads import PodRejected
from kaicore.state.cluster_state import ClusterState

from tests.live_kubelet import CLUSTER, ZONES, Checkpoints, cpus_by_zone, recorded_events


def test_accounts_at_the_denials_without_state_files_are_the_kubelets() -> None:
    """Of pods that were observed by then; what init containers keep is predicted again."""
    state, checkpoints, denials = ClusterState(CLUSTER), Checkpoints(), []
    for event in recorded_events():
        for _ in checkpoints.advance(event.occurred_at):
            pass
        if event.type == "PodRejected":
            denied = decode_payload(event)
            assert isinstance(denied, PodRejected)
            denials.append(denied.name)
            for entry in state.charges.held_on(denied.node):
                given = checkpoints.entries[denied.node].get(entry.pod.uid)
                if entry.observed is not None and given is not None:
                    charged = dict.fromkeys(ZONES, 0)
                    for zone, resource, amount in entry.zone_charge.amounts:
                        charged[ZONES[zone]] += amount if resource == "cpu" else 0
                    assert charged == cpus_by_zone(frozenset().union(*given.values())), entry.pod.name
        state.fold(event)
    assert denials == ["b-nic-74", "b-g2-33", "b-g2-62", "b-cpu-28"]
