"""A what-if over history, on the log of a small cluster."""

import asyncio
from functools import partial

import msgspec
import pytest
from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.history.alternative import HistoryQuestion, PatchText
from kaicore.analysis.trial.history.comparison import Fares, HistoryComparison, compare_history
from kaicore.errors import ConfigurationError, UnknownMoment
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events import payloads

from tests.given.cluster.fleets import aligned, fleet
from tests.given.doubles.virtual_storm import VirtualStorm, blow
from tests.given.logs.recorded_history import PROFILE, log_of, manifest, saturated

CLUSTER = "test"


@pytest.fixture(scope="module")
def storm() -> VirtualStorm:
    return saturated(20)


@pytest.fixture(scope="module")
def short_storm() -> VirtualStorm:
    return saturated(3, seconds=1)


async def ask(log: MemoryLog, *patches: str, **question: object) -> HistoryComparison:
    texts = tuple(PatchText(name=f"patch-{number}", text=text) for number, text in enumerate(patches))
    return await compare_history(log, CLUSTER, HistoryQuestion(patches=texts, **question), OfflineKubelets)


@pytest.fixture(scope="module")
def answer(storm: VirtualStorm) -> HistoryComparison:
    """One baseline, an alternative that changes nothing, and five others."""
    patches = (
        "{}",
        "nodes: {add: [{like: gpu-0, count: 2}]}",
        "nodes: {add: [{profile: mini, count: 3}]}",
        "nodes: {remove: [gpu-1]}",
        "{settings: {numa: false}, nodes: {change: [{nodes: ['gpu-*'], topologyPolicy: none}]}}",
        "settings: {numa: false}",
    )

    async def asked() -> HistoryComparison:
        return await ask(await log_of(storm.cluster.events), *patches)

    return asyncio.run(asked())


def test_an_unchanged_baseline_does_as_was_recorded(answer: HistoryComparison) -> None:
    assert answer.recorded.pods == answer.baseline.pods == 20
    assert answer.recorded.started > 10
    assert abs(answer.validity.started) <= 1
    assert answer.validity.same_nodes >= 0.9
    assert answer.validity.same_waits >= 0.9
    assert abs(answer.validity.occupancy) < 0.05
    assert answer.recorded.rejections == answer.baseline.rejections == 0
    assert answer.assumptions.observed >= 10


async def test_cycles_run_when_the_recorded_ones_did_so_pods_go_to_the_same_nodes() -> None:
    storm = VirtualStorm(PROFILE.replace("count: 2", "count: 12"), seed=1)
    for number in range(30):
        pod = manifest(f"p{number}", seconds=2 + number % 7, cpu=1 + number % 4, gpu=number % 3)
        storm.later(number * 0.37 % 5, partial(storm.create, pod))
    storm.run(20)
    answer = await ask(await log_of(storm.cluster.events))
    assert answer.recorded.started == 30
    assert answer.validity.same_nodes >= 0.9


async def test_pods_of_a_node_that_is_lost_are_lost_and_made_again() -> None:
    storm = saturated(6, seconds=100)
    storm.cluster.record("node/gpu-1", payloads.NodeDeleted("uid-gpu-1", "gpu-1"))
    storm.run(300)
    baseline = (await ask(await log_of(storm.cluster.events))).baseline
    # The log's own kubelet let them run to their end; simulated ones are gone with their node.
    assert (baseline.pods, baseline.lost, baseline.rejections) == (6, 2, 0)
    assert baseline.finished == 4


def test_the_unchanged_alternative_is_the_baseline(answer: HistoryComparison) -> None:
    alternative = answer.alternatives[0]
    assert msgspec.structs.replace(alternative.result, name="baseline") == answer.baseline
    assert {queue.fares for queue in alternative.queues} == {Fares.SAME}


async def test_the_same_question_has_the_same_bytes(short_storm: VirtualStorm) -> None:
    first, again = [await ask(await log_of(short_storm.cluster.events)) for _ in range(2)]
    assert first.baseline.started == 3
    assert msgspec.json.encode(again) == msgspec.json.encode(first)


def test_alternatives_are_simulated_beside_one_baseline(answer: HistoryComparison) -> None:
    baseline, (_, more, other, fewer, rejects_nothing, blind) = answer.baseline, answer.alternatives
    assert baseline.rejections == 0
    assert more.result.started > baseline.started > fewer.result.started > 0
    assert other.result.started >= baseline.started
    assert more.queues[0].fares is Fares.GAINS
    assert max(more.result.series.gpus) == 2 * max(baseline.series.gpus)
    assert rejects_nothing.result.rejections == 0, "a kubelet that aligns nothing rejects nothing"
    # What a scheduler blind to zones places three at a time on a node of two comes back, again and again.
    assert blind.result.rejections > 10
    assert blind.result.pods == baseline.pods
    assert blind.result.started <= baseline.started


async def test_a_window_goes_on_with_what_runs_when_it_begins(storm: VirtualStorm) -> None:
    log = await log_of(storm.cluster.events)
    half = (await log.head(CLUSTER)).position // 2
    answer = await ask(log, since=str(half))
    assert answer.from_position == half
    assert 0 < answer.baseline.pods < 20
    assert answer.validity.same_waits >= 0.9


async def test_a_storm_again_comes_near_what_was_recorded() -> None:
    storm = VirtualStorm(fleet(aligned(6, cpus=16, memory="64Gi", period="10s")), seed=3)
    blow(storm, 5)
    answer = await ask(await log_of(storm.cluster.events), until=str(len(storm.cluster.events) - 1))
    assert answer.validity.same_waits > 0.95
    assert abs(answer.validity.started) <= 2


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"settings": ("numa",)}, "--set numa: is no KEY=VALUE"),
        ({"settings": ("nmua=false",)}, "--set: nmua: there is no such setting; did you mean 'numa'?"),
        ({"settings": ("numa=perhaps",)}, "--set: numa: Expected `bool`, got `str` - at `$.numa`: 'perhaps'"),
        ({"settings": ("numa_scoring.strategie=x",)}, "did you mean 'strategy'?"),
        ({"settings": ("fair_share.window_hours=0",)}, "fair_share.window_hours: fair share: "),
        ({"since": "9000000"}, "is beyond the log's end"),
        ({"since": "yesterday"}, "is no moment of a log"),
        ({"since": "20", "until": "10"}, "the range is empty"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    short_storm: VirtualStorm, question: dict[str, object], problem: str
) -> None:
    log = await log_of(short_storm.cluster.events)
    with pytest.raises((ConfigurationError, UnknownMoment)) as error:
        await ask(log, **question)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ("[]", "a patch is a mapping"),
        ("nodes: {ad: []}", "unknown field `ad` - at `$.nodes`; did you mean 'add'?"),
        ("nodes: {add: [{like: gpu-9}]}", "there is no node 'gpu-9' in this window; did you mean 'gpu-"),
        ("nodes: {add: [{count: 2}]}", "say either like or profile"),
        ("nodes: {add: [{like: gpu-0, count: 0}]}", "Expected `int` >= 1"),
        ("nodes: {remove: [cpu-*]}", "there is no node 'cpu-*' in this window"),
        ("nodes: {change: [{matchLabels: {a: b}}]}", "no node has the labels {'a': 'b'}"),
        ("nodes: {change: [{topologyPolicy: singel}]}", "Invalid enum value 'singel'"),
        ("queues: {team: {priority: 1}}", "there is no queue 'team' in this window"),
        ("priorities: {high: 1}", "there is no priority class 'high' in this window"),
        ("settings: {nmua: false}", "there is no such setting; did you mean 'numa'?"),
        ("name: baseline", "two runs cannot have one name"),
        ("a: [", "patch-0: is no YAML at line 2, column 1"),
    ],
)
async def test_a_patch_that_names_what_is_not_there_is_refused(
    short_storm: VirtualStorm, patch: str, problem: str
) -> None:
    log = await log_of(short_storm.cluster.events)
    with pytest.raises(ConfigurationError) as error:
        await ask(log, patch)
    assert problem in str(error.value)
