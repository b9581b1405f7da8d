"""Mixed pods on strict kubelets that are ahead of the API: none is rejected, and none waits for good."""

import os

from tests.chaos.profile import PROFILE
from tests.given.doubles.virtual_storm import PROFILES, VirtualStorm, blow

#: How long pods come; `make storm` has hours.
SECONDS = 100 if "KAI_TEST_LONG" in os.environ else 15


def test_no_kubelet_rejects_what_was_decided_though_it_is_ahead_of_the_api() -> None:
    storm = VirtualStorm(PROFILE, 4)
    blow(storm, SECONDS)
    assert storm.rejected == []
    assert storm.admitted > 4 * SECONDS
    # What waits for good is of gangs only of which a member was deleted.
    deleted = {name.partition("-")[0] for name, sent in storm.pods.items() if sent.deleted}
    waiting = {storm.cluster.state.pods[uid].pod.name.partition("-")[0] for uid in storm.cluster.state.waiting}
    assert waiting <= deleted


def test_no_best_effort_kubelet_lacks_memory_or_cpus_for_what_was_decided() -> None:
    storm = VirtualStorm(PROFILES["best-effort"], 100)
    blow(storm, SECONDS)
    assert storm.rejected == []
    assert storm.admitted > 4 * SECONDS


def test_kubelets_without_an_exporter_reject_some_decisions() -> None:
    storm = VirtualStorm(PROFILE, 2, observing=False)
    blow(storm, 20)
    assert storm.rejected
