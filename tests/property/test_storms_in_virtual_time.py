"""Mixed pods on strict kubelets that are ahead of the API: none is rejected, and none waits for good."""

from tests.chaos.profile import PROFILE
from tests.virtual_storm import PROFILES, VirtualStorm, blow


def test_no_kubelet_rejects_what_was_decided_though_it_is_ahead_of_the_api() -> None:
    storms = [VirtualStorm(PROFILE, seed) for seed in (4, 6)]
    for storm in storms:
        blow(storm, 30)
    assert [storm.rejected for storm in storms] == [[], []]
    assert sum(storm.admitted for storm in storms) > 300
    # What waits for good is of gangs only of which a member was deleted.
    for storm in storms:
        deleted = {name.partition("-")[0] for name, sent in storm.pods.items() if sent.deleted}
        waiting = {storm.cluster.state.pods[uid].pod.name.partition("-")[0] for uid in storm.cluster.state.waiting}
        assert waiting <= deleted


def test_no_best_effort_kubelet_lacks_memory_or_cpus_for_what_was_decided() -> None:
    storm = VirtualStorm(PROFILES["best-effort"], 100)
    blow(storm, 100)
    assert storm.rejected == []
    assert storm.admitted > 500


def test_kubelets_without_an_exporter_reject_some_decisions() -> None:
    storm = VirtualStorm(PROFILE, 2, observing=False)
    blow(storm, 20)
    assert storm.rejected
