"""Write the pages of docs/reference that are made from the code: `make reference`.

One function per page; `PAGES` names them. The pages are checked in, and `tests/unit/docs/test_reference.py` fails when
one of them is not what the code says.
"""

import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from types import NoneType, UnionType

import api_reference
import devices_reference
import kai_api.app
import kai_webhook.app
import kaicore.ledger.log.snapshots
import kaicore.runtime.service.http_limits
import kubelets_reference
import reasons_reference
import settings_reference
from kai_api import long_answers
from kai_api.main import KeptStates
from kai_binder.metrics import BinderMetrics
from kai_cli.main import app as kai
from kai_exporter.metrics import ExporterMetrics
from kai_fleet.metrics import Metrics as FleetMetrics
from kai_hub.metrics import HubMetrics
from kai_ingest.metrics import IngestMetrics
from kai_operator.carrying_out import OperatorMetrics
from kai_projector.metrics import ProjectorMetrics
from kai_relay.relay import RelayMetrics
from kai_relay.sealing import SealMetrics
from kai_scheduler.metrics import SchedulerMetrics
from kai_watcher.metrics import WatcherMetrics
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.kube.kinds.table import KINDS
from kaicore.kube.wire.resources import Resource
from kaicore.ledger.feed.observer import FeedMetrics
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import codec, payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.reasons.reason import Reason
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import Stage
from kaicore.rules.state.transitions import TRANSITIONS, Release, Transition, Trigger
from kaicore.runtime.agent.metrics import Registry
from kaicore.runtime.service.leadership import LEADS
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from settings_reference import table

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"
_NOTE = "<!-- Made from the code by scripts/reference.py; `make reference` writes it anew. -->\n"


def sentence(text: str) -> str:
    """A docstring's part as one line."""
    return " ".join(text.split())


def type_name(hint: object) -> str:
    """A type as a reader says it: `int`, `str or none`, `list of Reason`."""
    if hint == Reason:
        return "[Reason](reasons.md)"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin in (typing.Union, UnionType):
        return " or ".join(type_name(part) for part in arguments)
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in arguments)
    if origin in (tuple, list, frozenset, set):
        return f"list of {type_name(arguments[0])}"
    if origin is dict:
        return f"map of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if hint is NoneType:
        return "none"
    return getattr(hint, "__name__", str(hint))


# --- commands ---------------------------------------------------------------------------------------------------------


def commands() -> str:
    """The help texts of all commands; an option that many of them have is described once."""
    text = kai.generate_docs(output_format="markdown", recursive=True, heading_level=1)
    text = re.sub(r"\n## Table of Contents\n.*?(?=\n\*\*Run\*\*)", "", text, flags=re.DOTALL)
    # Angle brackets and braces of help texts are no HTML.
    text = re.sub(r"<(?=[a-z])", "&lt;", text)
    # What is off or empty unless it is named needs no mention.
    text = re.sub(r" \*\[default: (?:False|\"\")\]\*", "", text)
    # A list of commands is of links: each command's own section begins with its description.
    text = re.sub(r"(?m)(?:^\* \[`.*\n(?:    .*\n)*)+", _links, text)
    shared = _shared_options(text)
    text = _PARAMETERS.sub(lambda found: _own_options(found, shared), text.partition("\n")[2].strip() + "\n")
    head = "# Commands\n\nThe texts of `kai --help` and `kai COMMAND --help`. Switches are off unless noted.\n\n"
    overview, _, sections = text.partition("\n## ")
    common = "## Options of many commands\n\n" + "\n".join(shared.values())
    return f"{head}{overview.strip()}\n\n{common}\n\n## {sections}"


_PARAMETERS = re.compile(r"\*\*Parameters\*\*:\n\n((?:\*.*\n(?:    .*\n)*)+)")
_OPTION = re.compile(r"\* `(--[\w-]+).*\n?(?:    .*\n?)*")
#: An option with the same description in so many commands is described once.
_MANY = 8


def _links(found: re.Match[str]) -> str:
    return ", ".join(re.findall(r"(?m)^\* (\[`.*?\]\(.*?\))", found.group())) + "\n"


def _shared_options(text: str) -> dict[str, str]:
    """The description of each option that many commands have, by the option's name."""
    counted = Counter(option.group().strip() for option in _OPTION.finditer(text))
    shared: dict[str, str] = {}
    for option, count in counted.most_common():
        if count >= _MANY:
            shared.setdefault(option.split("`")[1].split(" ")[0].rstrip(","), option)
    return shared


def _own_options(found: re.Match[str], shared: dict[str, str]) -> str:
    options = [(option.group(1), option.group().strip()) for option in _OPTION.finditer(found.group(1))]
    own = [text for name, text in options if shared.get(name) != text]
    named = ", ".join(f"`{name}`" for name, text in options if shared.get(name) == text)
    if named:
        own.append(f"* [of many commands](#options-of-many-commands): {named}")
    return "**Parameters**:\n\n" + "\n".join(own) + "\n"


# --- events -----------------------------------------------------------------------------------------------------------


def events() -> str:
    """The event types with their fields, and the envelope around each."""
    by_name = {cls.__name__: cls for cls in payloads.Payload.__subclasses__()}
    types = [by_name[name] for name in codec.event_types()]
    parts = [cls for name, cls in by_name.items() if name not in codec.event_types()]
    written = [
        "# Events\n\nThe log records these events. An event is an envelope around one of the payloads below. The "
        "payload's name is the event's type. See also [how it works](../explanation/how-it-works.md) for their order, "
        "and [the log](../explanation/log.md) for its promises.",
        _struct(Event, "## The envelope"),
        *(_struct(cls, f"## `{cls.__name__}`", schema=codec.schema_version(cls.__name__)) for cls in types),
        "## Parts of payloads",
        *(_struct(cls, f"### `{cls.__name__}`") for cls in sorted(parts, key=lambda cls: cls.__name__)),
    ]
    return "\n\n".join(written) + "\n"


def _struct(cls: type, heading: str, *, schema: int = 1) -> str:
    doc = cleandoc(cls.__doc__ or "")
    meaning, _, attributes = doc.partition("\nAttributes:\n")
    meanings = _attributes(attributes)
    hints = typing.get_type_hints(cls)
    plain: dict[str, list[str]] = {}
    rows: list[str] = []
    for name in cls.__struct_fields__:  # type: ignore[attr-defined]
        if meaning_of_field := meanings.pop(name, ""):
            rows.append(f"- `{name}` ({type_name(hints[name])}): {meaning_of_field}")
        else:
            plain.setdefault(type_name(hints[name]), []).append(f"`{name}`")
    if plain:
        rows.append("- " + "; ".join(f"{', '.join(names)} ({kind})" for kind, names in plain.items()))
    if meanings:
        raise ValueError(f"{cls.__name__}: its docstring tells of fields that it does not have: {', '.join(meanings)}")
    version = f" Schema version {schema}." if schema > 1 else ""
    body = f"{heading}\n\n{sentence(meaning)}{version}"
    return "\n".join((f"{body}\n", *rows)) if rows else body


def _attributes(text: str) -> dict[str, str]:
    """The `Attributes:` of a Google-style docstring, by name."""
    meanings: dict[str, str] = {}
    for part in re.split(r"\n(?=    \w)", "\n" + text.partition("\n\n")[0]):
        name, colon, meaning = part.strip().partition(":")
        if colon:
            meanings[name] = sentence(meaning)
    return meanings


# --- metrics ----------------------------------------------------------------------------------------------------------


class _Recording(CollectorRegistry):
    """A registry that keeps what is registered with it."""

    def __init__(self) -> None:
        self.collectors: list[Collector] = []
        super().__init__()

    def register(self, collector: Collector) -> None:
        self.collectors.append(collector)
        super().register(collector)


def metrics() -> str:
    """The metrics of every process, as its registry has them."""
    parts = [
        "# Metrics\n\nThe metrics of each process at `/metrics`. Python's client library adds its own. "
        "[Monitor](../how-to/monitor.md) says which to watch, and when."
    ]
    for program, registered in _registered().items():
        parts.append(f"## {program}\n\n" + table(("metric", "type", "labels", "meaning"), _metric_rows(registered)))
    return "\n\n".join(parts) + "\n"


def _registered() -> dict[str, Iterable[Collector]]:
    collectors_by_service: dict[str, Iterable[Collector]] = {
        "Every process with an HTTP server": [kaicore.runtime.service.http_limits._REFUSED],  # noqa: SLF001
        "Every process that reads the log": [kaicore.ledger.log.snapshots.DISCARDED],
        "Every service of which one instance leads": [LEADS],
    }

    def of(name: str, make: Callable[[CollectorRegistry], object]) -> None:
        registry = _Recording()
        make(registry)
        collectors_by_service[name] = registry.collectors

    def scheduler(registry: CollectorRegistry) -> None:
        SchedulerMetrics(registry).watch(ClusterState("any"), EngineConfig(), lambda: 0)

    of("Every process that follows the log", lambda registry: FeedMetrics(registry=registry))
    of("`kai-watcher`", lambda registry: WatcherMetrics("any", registry=registry))
    of("`kai-ingest`", lambda registry: IngestMetrics(registry=registry))
    of("`kai-relay`", lambda registry: (RelayMetrics(registry=registry), SealMetrics(registry=registry)))
    of("`kai-hub`", lambda registry: HubMetrics(registry=registry))
    of("`kai-projector`", lambda registry: ProjectorMetrics(registry=registry))
    of("`kai-scheduler`", scheduler)
    of("`kai-binder`", lambda registry: BinderMetrics("any", registry=registry))
    collectors_by_service["`kai-api`"] = [
        kai_api.app._SECONDS,  # noqa: SLF001
        KeptStates(Inquiry(MemoryLog(clock=lambda: 0))),
        *(long_answers.CYCLES, long_answers.DIFFERENCES, long_answers.FAILURES),
    ]
    collectors_by_service["`kai-webhook`"] = [kai_webhook.app._REVIEWS]  # noqa: SLF001
    of("`kai-operator`", lambda registry: OperatorMetrics(registry=registry))
    collectors_by_service["`kai-exporter`"] = _agent_families()
    of("`kai-fleet`", FleetMetrics)
    return collectors_by_service


def _agent_families() -> list[Collector]:
    """An agent's metrics as those of the client library, which the table is made of."""
    registry, kinds = Registry(), {"counter": CounterMetric, "gauge": Gauge, "histogram": Histogram}
    ExporterMetrics(registry=registry)
    return [
        kinds[family.kind](family.name, family.meaning, family.labels, registry=None) for family in registry.families
    ]


def _metric_rows(collectors: Iterable[Collector]) -> Iterator[tuple[str, ...]]:
    families: dict[str, tuple[Metric, tuple[str, ...]]] = {}
    for collector in collectors:
        described = collector.describe() if isinstance(collector, MetricWrapperBase) else collector.collect()
        for family in described:
            labels = getattr(collector if isinstance(collector, MetricWrapperBase) else family, "_labelnames", ())
            families[family.name] = (family, tuple(labels))
    for name, (family, labels) in sorted(families.items()):
        total = "_total" if family.type == "counter" else ""
        yield (
            f"`{name}{total}`",
            family.type,
            ", ".join(f"`{label}`" for label in labels),
            family.documentation.rstrip("."),
        )


# --- stages of pods ---------------------------------------------------------------------------------------------------


def pod_stages() -> str:
    """The stages of pods, and the table by which the fold changes a pod's entry."""
    stages = _attributes(cleandoc(Stage.__doc__ or "").partition("Attributes:\n")[2])
    columns = list(Stage)
    reached = [
        (trigger.value, *(_next_stage(TRANSITIONS.get((stage, trigger)), stage) for stage in columns))
        for trigger in Trigger
    ]
    releases = _attributes(cleandoc(Release.__doc__ or "").partition("Attributes:\n")[2])
    written = [
        "# Stages of pods",
        "What an event changes in a pod's entry of the state. The fold is this table "
        "(`kaicore.rules.state.transitions`); everything else that the state keeps of pods follows from the entry "
        "before and after (`kaicore.rules.state.pod_indexes`).",
        "## The stages",
        table(("stage", "meaning"), ((stage.value, stages[stage.name]) for stage in columns)),
        "## To which stage an event leads",
        "A column for each stage that the pod may be in. Empty: the event changes nothing.",
        table(("event", *(stage.value for stage in columns)), reached),
        "## What an event changes",
        table(("event", "in stage", "changes", "only if", "lets go of its node"), _changes()),
        "How a pod lets go of its node decides what follows:",
        table(("as", "meaning"), ((release.value, releases[release.name]) for release in Release)),
    ]
    return "\n\n".join(written) + "\n"


def _next_stage(transition: Transition | None, stage: Stage) -> str:
    return "" if transition is None else "stays" if transition.to is stage else transition.to.value


def _changes() -> Iterator[tuple[str, ...]]:
    for trigger in Trigger:
        by_row: dict[tuple[str, str, str], list[str]] = {}
        for stage in Stage:
            transition = TRANSITIONS.get((stage, trigger))
            if transition is not None:
                condition = transition.when.__doc__ if transition.when is not None else ""
                release = transition.release.value if transition.release is not None else ""
                row = sentence(transition.change.__doc__ or ""), sentence(condition or "").rstrip("."), release
                by_row.setdefault(row, []).append(stage.value)
        for (change, condition, release), stages in by_row.items():
            yield trigger.value, ", ".join(stages), change, condition, release


#: The page's name and the function that writes it.
def kinds() -> str:
    """Every kind that is recorded, from the table of kinds."""
    rows = []
    for kind in KINDS:
        name, _, _ = kind.name.partition(".")
        resource = kind.resource
        facts = f"`{kind.observed.__name__}`, `{kind.deleted.__name__}`"
        scope = "namespaced" if resource.namespaced else "cluster"
        optional = "" if isinstance(resource, Resource) else "where it is served"
        rows.append(
            [name, resource.group or "core", ", ".join(resource.versions), scope, facts, f"`{kind.key}`", optional]
        )
    return f"""# Kinds

Every kind of objects that the watcher follows, in this order. Each is one row of the table in
`kaicore.kube.kinds.table`; of several versions the first that is served is read. A version of an object that says
something new is recorded as the first of the two [events](events.md), its end as the second, both on the stream in the
last column but one.

{table(("kind", "API group", "versions", "scope", "events", "stream", ""), rows)}
"""


PAGES: dict[str, Callable[[], str]] = {
    "api": api_reference.api,
    "kinds": kinds,
    "kubelets": kubelets_reference.kubelets,
    "device-conformance": devices_reference.devices,
    "commands": commands,
    "settings": settings_reference.page,
    "events": events,
    "metrics": metrics,
    "pod-stages": pod_stages,
    "reasons": reasons_reference.reasons,
}


def page(name: str) -> str:
    """A page as it must be checked in."""
    return _NOTE + PAGES[name]()


def main() -> None:
    for name in PAGES:
        (REFERENCE / f"{name}.md").write_text(page(name))


if __name__ == "__main__":
    main()
