"""Every error that kaicore raises on purpose.

```
KaiError
├── InvalidObject            a Kubernetes object, report or file says something impossible: object, field, value
│   └── InvalidQuantity      a resource quantity that is malformed or negative
│       └── AbsurdQuantity   a quantity beyond the accepted maximum
├── InvalidPattern           not a valid regular expression; the message says why
├── OverlappingDomains       a node is in several domains of a topology, none of them within another
├── LogError
│   ├── LogUnavailable       the log's server does not answer; the caller may try again with the same event ids
│   ├── StaleExpectation     a conditional append as a whole was stale: a stream has moved on
│   ├── IdempotencyConflict  an event id is in the log already, but with other contents or in part
│   ├── EventsRetired        the events asked for were detached with an old month; a snapshot must lead past them
│   └── CorruptLog           the log contradicts itself: a gap, a broken hash, an undecodable event
├── BusError
│   ├── BusUnavailable       the bus does not answer
│   │   └── NoRoom           its servers have less room than a stream is to have
│   └── Fenced               another relay has published further than we have
├── UnknownEvent             an event type or schema version that this version does not know
├── UnfoldableEvent          an event that decodes makes the fold raise; the state is to be thrown away
├── ClusterError
│   ├── ClusterUnavailable   the Kubernetes API does not answer, or answers 5xx or 429
│   └── ApiStatus            the Kubernetes API answered with a Status that is an error
├── UnknownSubject           the log has no record of the subject of a question
├── ConfigurationError       settings that cannot work, reported before anything is started
│   ├── NotMigrated          the database has no log of this version, yet
│   └── UnknownMoment        a text that names no moment of a log, or none that the log has
├── TooManyQuestions         the limit of waiting questions of one kind is reached
└── EmbeddedServerError      an embedded Postgres or NATS does not start; contains its log's text
```

Callers never see the exceptions of psycopg, nats or aiohttp; the original is chained as `__cause__`.
"""

from collections.abc import Callable, Sequence


class KaiError(Exception):
    """Root of all errors raised on purpose."""


class InvalidObject(KaiError):
    """An object says something impossible; names the object, the field and the value."""

    def __init__(self, subject: str, field: str, value: object, problem: str) -> None:
        super().__init__(f"{subject}: {field}: {problem}: {value!r}")
        self.subject = subject
        self.field = field
        self.value = value
        self.problem = problem


class InvalidQuantity(InvalidObject):
    """A resource quantity that is no quantity, or negative."""


class AbsurdQuantity(InvalidQuantity):
    """A resource quantity that is larger than is believed: sums of such would not stay within 64 bits."""


class InvalidPattern(KaiError):
    """A regular expression cannot be compiled; the message says why."""


class OverlappingDomains(KaiError):
    """A node is in several domains of a topology, of which none is in another."""

    def __init__(self, node: str, domains: Sequence[str]) -> None:
        super().__init__(f"Node {node} is in HyperNodes {' and '.join(domains)}, of which none is in another")
        self.domains = tuple(domains)


class LogError(KaiError):
    """Something about the event log."""


class LogUnavailable(LogError):
    """The log's server does not answer; an append may be repeated with the same event ids."""


class StaleExpectation(LogError):
    """The append as a whole was conditional on stream versions that have moved on; nothing was appended."""

    def __init__(self, cluster: str, stream: str, *, expected: int, actual: int) -> None:
        super().__init__(f"cluster {cluster}: stream {stream} is at version {actual}, expected {expected}")
        self.cluster = cluster
        self.stream = stream
        self.expected = expected
        self.actual = actual


class IdempotencyConflict(LogError):
    """Some but not all events of a unit are in the log already, or an id stands for another event."""


class EventsRetired(LogError):
    """Events up to and including `position` were detached with an old month; only a later snapshot leads past them."""

    def __init__(self, cluster: str, position: int) -> None:
        super().__init__(
            f"cluster {cluster}: events up to {position} have been retired; start from a snapshot at or after it"
        )
        self.cluster = cluster
        self.position = position


class CorruptLog(LogError):
    """The log contradicts itself."""


class BusError(KaiError):
    """Something about the message bus."""


class BusUnavailable(BusError):
    """The bus does not answer."""


class NoRoom(BusUnavailable):
    """The bus's servers have less room left than a stream was to have."""


class Fenced(BusError):
    """Another publisher has moved the bus stream on."""


class UnknownEvent(KaiError):
    """An event type or schema version unknown to this version of kai-ledger."""


class UnfoldableEvent(KaiError):
    """An event that decodes makes the fold raise: the state is half changed, and is to be thrown away.

    States that are folded anew quarantine the event (`kaicore.analysis.replay.log_states.refolded`).
    """

    def __init__(self, cluster: str, position: int, problem: str) -> None:
        super().__init__(cluster, position, problem)
        self.cluster = cluster
        self.position = position
        self.problem = problem

    def __str__(self) -> str:
        return f"cluster {self.cluster}: event {self.position} cannot be folded: {self.problem}"


class ClusterError(KaiError):
    """Something about a Kubernetes API."""


class ClusterUnavailable(ClusterError):
    """The Kubernetes API does not answer, or answers 5xx or 429; what became of the request is not known.

    Attributes:
        code: HTTP status, 0 when there was no answer.
        reason: of its Status, empty when there was none.
        retry_after_s: how long it asked us to wait.
    """

    def __init__(self, message: str, *, code: int = 0, reason: str = "", retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


class ApiStatus(ClusterError):
    """The Kubernetes API refused: HTTP code, reason and message of its Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message


class UnknownSubject(KaiError):
    """The log knows nothing of what was asked about."""


class ConfigurationError(KaiError):
    """Settings that cannot work."""


class Conflict(ConfigurationError):
    """A request that does not fit the present objects."""


class NotMigrated(ConfigurationError):
    """The database has no log of this version in it, yet."""


class UnknownMoment(ConfigurationError):
    """A text that is no moment of a log, or a moment before the log's first event or beyond its last."""


class TooManyQuestions(KaiError):
    """More questions of a kind than may would wait for each other; the same can be asked again a little later."""


class EmbeddedServerError(KaiError):
    """An embedded server does not start, or ended by itself while starting."""


#: Is called with each part of an object that was left out: object, field, value and what is wrong with it.
Lost = Callable[[InvalidObject], None]


def unheard(_: InvalidObject) -> None:
    """Say nothing: for those who know it already."""


def raised(error: InvalidObject) -> None:
    """Raise what is left out: for those who take an object as a whole or not at all."""
    raise error
