"""The watcher's role is the table of kinds: it may list and watch every kind in it, and nothing else."""

from pathlib import Path

from kaicore.kube.kinds.table import KINDS
from kaicore.yaml_text import load_yaml_all

from scripts import chart

RBAC = Path(__file__).parents[3] / "deploy" / "k8s" / "rbac.yaml"


def test_watcher_may_list_and_watch_the_kinds_of_the_table_and_nothing_else() -> None:
    roles = {
        document["metadata"]["name"]: document["rules"]
        for document in load_yaml_all(RBAC.read_text())
        if document["kind"] == "ClusterRole"
    }
    granted = {
        (group, resource, verb)
        for rule in roles["kai-watcher"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    wanted = {(kind.resource.group, kind.resource.plural, verb) for kind in KINDS for verb in ("list", "watch")}
    assert granted == wanted


def test_template_of_the_watchers_rights_is_what_the_table_gives() -> None:
    assert chart.WATCHED.read_text() == chart.watched(), "run: make chart"
