"""A real Prometheus on a stack that runs: every query of boards and alerts is answered, from series that there are."""

import asyncio
from pathlib import Path

import promql_parser
import pytest

from tests.e2e.live_stack import PATIENCE_S, LiveStack, bound, pod_manifest
from tests.given.servers.ports import free_port
from tests.given.servers.prometheus_server import Prometheus, prometheus, scraping
from tests.given.servers.servers import scratch_directory
from tests.unit.deploy.test_monitoring import RULES, queries, selectors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not prometheus(), reason="no prometheus here; KAI_TEST_PROMETHEUS names one"),
]

#: Series that begin with what they count, and why a stack that is well, or was set up like this one, has none.
BEGIN_LATER = {
    "kai_kubelet_rejections_total": "a kubelet rejects a pod",
    "kai_predictions_missed_total": "a kubelet contradicts a prediction",
    "kai_observations_disbelieved_total": "an exporter says what cannot be",
    "kai_pods_unobserved_overdue": "an exporter is silent",
    "kai_binder_retries_total": "the API server does not answer a bind",
    "kai_binder_evictions_total": "a pod is evicted",
    "kai_feed_fallbacks_total": "a reader loses the bus",
    "kai_watcher_api_failures_total": "a list or watch fails",
    "kai_watcher_refused_objects_total": "an object says what cannot be",
    "kai_watcher_lost_parts_total": "a part of an object makes no sense",
    "kai_http_refused_total": "a client sends garbage",
    "kai_snapshots_discarded_total": "a snapshot is not what its digest says",
    "kai_stale_decisions_total": "something else changes a node first",
    "kai_relay_seals_refused_total": "the chain is broken",
    "kai_relay_deposit_failing": "deposits are configured",
    "kai_api_replayed_cycles_total": "the API replays by itself (KAI_REPLAY_EVERY_S), or is asked to",
    "kai_api_replay_differences_total": "likewise",
    "kai_api_replays_failed_total": "a replay does not end",
    "kai_operator_degraded": "the operator runs, in a cluster",
}
#: What has no `/metrics`, or is not ours to watch.
NOT_WATCHED = ("postgres", "nats", "apiserver")


def unanswered(asked: Prometheus) -> list[str]:
    """The queries, and the series in them, that are not answered though they should be."""
    missing = []
    for where, query in queries():
        one_query = query.replace("$__rate_interval", "10s")
        answer = asked.query(one_query)
        named = selectors(promql_parser.parse(one_query))
        later = {selector.name for selector in named} & BEGIN_LATER.keys()
        missing += [
            f"{where}: no series {selector.name}"
            for selector in named
            if selector.name not in later and not asked.query(f"count({selector.name})")
        ]
        if ".json" in where and not later and not answer:
            missing.append(f"{where}: no answer to {query}")
    return missing


async def test_every_query_of_boards_and_alerts_is_answered_by_a_prometheus_that_watches_a_stack() -> None:
    with scratch_directory() as root:
        stack = LiveStack(root / "stack")
        stack.start()
        try:
            services = {one["name"]: one["address"] for one in stack.ask("status")["services"]}
            watched = {name: at for name, at in services.items() if not name.endswith(NOT_WATCHED)}
            targets = {name: at.removeprefix("http://") for name, at in watched.items()}
            with scraping(root, targets, rules=RULES, port=free_port()) as asked:
                await _watched(stack, asked, targets, root)
        finally:
            stack.interrupt()


async def _watched(stack: LiveStack, asked: Prometheus, targets: dict[str, str], root: Path) -> None:
    await stack.create(pod_manifest("runs", cpu="2", memory="2Gi"), pod_manifest("never", cpu="1", gpu="99"))
    await stack.until(lambda state: bound(1, "runs")(state) and bool(state.reasons.by_class))
    missing = ["nothing was asked"]
    for _ in range(int(PATIENCE_S)):
        missing = unanswered(asked) + [f"{name}: {health}" for name, health in asked.rules().items() if health != "ok"]
        if not missing:
            break
        await asyncio.sleep(1)
    assert missing == [], (root / "prometheus.log").read_text()[-2000:]
    assert len(asked.query("up == 1")) == len(targets)
    assert asked.query('ALERTS{alertstate="firing"}') == [], "a stack that is well"
