"""A replay of a log from which a pod's name was erased finds no difference, and says how many digests are of it."""

from kaicore.ledger.log.chain import marked
from kaicore.rules.events.erasure import Erasure, pseudonym

from tests.given.logs.replaying import replayed
from tests.given.work.workloads import Workloads


def test_cycles_that_name_an_erased_pod_are_compared_decision_by_decision() -> None:
    cluster = Workloads().add_node("n1", cpu=4)
    cluster.gang("gang", 2, cpu=1)
    cluster.cycle()
    cluster.gang("other", 2, cpu=1)
    cluster.cycle()
    events = list(cluster.events)
    assert (replayed(events).differences, replayed(events).erased) == ([], 0)
    uid = next(event.stream.removeprefix("pod/") for event in events if event.subject.endswith("gang-1"))
    erasure = Erasure("default", "gang-1", (uid,), pseudonym(uid, before="gang-0", after="other-0"))
    erased = [event if (one := erasure.redacted(event)) is None else marked(b"", one) for event in events]
    report = replayed(erased)
    assert (report.differences, report.erased, report.cycles) == ([], 1, 2)
