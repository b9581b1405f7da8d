"""An invented dialect: one module and its entry in the table of a copy of the library; all the rest follows."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kaicore
import pytest

ROOT = Path(__file__).parents[3]
TABLE = "rules/groups/dialects/table.py"
MODULE = '''
"""Choirs: voices that sing together."""

from kaicore.rules.groups.dialects.dialect import Dialect, ReadObject, WorkloadKind, named_by
from kaicore.rules.model.group import PodSet, RankSource
from kaicore.rules.model.group import GroupSource, GroupTemplate
from kaicore.rules.objects.made import Made, pod_from
from kaicore.rules.objects.mappings import Object, name_of, spec_of

KIND = "Choir.music.example.com"


def normalize(choir: ReadObject) -> GroupSource:
    rank = RankSource("music.example.com/seat")
    voices = choir.spec.items("voices")
    sets = (PodSet(), *(PodSet(one.text("name"), min_pods=one.integer("singers", 1), rank=rank) for one in voices))
    return choir.source(GroupTemplate(sets=sets))


def pods(choir: Object) -> list[Made]:
    made = []
    for voice in spec_of(choir).items("voices"):
        for seat in range(voice.pods("singers", 1)):
            labels = {"music.example.com/voice": voice.text("name"), "music.example.com/seat": str(seat)}
            name = f"{name_of(choir)}-{voice.text('name')}-{seat}"
            made.append(pod_from(choir, voice.inside("template"), name=name, labels=labels))
    return made


DIALECT = Dialect(
    "Music",
    (
        WorkloadKind(
            KIND, "choirs", ("v1",), normalize, pods, suspend=(), pod_set=named_by("music.example.com/voice")
        ),
    ),
)
'''
TEMPLATE = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
CHOIR = {
    "apiVersion": "music.example.com/v1",
    "kind": "Choir",
    "metadata": {"name": "mass", "namespace": "default", "uid": "u1"},
    "spec": {
        "voices": [
            {"name": "alto", "singers": 2, "template": TEMPLATE},
            {"name": "bass", "singers": 3, "template": TEMPLATE},
        ]
    },
}
#: What the copy of the library, the chart's script, the webhook and the commands make of it.
REPORT = """
import json, sys
from kai_cli.asking.questions import read_subject
from kai_cli.main import main
from kai_cli.upkeep.webhook_certificates import configuration
from kaicore.kube.kinds.table import KINDS, POD
from kaicore.rules.groups.dialects.table import expand
from kaicore.rules.groups.labels import own_rank
from kaicore.rules.groups.membership import membership
from scripts import chart

owner = json.load(sys.stdin)
(kind,) = (kind for kind in KINDS if kind.name == "Choir.music.example.com")
source = kind.normalize(kind.decode(json.dumps(owner).encode()), lambda error: None)
sets = {one.name: one for one in source.templates[0].sets}
singers = []
for made in expand(owner, nodes_for=lambda pod: []):
    pod = POD.normalize(POD.decode(json.dumps(made.object).encode()), lambda error: None)
    known, unknown = membership(pod, {source.key: source}.get), membership(pod, {}.get)
    index = own_rank(pod, sets[known.pod_set].rank)
    singers.append([pod.name, known.group, known.pod_set, index, type(unknown.problem).__name__])
judged = configuration(namespace="n", service="s", authorities=b"")["webhooks"][0]["rules"]
print(json.dumps({
    "watched": [kind.resource.group, kind.resource.plural, list(kind.resource.versions)],
    "rights": "apiGroups: [music.example.com]\\n    resources: [choirs]" in chart.watched(),
    "judged": [rule["resources"] for rule in judged if rule["apiGroups"] == ["music.example.com"]],
    "asked": read_subject("choirs/mass", "default").kind,
    "least": {name: one.min_pods for name, one in sets.items()},
    "singers": singers,
}), flush=True)
sys.argv = ["kai", "simulate", sys.argv[1]]
main()
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the library in which the dialect is registered."""
    folder = tmp_path_factory.mktemp("library")
    copied = folder / "kaicore"
    shutil.copytree(Path(kaicore.__path__[0]), copied)
    (copied / TABLE).with_name("choir.py").write_text(MODULE)
    text = (copied / TABLE).read_text()
    imported = text.replace("dialects import apps, ", "dialects import apps, choir, ")
    registered = imported.replace("    apps.DIALECT,\n", "    apps.DIALECT,\n    choir.DIALECT,\n")
    assert text != imported != registered
    (copied / TABLE).write_text(registered)
    return folder


def run(library: Path, manifest: str, *, given: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{library}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", REPORT, manifest],
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


def test_invented_dialect_is_watched_judged_expanded_and_has_rights_groups_and_indexes(
    library: Path, tmp_path: Path
) -> None:
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "10"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": amounts}}
    manifest = tmp_path / "choir.json"
    manifest.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, CHOIR]}))
    first, _, simulated = run(library, str(manifest), given=json.dumps(CHOIR)).partition("\n")
    report: dict[str, Any] = json.loads(first)
    assert report["watched"] == ["music.example.com", "choirs", ["v1"]]
    assert report["rights"]
    assert report["judged"] == [["choirs"]]
    assert report["asked"] == "Choir"
    assert report["least"] == {"": 0, "alto": 2, "bass": 3}
    group = "Choir.music.example.com/default/mass"
    assert report["singers"] == [
        ["mass-alto-0", group, "alto", 0, "OwnerNotFound"],
        ["mass-alto-1", group, "alto", 1, "OwnerNotFound"],
        ["mass-bass-0", group, "bass", 0, "OwnerNotFound"],
        ["mass-bass-1", group, "bass", 1, "OwnerNotFound"],
        ["mass-bass-2", group, "bass", 2, "OwnerNotFound"],
    ]
    assert all(f"mass-{singer}" in simulated for singer in ("alto-0", "alto-1", "bass-0", "bass-1", "bass-2"))
    assert "n1" in simulated
