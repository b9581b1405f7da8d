"""`kai audit placements`, `node` and `group` on a log in Postgres: API and command line say the same."""

import json

from kaicore.ledger.log.postgres import PostgresLog

from tests.integration.test_api import Api, _ended, api, cluster_name, decided, superuser_url

__all__ = ["api", "cluster_name", "decided", "superuser_url"]


async def test_audits_are_answered_alike_by_api_and_log(
    api: Api,
    cluster_name: str,
    database_url: str,
    postgres_log: PostgresLog,
) -> None:
    end = (await postgres_log.head(cluster_name)).position
    asked = {
        ("placements", "--to", str(end)): (f"placements?to={end}", "--database-url", database_url),
        ("node", "n0", "--from", "2"): ("nodes/n0?from=2", "--api-url", api.url),
        ("group", "default/a"): ("groups/default/a", "--database-url", database_url),
    }
    for question, (path, *source) in asked.items():
        sent = await api.get(f"/v1/clusters/{cluster_name}/audit/{path}")
        code, out, err = await _ended("audit", *question, "-o", "json", "--cluster", cluster_name, *source)
        assert (code, json.loads(out)) == (0, sent), err
    code, out, err = await _ended("audit", "node", "n0", "--database-url", database_url)
    assert (code, b"2 pods held it" in out) == (0, True), err
    code, out, err = await _ended("audit", "group", "default/b", "--api-url", api.url)
    assert (code, b"placed it on n0" in out) == (0, True), err


async def test_audits_of_what_is_not_there_are_refused_alike(api: Api, cluster_name: str) -> None:
    for path, status in (
        ("nodes/n7", 404),
        ("groups/default/nobody", 404),
        ("placements?from=12345678", 400),
        ("placements?from=3&to=2", 400),
        ("placements?since=1", 400),
    ):
        await api.get(f"/v1/clusters/{cluster_name}/audit/{path}", status=status)
    for question, code in ((("node", "n7"), 1), (("group", "nobody"), 2), (("node", "n0", "--from", "99999"), 2)):
        ended, _, err = await _ended("audit", *question, "--api-url", api.url)
        assert ended == code, err
