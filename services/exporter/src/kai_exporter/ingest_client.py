"""A client of ingest: sends an exporter's reports over HTTP, on connections that are kept.

`docs/explanation/exporter.md` describes the format of reports and answers.

A frozen ingest keeps its connections and answers nothing. So a report without an answer for a moment is sent to the
next address as well. Where there is one address, it is sent once more on a new connection, since several ingests may
be behind it. The first answer counts. A report that comes twice does no harm: an observation's id follows from its
content, and the log takes one.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
from kaicore.errors import ConfigurationError, KaiError
from kaicore.rules.objects.reports import ReportAnswer
from kaicore.runtime.agent.http_client import HttpClient, HttpFailure
from kaicore.runtime.process_context import end_all

from kai_exporter.holdings import PodHoldings
from kai_exporter.node_pods import Outgoing

#: Version of the report's format.
VERSION = 1


class Report(msgspec.Struct, frozen=True):
    """One exporter's observations of its node; see `docs/explanation/exporter.md`."""

    version: int
    node: str
    instance: str
    sequence: int
    observed_at: int
    full: bool
    pods: tuple[PodHoldings, ...]


class Reports(msgspec.Struct, frozen=True):
    """Reports of several nodes of a cluster."""

    reports: tuple[Report, ...]


class Answers(msgspec.Struct, frozen=True):
    """The results of several reports at ingest, in their order."""

    answers: tuple[ReportAnswer, ...]


_encoder = msgspec.json.Encoder()


def encode_report(outgoing: Outgoing, *, instance: str) -> bytes:
    """Encode one node's report; `instance` is the exporter's, new with each start."""
    return _encoder.encode(_report(outgoing, instance))


def encode_reports(outgoing: Sequence[Outgoing], *, instance: str) -> bytes:
    """Encode several nodes' reports."""
    return _encoder.encode(Reports(tuple(_report(one, instance) for one in outgoing)))


def _report(one: Outgoing, instance: str) -> Report:
    return Report(VERSION, one.node, instance, one.sequence, one.observed_at, one.full, one.pods)


_T = TypeVar("_T")

#: Seconds without an answer after which a report is sent to another ingest as well. One that works answers in
#: milliseconds, and in a second when it has to read the log first.
ANOTHER_AFTER_S = 2.0

_answer = msgspec.json.Decoder(ReportAnswer)
_answers = msgspec.json.Decoder(Answers)


class IngestUnavailable(KaiError):
    """Ingest did not take a report; sent again, it may. Names the URL and what came back.

    Attributes:
        retry_after_s: how long ingest asks to be left alone, 0 if it does not say.
    """

    def __init__(self, message: str, *, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def token_in(path: Path) -> str:
    """Return the token in a file, which the kubelet rewrites in time. Raises ConfigurationError: there is none."""
    try:
        token = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"token file {path}: {error}") from error
    if not token:
        raise ConfigurationError(f"token file {path}: is empty")
    return token


class IngestClient:
    """One cluster's ingest (`instance`: tells this exporter from the one before and after it on the same node)."""

    def __init__(
        self,
        url: str,
        *,
        cluster: str,
        token: Callable[[], str],
        node: str | None,
        timeout_s: float,
        another_after_s: float = ANOTHER_AFTER_S,
        ca_file: Path | None = None,
    ) -> None:
        """Args:
        url: of ingest, without a path; several with commas between them: the last that answered is asked first.
        token: returns the bearer token to use now; raises ConfigurationError where there is none.
        node: the one node that reports are about, None for reports about any.
        timeout_s: how long an answer may take, seconds.
        another_after_s: how long it may take until another ingest is asked as well, seconds.
        ca_file: certificates to trust for https; None: the system's.

        Raises:
            ConfigurationError: `ca_file` cannot be used.
        """
        path = f"/v1/clusters/{quote(cluster, safe='')}"
        if node is not None:
            path += f"/nodes/{quote(node, safe='')}"
        self._urls = deque(f"{one.strip().rstrip('/')}{path}/placements" for one in url.split(","))
        self._token = token
        self._another_after_s = another_after_s
        self._single = node is not None
        self.instance = uuid4().hex
        try:
            verify = ssl.create_default_context(cafile=ca_file) if ca_file is not None else None
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(f"ingest_ca_file {ca_file}: {error}") from error
        self._http = HttpClient(verify=verify, timeout_s=timeout_s)

    def renew_instance(self) -> None:
        """Speak as a new exporter: another one has reported for a node in the meantime."""
        self.instance = uuid4().hex

    async def send(self, outgoing: Sequence[Outgoing]) -> Sequence[ReportAnswer]:
        """Send reports; return ingest's answers in their order.

        Args:
            outgoing: exactly one if the client is for one node.

        Raises:
            IngestUnavailable: there was no answer, or one that says that nothing was taken.
            ConfigurationError: there is no token.
        """
        if self._single:
            (only,) = outgoing
            return [await self._post(encode_report(only, instance=self.instance), _answer)]
        answers = await self._post(encode_reports(outgoing, instance=self.instance), _answers)
        if len(answers.answers) != len(outgoing):
            raise IngestUnavailable(f"{self._urls[0]}: {len(answers.answers)} answers to {len(outgoing)} reports")
        return answers.answers

    async def _post(self, body: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
        """Ask one address, and the next as well when it refuses or is silent; raise the last refusal if all do."""
        several = len(self._urls) > 1
        left = deque(self._urls if several else (*self._urls, *self._urls))
        under_way: dict[asyncio.Task[_T], str] = {}
        refused: IngestUnavailable | None = None
        try:
            # An only address that refuses is asked again later, by the caller.
            while under_way or (left and (several or refused is None)):
                if left and (several or refused is None):
                    url = left.popleft()
                    under_way[asyncio.ensure_future(self._post_to(url, body, decoder))] = url
                patience_s = self._another_after_s if left else None
                done, _ = await asyncio.wait(under_way, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    url = under_way.pop(task)
                    try:
                        answer = task.result()
                    except IngestUnavailable as error:
                        refused = error
                    else:
                        self._urls.rotate(-self._urls.index(url))
                        return answer
        finally:
            await end_all(under_way)
        assert refused is not None
        raise refused

    async def _post_to(self, url: str, body: bytes, decoder: msgspec.json.Decoder[_T]) -> _T:
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        try:
            answer = await self._http.request("POST", url, headers=headers, body=body)
        except HttpFailure as error:
            raise IngestUnavailable(f"{url}: {error}") from error
        if answer.status not in (200, 409):
            after = answer.headers.get("retry-after", "")
            raise IngestUnavailable(
                f"{url}: HTTP {answer.status}: {answer.body[:500].decode(errors='replace').strip()}",
                retry_after_s=int(after) if after.isdecimal() else 0,
            )
        content = answer.body
        try:
            return decoder.decode(content)
        except msgspec.DecodeError as error:
            raise IngestUnavailable(f"{url}: not an answer of ingest ({error}): {content[:80]!r}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()
