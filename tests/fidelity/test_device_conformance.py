"""Devices are allocated as Kubernetes' own allocator does, by its recorded answers."""

from tests.fidelity.device_comparison import differences
from tests.fidelity.device_oracle import recorded


def test_allocations_are_those_of_kubernetes_own_allocator() -> None:
    differing = [(number, list(differences(case, given))) for number, (case, given) in enumerate(recorded())]
    assert len(differing) == 601
    assert [one for one in differing if one[1]] == []
