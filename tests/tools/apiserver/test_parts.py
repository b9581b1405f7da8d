"""Parts that have rules of their own: quantities, ages, paths, columns."""

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kai_apiserver.http.request import read_request_path
from kai_apiserver.kinds.pods import default_pull_policy
from kai_apiserver.objects import short_duration
from kai_apiserver.resources.types import FALSE_IS_ABSENT, KEPT_EMPTY, ZERO_VALUES
from kai_apiserver.rest.tables import find, ready, restarts, status_word
from kai_fleet.kubelet.quantity import canonical, exact_value
from kaicore.kube.wire.builtin_fields import TYPES

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "e3", "E2"]


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(SUFFIXES))
def test_a_quantity_keeps_its_value_to_the_nano_and_its_form_is_final(whole: int, part: int, suffix: str) -> None:
    text = f"{whole}.{part:03}{suffix}"
    written = canonical(text)
    assert canonical(written) == written
    assert 0 <= exact_value(written) - exact_value(text) < Fraction(1, 10**9)


@pytest.mark.parametrize(
    ("given_text", "written"),
    [
        ("1024Mi", "1Gi"),
        ("1000Mi", "1000Mi"),
        ("0.5", "500m"),
        ("2000", "2k"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("0Gi", "0"),
        ("-1500m", "-1500m"),
        (".5", "500m"),
    ],
)
def test_quantities_are_written_as_the_api_server_writes_them(given_text: str, written: str) -> None:
    assert canonical(given_text) == written


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1gi", "--1", "1.2.3", "0x10", "1Kii"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantities must match"):
        exact_value(text)


def test_amounts_are_exact() -> None:
    assert exact_value("0.1") + exact_value("0.2") == Fraction(Decimal("0.3"))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (601, "10m"),
        (10800, "3h"),
        (12000, "3h20m"),
        (90000, "25h"),
        (200000, "2d7h"),
        (800000, "9d"),
        (70000000, "2y80d"),
        (-5, "<invalid>"),
    ],
)
def test_ages_read_like_kubectls(seconds: int, shown: str) -> None:
    assert short_duration(timedelta(seconds=seconds)) == shown


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("x", "Always"),
        ("x:latest", "Always"),
        ("x:1", "IfNotPresent"),
        ("host:5000/x", "Always"),
        ("host:5000/x:1", "IfNotPresent"),
        ("x@sha256:abc", "IfNotPresent"),
    ],
)
def test_pull_policies_follow_the_tag(image: str, policy: str) -> None:
    assert default_pull_policy(image) == policy


@pytest.mark.parametrize(
    ("path", "matches"),
    [
        (".a.b", [1]),
        (".list[*].n", ["x", "y"]),
        (".list[1].n", ["y"]),
        (".list[-1].n", ["y"]),
        ('.list[?(@.n=="y")].v', [2]),
        (".map['k.l']", [3]),
        (r".map.k\.l", [3]),
        (".nope.deeper", []),
        ("{not a path", []),
    ],
)
def test_json_path_finds_the_expected_values(path: str, matches: list[Any]) -> None:
    value = {"a": {"b": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "map": {"k.l": 3}}
    assert find(value, path) == matches


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/namespaces", ("list", "", "namespaces", "", "", "")),
        ("GET", "/api/v1/namespaces/a", ("get", "", "namespaces", "a", "a", "")),
        ("PUT", "/api/v1/namespaces/a/finalize", ("update", "", "namespaces", "a", "a", "finalize")),
        ("GET", "/api/v1/namespaces/a/pods", ("list", "", "pods", "a", "", "")),
        ("GET", "/api/v1/namespaces/a/pods?watch=True", ("watch", "", "pods", "a", "", "")),
        ("POST", "/api/v1/namespaces/a/pods/p/binding", ("create", "", "pods", "a", "p", "binding")),
        ("DELETE", "/apis/batch/v1/namespaces/a/jobs", ("deletecollection", "batch", "jobs", "a", "", "")),
        ("PATCH", "/apis/g/v1/things/x%3Ay/status", ("patch", "g", "things", "", "x:y", "status")),
        ("GET", "/apis/batch/v1", ("get", "", "", "", "", "")),
    ],
)
def test_paths_say_what_a_request_is_about(method: str, path: str, expected: tuple[str, ...]) -> None:
    read = read_request_path(method, path)
    assert (read.verb, read.group, read.plural, read.namespace, read.name, read.subresource) == expected


def _container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "ready": "running" in state, "restartCount": 0, "state": state}


@pytest.mark.parametrize(
    ("phase", "status", "word"),
    [
        ("Pending", {}, "Pending"),
        ("Failed", {"reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        ("Pending", {"containerStatuses": [_container("c", waiting={"reason": "ErrImagePull"})]}, "ErrImagePull"),
        ("Failed", {"containerStatuses": [_container("c", terminated={"exitCode": 3})]}, "ExitCode:3"),
        ("Succeeded", {"containerStatuses": [_container("c", terminated={"reason": "Completed"})]}, "Completed"),
        ("Pending", {"initContainerStatuses": [_container("i", running={})]}, "Init:0/1"),
        ("Pending", {"initContainerStatuses": [_container("i", terminated={"exitCode": 1})]}, "Init:ExitCode:1"),
    ],
)
def test_pod_state_is_printed_as_one_word(phase: str, status: dict[str, Any], word: str) -> None:
    spec = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}
    pod = {"metadata": {}, "spec": spec, "status": {"phase": phase, **status}}
    assert status_word(pod) == word
    going = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": {"phase": "Running"}}
    assert status_word(going) == "Terminating"


def test_sidecars_count_as_containers() -> None:
    spec = {"containers": [{"name": "c"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]}
    statuses = [_container("s", running={}) | {"restartCount": 2}]
    pod = {"metadata": {}, "spec": spec, "status": {"initContainerStatuses": statuses}}
    assert (ready(pod), restarts(pod)) == ("1/2", "2")


def test_the_tables_name_only_what_exists() -> None:
    for name, fields in ZERO_VALUES.items():
        assert fields.keys() <= TYPES[name].fields.keys(), name
    for path in KEPT_EMPTY | FALSE_IS_ABSENT:
        name, _, field = path.partition(".")
        assert field in TYPES[name].fields, path
