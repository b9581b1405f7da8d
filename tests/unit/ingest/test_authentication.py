"""The callers that may report for a node."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from kai_ingest.authentication import (
    NODE_NAME,
    AuthenticationUnavailable,
    KubernetesTokens,
    NotAllowed,
    NotAuthenticated,
    ReviewedToken,
    ReviewedUser,
    SharedSecret,
    TooManyReviews,
)
from kaicore.errors import ClusterUnavailable, ConfigurationError
from kaicore.runtime.access.node_tokens import EVERY_NODE, node_token, read_secret

from tests.given.doubles.stopped_clock import StoppedClock

SECRET = b"0123456789abcdef"
EXPORTER = "system:serviceaccount:kai-system:kai-exporter"


@pytest.mark.parametrize("node", ["n1", "ip-10-0-0-1.eu-west-1.compute.internal", EVERY_NODE])
async def test_a_node_token_tells_its_node(node: str) -> None:
    token = node_token(SECRET, cluster="c1", node=node)
    assert await SharedSecret(SECRET, cluster="c1").node_of(token, client="10.0.0.1") == node


@pytest.mark.parametrize(
    "token",
    [
        "",
        "n1",
        "n1.",
        node_token(SECRET, cluster="c2", node="n1"),
        node_token(SECRET[::-1], cluster="c1", node="n1"),
        node_token(SECRET, cluster="c1", node="n1").replace("n1.", "n2."),
        node_token(SECRET, cluster="c1", node="n1")[:-1],
        "n1.ÿ",
    ],
)
async def test_token_that_names_no_node_is_refused(token: str) -> None:
    with pytest.raises(NotAuthenticated):
        await SharedSecret(SECRET, cluster="c1").node_of(token, client="10.0.0.1")


def test_node_token_secret_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigurationError, match=r"secret file .*/secret: No such file"):
        read_secret(path)
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigurationError, match="has 5 bytes, needs 16 at least"):
        read_secret(path)
    path.write_bytes(b"  " + SECRET + b"\n")
    assert read_secret(path) == SECRET


class Reviewer:
    """An API server's answer, and how often it was asked."""

    def __init__(self, answer: ReviewedToken | Exception) -> None:
        self.answer = answer
        self.asked: list[Sequence[str]] = []

    async def review(self, token: str, audiences: Sequence[str]) -> ReviewedToken:
        self.asked.append(audiences)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def reviewed(
    *,
    authenticated: bool = True,
    username: str = EXPORTER,
    nodes: Sequence[str] = ("n1",),
    audience: str = "kai-ingest",
) -> ReviewedToken:
    return ReviewedToken(authenticated, "", ReviewedUser(username, {NODE_NAME: list(nodes)}), [audience])


def tokens(reviewer: Reviewer, clock: StoppedClock, audience: str = "kai-ingest") -> KubernetesTokens:
    accounts = frozenset({"kai-system:kai-exporter"})
    return KubernetesTokens(reviewer.review, audience=audience, service_accounts=accounts, clock=clock)


async def test_token_that_kubernetes_vouches_for_names_its_node() -> None:
    reviewer, clock = Reviewer(reviewed()), StoppedClock(1000)
    one = tokens(reviewer, clock)
    assert [await one.node_of("t", client="10.0.0.1"), await one.node_of("t", client="10.0.0.1")] == ["n1", "n1"]
    assert reviewer.asked == [("kai-ingest",)], "a review is believed for a while"
    clock.now += 61
    reviewer.answer = reviewed(authenticated=False)
    with pytest.raises(NotAuthenticated):
        await one.node_of("t", client="10.0.0.1")
    assert len(reviewer.asked) == 2


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (reviewed(authenticated=False), NotAuthenticated, "not authenticated"),
        (reviewed(audience="others"), NotAuthenticated, r"status.audiences: is for others: \['others'\]"),
        (reviewed(username="system:serviceaccount:default:x"), NotAllowed, "username: is no exporter: 'system:service"),
        (reviewed(nodes=()), NotAllowed, r"extra\[authentication.kubernetes.io/node-name\]: must name one node"),
        (reviewed(nodes=("n1", "n2")), NotAllowed, "must name one node"),
        (reviewed(nodes=("",)), NotAllowed, "must name one node"),
        (ClusterUnavailable("no answer"), AuthenticationUnavailable, "TokenReview: no answer"),
    ],
)
async def test_token_that_kubernetes_does_not_vouch_for_is_refused(
    answer: ReviewedToken | Exception, error: type[Exception], message: str
) -> None:
    one = tokens(Reviewer(answer), StoppedClock(1000))
    for _ in range(2):
        with pytest.raises(error, match=message):
            await one.node_of("t", client="10.0.0.1")


async def test_a_refusal_is_believed_for_a_shorter_while() -> None:
    reviewer, clock = Reviewer(reviewed(authenticated=False)), StoppedClock(1000)
    one = tokens(reviewer, clock)
    with pytest.raises(NotAuthenticated):
        await one.node_of("t", client="10.0.0.1")
    reviewer.answer = reviewed()
    with pytest.raises(NotAuthenticated):
        await one.node_of("t", client="10.0.0.1")
    clock.now += 11
    assert await one.node_of("t", client="10.0.0.1") == "n1"


async def test_a_review_without_an_answer_is_not_kept() -> None:
    reviewer = Reviewer(ClusterUnavailable("no answer"))
    one = tokens(reviewer, StoppedClock(1000))
    with pytest.raises(AuthenticationUnavailable):
        await one.node_of("t", client="10.0.0.1")
    reviewer.answer = reviewed()
    assert await one.node_of("t", client="10.0.0.1") == "n1"


async def test_without_an_audience_the_api_servers_own_is_meant() -> None:
    reviewer = Reviewer(reviewed(audience="https://kubernetes.default.svc"))
    assert await tokens(reviewer, StoppedClock(1000), audience="").node_of("t", client="10.0.0.1") == "n1"
    assert reviewer.asked == [()]


class MadeUp(Reviewer):
    """Knows the tokens that begin with `good`."""

    def __init__(self) -> None:
        super().__init__(reviewed())

    async def review(self, token: str, audiences: Sequence[str]) -> ReviewedToken:
        await super().review(token, audiences)
        await asyncio.sleep(0)
        return reviewed(authenticated=token.startswith("good"), nodes=(token,))


async def test_made_up_tokens_ask_for_a_few_reviews_only_and_keep_no_other_client_out() -> None:
    reviewer, clock = MadeUp(), StoppedClock(1000)
    one = tokens(reviewer, clock)
    outcomes = await asyncio.gather(
        *(one.node_of(f"bad-{number}", client="10.0.0.66") for number in range(500)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [NotAuthenticated] * 20 + [TooManyReviews] * 480
    assert len(reviewer.asked) == 20
    assert await one.node_of("good-1", client="10.0.0.1") == "good-1"
    clock.now += 2
    assert await one.node_of("good-2", client="10.0.0.66") == "good-2", "refusals are forgiven by and by"
    assert await one.node_of("good-3", client="10.0.0.66") == "good-3"
    assert await one.node_of("good-4", client="10.0.0.66") == "good-4", "and what is genuine costs none"


async def test_made_up_tokens_do_not_push_out_the_genuine_ones_that_are_remembered() -> None:
    reviewer, clock = MadeUp(), StoppedClock(1000)
    one = tokens(reviewer, clock)
    await one.node_of("good", client="10.0.0.1")
    for number in range(2100):
        clock.now += number % 50 == 0
        with pytest.raises(NotAuthenticated):
            await one.node_of(f"bad-{number}", client=f"10.0.{number % 256}.{number // 256}")
    asked = len(reviewer.asked)
    assert await one.node_of("good", client="10.0.0.1") == "good"
    assert len(reviewer.asked) == asked


async def test_the_reviews_of_all_clients_together_are_limited() -> None:
    reviewer, clock = MadeUp(), StoppedClock(1000)
    one = tokens(reviewer, clock)
    outcomes = await asyncio.gather(
        *(one.node_of(f"good-{number}", client=f"10.0.0.{number % 100}") for number in range(1100)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, TooManyReviews) for outcome in outcomes) == 100
    assert len(reviewer.asked) == 1000
    clock.now += 1
    assert await one.node_of("good-again", client="10.0.0.1") == "good-again"


async def test_requests_that_come_together_with_one_token_are_one_review() -> None:
    reviewer = MadeUp()
    one = tokens(reviewer, StoppedClock(1000))
    assert await asyncio.gather(*(one.node_of("good", client="10.0.0.1") for _ in range(50))) == ["good"] * 50
    assert len(reviewer.asked) == 1
