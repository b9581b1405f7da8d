"""Manifests as people keep them."""

from pathlib import Path

import pytest
from kai_cli.manifests import read_manifests
from kaicore.errors import ConfigurationError, InvalidObject

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


def test_documents_lists_and_folders(tmp_path: Path) -> None:
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
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigurationError, match=r"bad\.yaml"):
        read_manifests([tmp_path / "bad.yaml"])
