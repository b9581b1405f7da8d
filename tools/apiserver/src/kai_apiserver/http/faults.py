"""Faults on demand: rules that make matching requests or watches go wrong.

Whether a rule strikes is counted, not thrown: the third matching request, every tenth event, at most twice. Only a rule
with a `probability` uses chance, from a seed of its own. Rules come and go over HTTP (`/simulator/faults`); with none
of them, a request costs one look at an empty list.
"""

import random
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from kai_apiserver.errors import (
    MODIFIED,
    NamedResource,
    StatusError,
    bad_request,
    conflict,
    expired_list,
    internal_error,
    too_many_requests,
    unauthorized,
)

RequestFault = Literal[
    "latency",
    "conflict",
    "too-many-requests",
    "internal-error",
    "gone",
    "reset",
    "lost-answer",
    "half-answer",
    "unauthorized",
]
WatchFault = Literal["drop-watch", "gone", "duplicate-event", "delay-event", "half-event"]

_WATCH_KINDS = frozenset(get_args(WatchFault))
_REQUEST_KINDS = frozenset(get_args(RequestFault))


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True, alias_generator=to_camel)


class Subject(_Model):
    """The subject of a request or a watch; the same words as a rule's `match`."""

    verb: str = ""
    group: str | None = None
    resource: str = ""
    subresource: str | None = None
    namespace: str = ""
    name: str = ""
    user_agent: str = ""

    def covers(self, other: "Subject") -> bool:
        """True if a rule with this match applies to `other`. An absent field matches everything."""
        return (
            self.verb in ("", "*", other.verb)
            and self.resource in ("", "*", other.resource)
            and self.namespace in ("", other.namespace)
            and self.name in ("", other.name)
            and self.user_agent in other.user_agent
            and (self.group is None or self.group == other.group)
            and (self.subresource is None or self.subresource == other.subresource)
        )


class Fault(_Model):
    """The faults of the server, with their times.

    Attributes:
        kind: see `docs/reference/simulator.md`.
        after: matches that are spared first.
        every: of the rest, strike each so-manieth.
        times: strike at most so often; 0: without end.
        probability: strike only by this chance.
        seed: of that chance.
        seconds: length of a delay, or the Retry-After of a 429.
        when: for watches, strike on an `event`, when one is opened (`open`), or all that are open (`now`, once).
    """

    kind: RequestFault | WatchFault
    after: int = Field(0, ge=0)
    every: int = Field(1, ge=1)
    times: int = Field(0, ge=0)
    probability: float = Field(1.0, gt=0, le=1)
    seed: int = 0
    seconds: float = Field(0.0, ge=0)
    when: Literal["event", "open", "now"] = "event"


class Rule(_Model):
    """One rule, with what became of it."""

    match: Subject = Subject()
    fault: Fault
    id: int = 0
    matched: int = 0
    hits: int = 0
    _random: random.Random = PrivateAttr(default_factory=random.Random)

    @model_validator(mode="after")
    def _seeded(self) -> "Rule":
        self._random = random.Random(self.fault.seed)
        return self

    def strikes(self) -> bool:
        """Count one match, and say whether the rule strikes it."""
        self.matched += 1
        fault = self.fault
        beyond = self.matched - fault.after
        if beyond <= 0 or (beyond - 1) % fault.every or (fault.times and self.hits >= fault.times):
            return False
        if fault.probability < 1 and self._random.random() >= fault.probability:
            return False
        self.hits += 1
        return True


_RULES = TypeAdapter(list[Rule])


class Faults:
    """The rules in force."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._next = 1

    def add(self, given: Any) -> list[Rule]:
        """Put rules in force; return them. Raises StatusError: 400, naming what is wrong."""
        try:
            rules = _RULES.validate_python(given if isinstance(given, list) else [given])
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_url=False)
            )
            raise bad_request(f"fault rules: {problems}") from error
        for rule in rules:
            rule.id, self._next = self._next, self._next + 1
            rule.matched = rule.hits = 0
            self.rules.append(rule)
        return rules

    def clear(self, rule_id: int | None = None) -> None:
        """Lift one rule, or all."""
        self.rules = [rule for rule in self.rules if rule_id is not None and rule.id != rule_id]

    def report(self) -> list[dict[str, Any]]:
        """The rules as JSON, with how often they matched and struck."""
        return [rule.model_dump(by_alias=True, exclude_none=True) for rule in self.rules]

    def on_request(self, subject: Subject) -> list[Fault]:
        """The faults that strike a request."""
        return [
            rule.fault
            for rule in self.rules
            if rule.fault.kind in _REQUEST_KINDS
            and not (subject.verb == "watch" and rule.fault.kind == "gone")
            and rule.match.covers(subject)
            and rule.strikes()
        ]

    def on_watch(self, subject: Subject, when: Literal["event", "open"]) -> list[Fault]:
        """The faults that strike a watch, as it opens or at one event."""
        return [
            rule.fault
            for rule in self.rules
            if rule.fault.kind in _WATCH_KINDS
            and rule.fault.when == when
            and rule.match.covers(subject)
            and rule.strikes()
        ]


def answer_of(fault: Fault, subject: Subject) -> StatusError | None:
    """The error that a fault answers with, if that is what it does."""
    match fault.kind:
        case "conflict":
            return conflict(NamedResource(subject.resource, subject.group or ""), subject.name, why=MODIFIED)
        case "too-many-requests":
            return too_many_requests(
                "The server has received too many requests and has asked us to try again later",
                retry_after_s=max(1, round(fault.seconds)),
            )
        case "internal-error":
            return internal_error("a fault rule of the simulation says so")
        case "gone":
            return expired_list()
        case "unauthorized":
            return unauthorized()
        case _:
            return None
