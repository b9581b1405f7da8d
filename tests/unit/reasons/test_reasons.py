"""Reasons: one struct each, in the log as they always were."""

import typing

import msgspec
import pytest
from kaicore.analysis.ask.answers import ReasonAnswer
from kaicore.analysis.ask.listing import reason_answer
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import encode_payload
from kaicore.rules.events.reasons.base import CodedReason
from kaicore.rules.events.reasons.group import TopologyHasNoRoom
from kaicore.rules.events.reasons.reason import Reason

#: The fields of a reason in the log, in their order, before each had a struct of its own.
LOGGED = ("nodes", "example", "resource", "zone", "need", "free", "detail", "rejection", "queue", "until", "group")

#: Fields that came later, in their order.
LATER = (
    *("pod_set", "field", "topology", "topologies", "level", "levels", "problem"),
    *("wanted", "fitting", "slice_size", "domain", "tried", "domains", "joined"),
    *("request", "provisioning_class", "pods", "stage", "attempt", "ended", "message", "since", "retry_at", "allowed"),
    *("pods_in_slices", "label", "unit", "limit", "node_pool", "needed", "devices", "largest"),
    *("starts_at", "moved", "expected", "first_starts_at", "looked_at"),
    *("pods_left", "per_day"),
    *("policy", "until_us"),
    *("reservation", "crowded", "rule", "what"),
)


def concrete(base: type[CodedReason]) -> set[type[CodedReason]]:
    below = base.__subclasses__()
    return {base} if not below else set().union(*map(concrete, below))


def sample(one: type[CodedReason]) -> CodedReason:
    others: dict[object, object] = {int: 7, int | None: 7, bool: True}
    fields = msgspec.structs.fields(one)
    return one(**{field.name: others.get(field.type, f"some-{field.name}") for field in fields})


def test_every_class_of_reasons_is_in_the_union() -> None:
    assert set(typing.get_args(Reason)) == concrete(CodedReason)


@pytest.mark.parametrize("one", typing.get_args(Reason), ids=lambda one: one.__name__)
def test_reason_has_the_bytes_that_the_log_always_had_and_is_read_from_them(one: type[CodedReason]) -> None:
    reason = sample(one)
    document = msgspec.json.decode(msgspec.json.encode(reason))
    assert document.pop("code") == one.__name__
    assert list(document) == [name for name in (*LOGGED, *LATER) if name in document]
    assert msgspec.json.decode(msgspec.json.encode(reason), type=Reason) == reason
    assert str(reason) != repr(reason), "it says itself in words"
    shown = [value for value in document.values() if isinstance(value, str) and value in str(reason)]
    assert shown or not [value for value in document.values() if isinstance(value, str)]


@pytest.mark.parametrize("one", typing.get_args(Reason), ids=lambda one: one.__name__)
def test_reason_is_answered_with_all_its_fields(one: type[CodedReason]) -> None:
    reason = sample(one)
    answer = msgspec.json.decode(msgspec.json.encode(reason_answer(reason, pods=3)), type=ReasonAnswer)
    assert (answer.code, answer.message, answer.pods) == (one.__name__, str(reason), 3)
    reported = {**answer.fields, **{name: getattr(answer, name) for name in ReasonAnswer.__struct_fields__}}
    for name, value in msgspec.to_builtins(reason).items():
        if name not in ("pods", "message"):
            assert reported[name] == value or name in ("until", "since", "retry_at")


def test_cycle_of_an_older_log_is_read_to_the_same_bytes() -> None:
    """As engine 12 wrote it, before reasons were structs."""
    recorded = (
        b'{"cycle":"default/2","shard":"default","input_position":9,"config_digest":"c","engine_version":"12","now":1,'
        b'"decisions_digest":"d","pods":4,"placed":1,"pending":[{"pod_class":"a","pods":3,"reasons":['
        b'{"code":"InsufficientResource","nodes":2,"example":"n1","resource":"cpu","need":8000,"free":4000,'
        b'"detail":"enough with what is being released"},'
        b'{"code":"NumaNeverFits","nodes":1,"example":"n2","resource":"nvidia.com/gpu","zone":"node-0","need":5,'
        b'"free":4,"detail":"the largest zone is too small","rejection":"TopologyAffinityError"}],'
        b'"alone":[{"queue":"q","priority":1,"reasons":[{"code":"OverLimit","resource":"gpu","need":2,"queue":"q"},'
        b'{"code":"MovedLately","example":"default/a","until":60}]}]}],'
        b'"groups":[{"group":"g","pods":2,"reasons":[{"code":"GangDoesNotFit","need":2},'
        b'{"code":"Unsupported","detail":"required topology (rack)","group":"PodGroup.x default/g"}]}]}'
    )
    assert encode_payload(msgspec.json.decode(recorded, type=payloads.CycleCompleted)) == recorded


def test_a_tier_that_is_a_number_is_called_a_tier() -> None:
    reason = TopologyHasNoRoom(topology="HyperNodes", level="1", wanted=5, fitting=4, domain="b0/r1", domains=4)
    assert str(reason) == "of 4 tier-1 domains none has room for 5 pods: the best is b0/r1, which takes 4"


def test_a_level_without_domains_is_said_to_have_none() -> None:
    reason = TopologyHasNoRoom(topology="dc", level="rack", wanted=5, domains=0)
    assert str(reason) == "there is no rack domain for 5 pods"


def test_pods_in_slices_are_counted_truly_where_the_last_slice_is_not_full() -> None:
    reason = TopologyHasNoRoom(topology="dc", level="rack", wanted=3, fitting=1, slice_size=3, domain="b0", domains=4)
    counted = msgspec.structs.replace(reason, pods_in_slices=8)
    assert (
        str(counted) == "of 4 rack domains none has room for 8 pods in slices of 3: the best is b0, which takes 1 slice"
    )
    # As logs have it from before pods were recorded.
    assert "none has room for 3 slices of 3 pods: " in str(reason)
