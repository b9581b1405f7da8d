"""The cluster of a command that names none."""

import asyncio
from collections.abc import Iterator

import pytest
from kai_cli.sources.paths import DataDirectory
from kai_cli.sources.source import AnswerSource, clusters_at, look_in, one_cluster
from kaicore.errors import ConfigurationError, UnknownMoment

from tests.given.servers.servers import scratch_directory

THERE = ["east", "middle", "west"]


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataDirectory]:
    for name in ("KAI_CLUSTER", "KAI_API_URL", "KAI_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with scratch_directory() as here:
        monkeypatch.setenv("KAI_DATA_DIR", str(here))
        yield DataDirectory(here)


def test_the_flag_goes_before_the_environment_that_before_the_choice_and_the_first_is_left(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert one_cluster(AnswerSource(), THERE) == "east"
    assert capsys.readouterr().err == "kai: cluster east, the first of 3; --cluster names another\n"
    directory.use_cluster("west")
    assert one_cluster(AnswerSource(), THERE) == "west"
    assert capsys.readouterr().err == "kai: cluster west, of `kai cluster use`; --cluster names another\n"
    monkeypatch.setenv("KAI_CLUSTER", "middle")
    assert one_cluster(AnswerSource(), THERE) == "middle"
    assert capsys.readouterr().err == "kai: cluster middle, of $KAI_CLUSTER; --cluster names another\n"
    assert one_cluster(AnswerSource(cluster="east"), THERE) == "east"
    assert one_cluster(AnswerSource(), ["only"]) == "only"
    assert capsys.readouterr().err == ""


def test_the_choice_of_a_directory_says_nothing_about_a_database_or_an_api_that_is_named(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.use_cluster("west")
    assert one_cluster(AnswerSource(database_url="postgresql://elsewhere"), THERE) == "east"
    monkeypatch.setenv("KAI_API_URL", "http://elsewhere")
    assert one_cluster(AnswerSource(), THERE) == "east"


def test_a_choice_that_is_not_there_any_more_is_an_error_that_names_it(directory: DataDirectory) -> None:
    directory.use_cluster("wset")
    with pytest.raises(ConfigurationError, match=r"cluster wset, of `kai cluster use`: is not there"):
        one_cluster(AnswerSource(), THERE)
    with pytest.raises(ConfigurationError, match="no cluster yet"):
        one_cluster(AnswerSource(), [])


def test_a_position_is_of_one_log_and_a_time_of_all() -> None:
    assert clusters_at(AnswerSource(), THERE, "200") == ["east"]
    assert clusters_at(AnswerSource(), THERE, "-5m", "100") == ["east"]
    assert clusters_at(AnswerSource(), THERE, "-5m", "") == THERE
    assert clusters_at(AnswerSource(cluster="west"), THERE, "200") == ["west"]


def test_a_log_without_the_moment_is_left_out_and_named_unless_none_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def look(cluster: str) -> int:
        if cluster != "west":
            raise UnknownMoment(f"cluster {cluster}: 10:00 is before its log begins")
        return 7

    assert asyncio.run(look_in(THERE, look)) == [("west", 7)]
    assert capsys.readouterr().err == (
        "kai: left out: cluster east: 10:00 is before its log begins\n"
        "kai: left out: cluster middle: 10:00 is before its log begins\n"
    )
    with pytest.raises(UnknownMoment, match="cluster east"):
        asyncio.run(look_in(["east"], look))
