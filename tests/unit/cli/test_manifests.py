"""Manifests as people keep them."""

import os
from pathlib import Path

import pytest
from kai_cli.sources.manifests import read_files, read_manifests
from kaicore.errors import ConfigurationError, InvalidObject

from tests.given.servers.servers import scratch_directory

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


def test_documents_lists_and_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.yaml").write_text(f"{POD}---\n---\n{POD.replace('a}', 'b}')}")
    (tmp_path / "sub" / "c.json").write_text(
        '{"apiVersion":"v1","kind":"PodList","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"c-"}}]}'
    )
    (tmp_path / "README.md").write_text("not a manifest")
    assert [item["metadata"] for item in read_manifests([tmp_path])] == [
        {"name": "a"},
        {"name": "b"},
        {"generateName": "c-"},
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n", "document 1: document: not a Kubernetes object"),
        ("apiVersion: v1\nmetadata: {name: a}\n", "document 1: kind: missing or no text"),
        (f"{POD}---\napiVersion: v1\nkind: Pod\n", "document 2, Pod: metadata.name: missing"),
        (
            "apiVersion: v1\nkind: List\nitems: [{kind: Pod}]\n",
            r"document 1, items\[0\]: apiVersion: missing or no text",
        ),
    ],
)
def test_what_is_no_object_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(InvalidObject, match=f"x.yaml, {problem}"):
        read_manifests([file])


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file or folder"):
        read_manifests([tmp_path / "none"])
    for text, problem in (
        (b"a:\n\tb: 1\n", "is no YAML at line 2, column 1: found character that cannot start any token"),
        (b"a: \xe9\n", "is no YAML: incomplete UTF-8 octet sequence"),
    ):
        (tmp_path / "bad.yaml").write_bytes(text)
        with pytest.raises(ConfigurationError, match=rf"bad\.yaml: {problem}$"):
            read_manifests([tmp_path / "bad.yaml"])


@pytest.mark.parametrize("named", ["", "closed/m.yaml"], ids=["folder in it", "file in it"])
def test_a_folder_that_may_not_be_read_is_no_empty_one(named: str) -> None:
    with scratch_directory() as root:
        (root / "closed").mkdir(mode=0)
        us = os.geteuid()
        if us == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(ConfigurationError, match=f"closed{'/m.yaml' if named else ''}: Permission denied"):
                read_files([root / named])
        finally:
            os.seteuid(us)


def test_yaml_in_flow_style_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: a}}]}\n")
    assert [item["metadata"]["name"] for item in read_manifests([file])] == ["a"]
    file.write_text("{apiVersion: v1, kind: List, items: null}\n")
    assert read_manifests([file]) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("metadata: {name: a, name: b}\n", "metadata.name: is there twice, again in line 3: 'name'"),
        (
            "metadata: {name: a}\nspec:\n  containers:\n  - name: m\n    name: n\n",
            "spec.containers[0].name: is there twice, again in line 7: 'name'",
        ),
    ],
)
def test_a_key_that_is_there_twice_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(f"apiVersion: v1\nkind: Pod\n{text}")
    with pytest.raises(InvalidObject) as caught:
        read_manifests([file])
    assert str(caught.value) == f"{file}, document 1: {problem}"


def test_what_is_merged_may_be_said_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: &all {<<: &one {x: '1', y: '1'}, y: '2'}}\n"
        "spec: {nodeSelector: {<<: *all, y: '3'}, other: {<<: [*one, *all]}}\n"
    )
    (manifest,) = read_manifests([file])
    assert manifest["spec"]["nodeSelector"] == {"x": "1", "y": "3"}


def test_of_a_folder_all_that_is_wrong_is_found_and_what_is_no_manifest_left_out(tmp_path: Path) -> None:
    for name, text in {
        "a.yaml": "apiVersion: v1\nmetadata: {name: a}\n",
        "b.yaml": f"{POD}---\n[1]\n",
        "c.yaml": "a: [",
        "values.yaml": "image: x\nreplicas: 2\n",
    }.items():
        (tmp_path / name).write_text(text)
    files = read_files([tmp_path])
    assert [one.object["kind"] for one in files.objects] == ["Pod"]
    assert files.strangers == [f"{tmp_path}/b.yaml, document 2", f"{tmp_path}/values.yaml, document 1"]
    assert [str(one).removeprefix(str(tmp_path))[:30] for one in files.problems] == [
        "/a.yaml, document 1: kind: mis",
        "/c.yaml: is no YAML at line 2,",
    ]
    # This one was named by its user.
    (problem,) = read_files([tmp_path / "values.yaml"]).problems
    assert "apiVersion: missing or no text" in str(problem)


def test_aliases_that_stand_for_billions_of_values_or_for_themselves_are_refused(tmp_path: Path) -> None:
    lines = ["apiVersion: v1", "kind: ConfigMap", "metadata: {name: bomb}", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    for name, text in (("bomb", "\n".join(lines)), ("self", "apiVersion: v1\nkind: ConfigMap\ndata: &d {d: *d}\n")):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        with pytest.raises(InvalidObject, match="aliases: stand for more than"):
            read_manifests([file])
    shared = tmp_path / "shared.yaml"
    shared.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: &m {name: a}\ndata: {one: *m, two: *m}\n")
    (manifest,) = read_manifests([shared])
    assert manifest["data"] == {"one": {"name": "a"}, "two": {"name": "a"}}
