"""`kai up --kubeconfig`: one for all, or one per service."""

from pathlib import Path

import pytest
from kai_cli.running.clusters import Kubeconfigs
from kaicore.errors import ConfigurationError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("all", "w", "b", "i", "odd=name"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["all"], "all all all all"),
        (["watcher=w", "binder=b"], "w b w w"),
        (["watcher=w", "binder=b", "ingest=i"], "w b i w"),
        (["binder=b", "all"], "all b all all"),
        (["odd=name"], "odd=name odd=name odd=name odd=name"),
    ],
)
def test_each_service_gets_its_own_kubeconfig_or_the_one_for_all(given: list[str], expected: str) -> None:
    kubeconfigs = Kubeconfigs.read(given)
    paths = [*(kubeconfigs.of(service) for service in ("watcher", "binder", "ingest")), kubeconfigs.of_people]
    assert " ".join(map(str, paths)) == expected


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["nosuch"], "nosuch: no such file"),
        (["watcher=nosuch"], "nosuch: no such file"),
        (["bidner=b"], "no service bidner, only watcher, binder, ingest"),
        (["watcher=w"], "none for binder"),
        (["binder=b", "ingest=i"], "none for watcher"),
        (["watcher=w", "watcher=w", "binder=b"], "watcher is named twice"),
        (["all", "w"], "all and w are both for all services"),
        (["watcher="], "no such file"),
    ],
)
def test_kubeconfigs_that_make_no_sense_are_refused(given: list[str], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        Kubeconfigs.read(given)
