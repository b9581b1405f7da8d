"""Ingest on Postgres, over HTTP: what is recorded, what is refused, and what survives."""

import asyncio
import re
from typing import Any

import msgspec
import pytest
from kai_ingest.reports import read_report
from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.model.pod import ContainerKind
from kaicore.runtime.access.node_tokens import node_token
from starlette.requests import ClientDisconnect

from tests.given.cluster.factory import amounts, container, pod, topology
from tests.given.processes.ingest_service import SECRET, Facts, Observations, RunningIngest, running_ingest
from tests.given.work.ingest_facts import decided, missed, seen
from tests.given.work.reports import GPU, pod_report, report


async def test_an_observation_that_contradicts_the_prediction_is_recorded_with_both_sides_once(
    ingest: RunningIngest, facts: Facts, log: PostgresLog, cluster_name: str
) -> None:
    right, wrong = pod("right", cpu=1), pod("wrong", cpu=1)
    zones = topology("n1", amounts(cpu=8), amounts(cpu=8), policy="restricted")
    await facts.append(("nrt/n1", payloads.TopologyObserved(zones)), *decided(right, "n1"), *decided(wrong, "n1"))
    both = pod_report("right", node_0={"cpu": 1}), pod_report("wrong", node_1={"cpu": 1})
    _, first = await ingest.post(report(*both))
    assert [one["name"] for one in first["again"]] == ["wrong"]
    await ingest.post(report(*both))
    assert ingest.counted("missed_predictions_total", policy="restricted", cause="zones") == 0, "the same read again"
    for second in (1, 2):
        _, answer = await ingest.post(report(*both, sequence=1 + second, observed_at=10_000_000_000 + second))
        assert answer["again"] == []
    (miss,) = await missed(log, cluster_name, 1)
    assert (miss.name, miss.node, miss.policy, miss.cause) == ("wrong", "n1", "restricted", "zones")
    assert miss.predicted is not None
    assert miss.observed is not None
    assert miss.predicted.zone_amounts()[0].zone == "node-0"
    assert miss.observed.zone_amounts()[0].zone == "node-1"
    assert ingest.counted("missed_predictions_total", policy="restricted", cause="zones") == 1


async def test_a_half_read_is_not_recorded_before_it_was_read_twice(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    one = pod("a", cpu=4, memory=4)
    whole = {"cpu": 4000, "memory": 4 * 2**30}
    main = ContainerPlacement("main", zones=(ZoneAmount("node-0", whole),))
    decision = payloads.PodPlaced(
        one.uid, "default", "a", "n1", "c/1", "class", Placement(Provenance.PREDICTED, (main,))
    )
    zones = topology("n1", amounts(cpu=8, memory=8), amounts(cpu=8, memory=8))
    stream = f"pod/{one.uid}"
    await facts.append(
        ("nrt/n1", payloads.TopologyObserved(zones)), (stream, payloads.PodObserved(one)), (stream, decision)
    )
    half = pod_report("a", node_0={"cpu": 4000})
    _, answer = await ingest.post(report(half))
    assert "half of an admission" in answer["unknown"][0]["detail"]
    assert ingest.counted("refused_total", reason="half") == 1
    assert ingest.lines() == [], "what is over in a moment is no warning"
    await ingest.post(report(pod_report("a", node_0=whole), sequence=2, observed_at=10_000_000_001))
    assert await observed.summary() == ["a node-0:cpu=4000 node-0:memory=4294967296"]
    for second in (2, 3):
        _, answer = await ingest.post(report(half, sequence=1 + second, observed_at=10_000_000_000 + second))
        assert bool(answer["unknown"]) == (second == 2)
    assert (await observed.summary())[1:] == ["a node-0:cpu=4000"]
    assert ingest.counted("missed_predictions_total", policy="single-numa-node", cause="zones") == 1


async def test_what_the_state_files_confirm_is_a_miss_at_once_and_has_init_containers(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    one = pod("a", container("setup", ContainerKind.INIT, cpu=3), container(cpu=1))
    zones = topology("n1", amounts(cpu=8), amounts(cpu=8))
    await facts.append(("nrt/n1", payloads.TopologyObserved(zones)), *decided(one, "n1"))
    given = pod_report("a", node_1={"cpu": 1000})
    init = [{"name": "setup", "zones": [{"zone": "node-1", "amount": {"cpu": 2000}}]}]
    given |= {"uid": one.uid, "checked": True, "init_containers": init}
    _, answer = await ingest.post(report(given))
    assert (answer["unknown"], answer["refused"], answer["again"]) == ([], [], [])
    assert ingest.counted("missed_predictions_total", policy="single-numa-node", cause="zones") == 1
    (payload,) = await observed.payloads()
    assert payload.placement.init == ("setup",)
    assert [item.container for item in payload.placement.containers] == ["main", "setup"]
    _, answer = await ingest.post(report(given | {"uid": "uid-of-its-predecessor"}, sequence=2))
    assert "the log knows no such pod" in answer["unknown"][0]["detail"]
    twice = given | {"init_containers": [{"name": "main"}]}
    _, answer = await ingest.post(report(twice, sequence=3))
    assert "a container is named twice" in answer["refused"][0]["detail"]


async def test_a_rejection_of_a_pod_that_was_placed_is_a_missed_prediction(
    log: PostgresLog, facts: Facts, cluster_name: str
) -> None:
    ours, foreign = pod("ours", cpu=1), pod("foreign", cpu=1, scheduler_name="other", node_name="n1")
    zones = topology("n1", amounts(cpu=8), policy="single-numa-node")
    rejected = [
        (f"pod/{one.uid}", payloads.PodRejected(one.uid, "default", one.name, "n1", "TopologyAffinityError", "why"))
        for one in (foreign, ours)
    ]
    seen_foreign = (f"pod/{foreign.uid}", payloads.PodObserved(foreign))
    await facts.append(("nrt/n1", payloads.TopologyObserved(zones)), *decided(ours, "n1"), seen_foreign, *rejected)
    for _ in range(2):
        async with running_ingest(log, cluster_name):
            (miss,) = await missed(log, cluster_name, 1)
            assert (miss.name, miss.cause, miss.message) == ("ours", "TopologyAffinityError", "why")
            assert miss.observed is None


async def test_a_report_becomes_an_observation(ingest: RunningIngest, facts: Facts, observed: Observations) -> None:
    await facts.append(seen("a"))
    status, answer = await ingest.post(report(pod_report("a", node_1={"cpu": 8000, GPU: 2}), instance="x", sequence=7))
    assert (status, answer) == (
        200,
        {"node": "n1", "status": "taken", "detail": "", "unknown": [], "refused": [], "again": []},
    )
    (event,) = await observed.events()
    assert (event.stream, event.subject, event.actor, event.occurred_at) == (
        "pod/uid-a",
        "default/a",
        "ingest",
        10_000_000_000,
    )
    (payload,) = await observed.payloads()
    assert (payload.uid, payload.node, payload.source) == ("uid-a", "n1", "exporter")
    assert payload.placement == Placement(
        Provenance.OBSERVED, (ContainerPlacement("main", zones=(ZoneAmount("node-1", {"cpu": 8000, GPU: 2}),)),)
    )
    assert ingest.counted("observations_total", source="exporter") == 1
    assert ingest.lines() == []


async def test_changes_are_recorded_and_repetitions_are_not(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a"))
    a, b = pod_report("a", node_0={"cpu": 1000}), pod_report("a", node_1={"cpu": 1000})
    for sequence, content in enumerate([a, a, b, b, a, a], start=1):
        status, _ = await ingest.post(report(content, sequence=sequence))
        assert status == 200
    assert await observed.summary() == ["a node-0:cpu=1000", "a node-1:cpu=1000", "a node-0:cpu=1000"]
    assert ingest.counted("unchanged_pods_total") == 3


async def test_many_reports_at_once_are_all_recorded(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    """Reports of different nodes, and the same report from a client that was too impatient to wait."""
    await facts.append(*(seen(f"p{index}", f"n{index}") for index in range(20)))
    statuses = await asyncio.gather(
        *(
            ingest.post(report(pod_report(f"p{index}", node_0={"cpu": 1000}), node=f"n{index}"), node=f"n{index}")
            for index in [*range(20), *range(20)]
        )
    )
    assert {status for status, _ in statuses} == {200}
    assert sorted(await observed.summary()) == sorted(f"p{index} node-0:cpu=1000" for index in range(20))


async def test_one_request_may_report_several_nodes(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a", "n1"), seen("b", "n2"), seen("c", "n3"))
    body = {
        "reports": [
            report(pod_report("a", node_0={"cpu": 1000})),
            report(pod_report("c", node_0={"cpu": 1000}), node="n3", version=3),
            report(pod_report("b", node_0={"cpu": 2000}), pod_report("x", node_0={"cpu": 1}), node="n2"),
            report(node="n1"),
            7,
        ]
    }
    status, answer = await ingest.post(body, node=None)
    assert status == 200
    assert [(one["node"], one["status"]) for one in answer["answers"]] == [
        ("n1", "taken"),
        ("n3", "refused"),
        ("n2", "taken"),
        ("n1", "refused"),
        ("None", "refused"),
    ]
    assert [one["name"] for one in answer["answers"][2]["unknown"]] == ["x"]
    assert await observed.summary() == ["a node-0:cpu=1000", "b node-0:cpu=2000"]
    assert ingest.counted("refused_total", reason="report") == 3


NODE_0 = {"node_0": {"cpu": 1000}}


BAD_PODS = {
    "unknown pod": (pod_report("x", **NODE_0), "unknown", "Pod default/x: the log knows no"),
    "wrong node": (pod_report("far", **NODE_0), "elsewhere", "Pod default/far: node: 'n1': .*on n2"),
    "finished pod": (pod_report("done", **NODE_0), "finished", "Pod default/done: uid: 'uid-done'"),
    "two of a name": (pod_report("twin", **NODE_0), "ambiguous", "Pod default/twin: uid: 'u1, u2'"),
    "too old": (pod_report("young", **NODE_0), "ambiguous", "Pod default/young: observed_at: 10000000000: before"),
    "zone the node has not": (pod_report("a", node_9={"cpu": 1}), "zone", "Pod default/a: zone: .*: 'node-9'"),
    "no zone": (pod_report("a", zone={"cpu": 1}), "invalid", r"default/a: .*zones\[0\].zone: .*'zone'"),
    "absurd": (pod_report("a", node_0={"cpu": 10**30}), "invalid", r"default/a: .*amount.cpu: .*: 1000"),
    "more than it asks for": (
        pod_report("a", node_0={"cpu": 4000}, node_1={"cpu": 5000}),
        "invalid",
        r"Pod default/a: containers\[main\].cpu: the container asks for 8 at most: '9'",
    ),
    "what it does not ask for": (
        pod_report("a", node_0={"foo/bar": 1}),
        "invalid",
        r"Pod default/a: containers\[main\].foo/bar: the container asks for 0 at most: '1'",
    ),
    "more than the zone has": (
        pod_report("a", node_0={"cpu": 5000}),
        "invalid",
        "Pod default/a: node-0.cpu: the zone has 4: '5'",
    ),
    "no container of it": (
        pod_report("a", node_0={"cpu": 1000})
        | {"containers": [{"name": "zzz", "zones": [{"zone": "node-0", "amount": {"cpu": 1}}]}]},
        "invalid",
        r"Pod default/a: containers\[zzz\]: is none of the pod's containers \(main\): 'zzz'",
    ),
    "negative": (pod_report("c", node_0={"cpu": -8}), "invalid", r"default/c: .*amount.cpu: .*: -8"),
    "duplicate containers": (
        {**pod_report("a"), "containers": [{"name": "m"}, {"name": "m"}]},
        "invalid",
        "default/a: containers: a container is named twice",
    ),
    "duplicate pods": (pod_report("b", **NODE_0), "invalid", "pods: .*twice: 'default/b'"),
    "no pod at all": ("pod", "invalid", r"Pod \?/\?: body: .*: 'pod'"),
}


async def test_a_bad_pod_disturbs_nothing_else(
    ingest: RunningIngest, facts: Facts, observed: Observations, subtests: pytest.Subtests
) -> None:
    await facts.append(
        ("nrt/n1", payloads.TopologyObserved(topology("n1", amounts(cpu=4), amounts(cpu=4)))),
        seen("a"),
        seen("b"),
        seen("far", "n2"),
        seen("done", phase="Succeeded"),
        seen("twin", uid="u1"),
        seen("twin", uid="u2"),
        seen("young", created_at=10_005),
    )
    sequence = 0
    for case, (bad, reason, message) in BAD_PODS.items():
        with subtests.test(case):
            counted, logged = ingest.counted("refused_total", reason=reason), len(ingest.logs)
            for _ in range(2):
                sequence += 1
                status, answer = await ingest.post(report(pod_report("b", **NODE_0), bad, sequence=sequence))
                assert (status, len(answer["refused" if reason == "invalid" else "unknown"])) == (200, 1)
            assert ingest.counted("refused_total", reason=reason) == counted + 2
            (line,) = ingest.lines("observation refused")[logged:]
            assert re.search(message, line), line
    assert await observed.summary() == ["b node-0:cpu=1000"]


BAD_REQUESTS: dict[str, tuple[Any, dict[str, Any], int, str]] = {
    "no token": (report(), {"token": ""}, 401, "Authorization: no bearer token"),
    "made-up token": (report(), {"token": "n1.x"}, 401, "no node token of this cluster"),
    "another's token": (report(), {"token": "?"}, 403, "the token of node 'n2' is not for node 'n1'"),
    "not for all": ({"reports": []}, {"node": None, "token": "?"}, 403, "'n2' is not for node '*'"),
    "wrong cluster": (report(), {"cluster": "other"}, 404, "cluster: only "),
    "report of another node": (report(node="n2"), {}, 422, "node: is not the node of the path: 'n2'"),
    "malformed JSON": (b"{", {}, 422, "body: Invalid JSON"),
    "nothing": (b"", {}, 422, "body: Invalid JSON"),
    "wrong type": (report(sequence="1"), {}, 422, "sequence: "),
    "a NUL": (b'{"version": 1\0}', {}, 400, "body: has a NUL in it"),
    "an escaped NUL": (report(node="n1\0"), {}, 400, "body: has a NUL in it"),
    "no UTF-8": (b'{"version": "\xff"}', {}, 400, "body: is not UTF-8: byte 13: 0xff"),
    "half a surrogate pair": (b'{"version": "\\ud800"}', {}, 422, "body: Invalid JSON"),
    "no list of reports": ({"reports": {}}, {"node": None}, 422, "reports: reports: "),
}


async def test_a_bad_request_is_refused_whole(
    log: PostgresLog, cluster_name: str, observed: Observations, subtests: pytest.Subtests
) -> None:
    async with running_ingest(log, cluster_name) as ingest:
        for case, (body, request, status, message) in BAD_REQUESTS.items():
            with subtests.test(case):
                token = request.get("token")
                if token == "?":
                    token = node_token(SECRET, cluster=cluster_name, node="n2")
                counted, logged = ingest.counted("refused_total", reason=f"http-{status}"), len(ingest.logs)
                got, answer = await ingest.post(body, **{**request, "token": token})
                assert got == status
                assert message in answer["error"]
                assert ingest.counted("refused_total", reason=f"http-{status}") == counted + 1
                assert [message in line for line in ingest.lines("report refused")[logged:]] == [True]
        assert ingest.counted("requests_total", status="200") == 0
    assert await observed.summary() == []


async def test_a_report_that_nobody_waits_for_any_more_is_not_recorded(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a"))

    async def given_up() -> None:
        raise ClientDisconnect

    late = read_report(report(pod_report("a", node_0={"cpu": 1000})))
    with pytest.raises(ClientDisconnect):
        await ingest.ingest.take([late], still_waited_for=given_up)
    await ingest.post(report(pod_report("a", node_1={"cpu": 1000}), sequence=2))
    assert await observed.summary() == ["a node-1:cpu=1000"]


async def test_log_that_has_not_what_a_kubelet_still_says_is_found_and_mended(
    ingest: RunningIngest, facts: Facts, observed: Observations, log: PostgresLog, cluster_name: str
) -> None:
    await facts.append(seen("a"), seen("b"))
    given = [pod_report(name, node_0={"cpu": 1000}) for name in ("a", "b")]
    await ingest.post(report(*given))
    wrong = await observed.reach(2)
    spoilt = msgspec.structs.replace(wrong[0], placement=Placement(Provenance.OBSERVED, ()))
    await facts.append((f"pod/{spoilt.uid}", spoilt))
    await ingest.post(report(*({**one, "again": True} for one in given), sequence=2, full=True))
    assert await observed.summary() == ["a node-0:cpu=1000", "b node-0:cpu=1000", "a", "a node-0:cpu=1000"]
    (found,) = map(decode_payload, await log.read(cluster_name, where=Filter(types=("DifferenceFound",))))
    assert isinstance(found, payloads.DifferenceFound)
    assert (found.check, found.parts) == ("exporter", ("Pod default/a",))
    assert found.after < found.upto
