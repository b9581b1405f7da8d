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
import kai_api.main
import kai_webhook.app
import kaicore.analysis.replay.self_check
import kaicore.ledger.log.snapshots
import kaicore.runtime.service.http_limits
import kubelets_reference
import reasons_reference
import settings_reference
import shares_reference
from kai_api import long_answers
from kai_api.main import KeptStates
from kai_binder.metrics import BinderMetrics
from kai_cli.main import app as kai
from kai_exporter.exporter import ExporterMetrics
from kai_fleet.writer import Metrics as FleetMetrics
from kai_hub.hub import HubMetrics
from kai_ingest.ingest import IngestMetrics
from kai_operator.carrying_out import OperatorMetrics
from kai_projector.main import ProjectorMetrics
from kai_relay.relay import RelayMetrics
from kai_relay.sealing import SealMetrics
from kai_scheduler.metrics import SchedulerMetrics
from kai_watcher.metrics import WatcherMetrics
from kaicore.analysis.ask.queries import Inquiry
from kaicore.kube.kinds.table import KINDS
from kaicore.kube.wire.resources import Resource
from kaicore.ledger.feed import FeedMetrics
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import codec
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import payload_types
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.dialects.table import DIALECTS
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.pods.transitions import TRANSITIONS, Release, Transition, Trigger
from kaicore.runtime.agent.metrics import Registry
from kaicore.runtime.service.leadership import LEADS
from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as CounterMetric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from settings_reference import table

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
_NOTE = "<!-- Made from the code by scripts/docs/reference.py; `make reference` writes it anew. -->\n"


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
    """Every command with its purpose and the names of its options; an option of many commands is described once."""
    text = kai.generate_docs(output_format="markdown", recursive=True, heading_level=1)
    overview, *sections = re.split(r"(?m)^##+ (?=kai )", text)
    options = [option for section in sections for option in _OPTION.findall(section)]
    count_by_name = Counter(name for name, _ in options)
    meanings: dict[str, str] = {}
    for (name, meaning), _ in Counter(options).most_common():
        if count_by_name[name] >= _MANY:
            meanings.setdefault(name, sentence(meaning).partition(" *[")[0])
    by_command = {section.partition("\n")[0].strip(): section for section in sections}
    parts = [
        "# Commands",
        "`kai COMMAND --help` describes the options of a command. Switches are off unless their help says otherwise. "
        "*log* and *question* stand for [several options](#options-of-many-commands).",
    ]
    for title, listed in re.findall(r"\*\*([^*]+)\*\*:\n\n((?:\* \[`kai|\* \[`.*\n(?:    .*\n)*)+)", overview):
        groups = [f"kai {name}" for name in re.findall(r"(?m)^\* \[`([\w-]+)`", listed)]
        lines = [
            _command(by_command[name])
            for group in groups
            for name in by_command
            if name == group or name.startswith(f"{group} ")
        ]
        parts.append(f"## {title}\n\n" + "\n".join(line for line in lines if line))
    shared = "\n".join(f"- `{name}`: {_escaped(meaning)}" for name, meaning in meanings.items())
    named = "\n".join(
        f"*{title}*: " + ", ".join(f"`{option}`" for option in of_log) + ".\n"
        for title, of_log in reversed(_OF_A_LOG.items())
    )
    parts.append(f"## Options of many commands\n\n{named}\n{shared}")
    return "\n\n".join(parts) + "\n"


_OPTION = re.compile(r"(?m)^\* `(--[\w-]+)[^`]*`: (.*(?:\n    .*)*)")
_LOG = ("--data-dir", "--database-url", "--cluster", "--file", "--retired")
#: Options that commands have together, by what the page calls them; the most first.
_OF_A_LOG = {"question": (*_LOG, "--api-url", "--token"), "log": _LOG}
#: An option that so many commands have is described once.
_MANY = 8


def _escaped(text: str) -> str:
    """A help text in Markdown: its angle brackets are no HTML."""
    return re.sub(r"<(?=[a-z])", "&lt;", text)


def _command(section: str) -> str:
    """The line of a command; none for one that is only the head of others."""
    usage = re.search(r"```console\n(.*?)\n```\n+(.*?)(?:\n\n|\Z)", section, flags=re.DOTALL)
    if usage is None:
        return ""
    named = [option for option, _ in _OPTION.findall(section)]
    for title, of_log in _OF_A_LOG.items():
        if set(named) >= set(of_log):
            named = [*(option for option in named if option not in of_log), title]
            break
    options = ", ".join(f"`{option}`" if option.startswith("-") else f"*{option}*" for option in named)
    shown = usage[1].replace(" [OPTIONS]", "")
    return f"- `{shown}`: {_escaped(sentence(usage[2]))}" + (f" ({options})" if options else "")


# --- events -----------------------------------------------------------------------------------------------------------


def events() -> str:
    """The event types, a line each, and the envelope around each event."""
    by_name = {cls.__name__: cls for cls in payload_types()}
    recorded = {cls.__name__ for kind in KINDS for cls in (kind.observed, kind.deleted)}
    types = [name for name in codec.event_types() if name not in recorded]
    parts = sorted(name for name in by_name if name not in codec.event_types())
    written = [
        "# Events\n\nThe log records these events. An event is an envelope around a payload. The payload's name is the "
        "event's type. The [payloads' source](../../libs/kaicore/src/kaicore/rules/events/payloads.py) describes each "
        "field. [How it works](../explanation/how-it-works.md) shows their order, [the log](../explanation/log.md) "
        "its promises.",
        "## The envelope\n\n" + _struct(Event),
        "## What the watcher saw\n\n`…Observed`: an object is new, or has changed in what scheduling needs. "
        "`…Deleted`: it is gone. [Kinds](kinds.md) lists the two events of each kind.",
        "## What was decided and done\n\n" + "\n".join(_line(by_name[name]) for name in types),
        "## Parts of payloads\n\n" + "\n".join(_line(by_name[name]) for name in parts),
    ]
    return "\n\n".join(written) + "\n"


def _line(cls: type) -> str:
    """A payload's meaning and the names of its fields."""
    meaning = sentence(cleandoc(cls.__doc__ or "").partition("\n\n")[0])
    schema = codec.schema_version(cls.__name__)
    version = f" Schema version {schema}." if schema > 1 else ""
    fields = ", ".join(cls.__struct_fields__)  # type: ignore[attr-defined]
    former = "".join(f" Formerly `{old}`." for old, name in codec.FORMER_NAMES.items() if name == cls.__name__)
    return f"- `{cls.__name__}`: {meaning}{version}{former} `{fields}`"


def _struct(cls: type) -> str:
    doc = cleandoc(cls.__doc__ or "")
    meaning, _, attributes = doc.partition("\nAttributes:\n")
    meanings = _attributes(attributes)
    hints = typing.get_type_hints(cls)
    rows = [f"- `{name}` ({type_name(hints[name])}): {meaning_of_field}" for name, meaning_of_field in meanings.items()]
    plain = [f"`{name}`" for name in cls.__struct_fields__ if name not in meanings]  # type: ignore[attr-defined]
    rows.append(f"- {', '.join(plain)}: as their names say.")
    return "\n".join((f"{sentence(meaning)}\n", *rows))


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
        "# Metrics\n\nThe metrics of each process at `/metrics`, with their labels. `_total` is a counter, `_seconds` "
        "is a histogram, and any other is a gauge, unless the line says otherwise. Python's library adds its own. "
        "[Monitor](../how-to/monitor.md) says which to watch, and when."
    ]
    for program, registered in _registered().items():
        parts.append(f"## {program}\n\n" + "\n".join(_metric_lines(registered)))
    return "\n\n".join(parts) + "\n"


def _registered() -> dict[str, Iterable[Collector]]:
    collectors_by_service: dict[str, Iterable[Collector]] = {
        "Every process with an HTTP server": [kaicore.runtime.service.http_limits._REFUSED],  # noqa: SLF001
        "Every process that reads the log": [kaicore.ledger.log.snapshots.DISCARDED],
        "Every service that checks itself": [kaicore.analysis.replay.self_check.DIFFERENCES],
        "Every service of which one instance leads": [LEADS],
    }

    def of(name: str, make: Callable[[CollectorRegistry], object]) -> None:
        registry = _Recording()
        make(registry)
        collectors_by_service[name] = registry.collectors

    def scheduler(registry: CollectorRegistry) -> None:
        SchedulerMetrics(registry).watch(ClusterState("any"), EngineConfig(gpu_sharing=True), lambda: 0)

    of("Every process that follows the log", lambda registry: FeedMetrics(registry=registry))
    of("`kai-watcher`", lambda registry: WatcherMetrics("any", registry=registry))
    of("`kai-ingest`", lambda registry: IngestMetrics(registry=registry))
    of("`kai-relay`", lambda registry: (RelayMetrics(registry=registry), SealMetrics(registry=registry)))
    of("`kai-hub`", lambda registry: HubMetrics(registry=registry))
    of("`kai-projector`", lambda registry: ProjectorMetrics(registry=registry))
    of("`kai-scheduler`", scheduler)
    of("`kai-binder`", lambda registry: BinderMetrics("any", registry=registry))
    collectors_by_service["`kai-api`"] = [
        kai_api.main._SECONDS,  # noqa: SLF001
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


def _metric_lines(collectors: Iterable[Collector]) -> Iterator[str]:
    families: dict[str, tuple[Metric, tuple[str, ...]]] = {}
    for collector in collectors:
        described = collector.describe() if isinstance(collector, MetricWrapperBase) else collector.collect()
        for family in described:
            labels = getattr(collector if isinstance(collector, MetricWrapperBase) else family, "_labelnames", ())
            families[family.name] = (family, tuple(labels))
    for name, (family, labels) in sorted(families.items()):
        full = f"{name}_total" if family.type == "counter" else name
        usual = "counter" if full.endswith("_total") else "histogram" if full.endswith("_seconds") else "gauge"
        unusual = "" if family.type == usual else f" ({family.type})"
        shown = f"{full}{{{','.join(labels)}}}" if labels else full
        yield f"- `{shown}`{unusual}: {family.documentation.rstrip('.')}"


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
        "(`kaicore.rules.state.pods.transitions`); everything else that the state keeps of pods follows from the entry "
        "before and after (`kaicore.rules.state.indexes.pod_indexes`).",
        "## The stages",
        table(("stage", "meaning"), ((stage.value, stages[stage.name]) for stage in columns)),
        "## To which stage an event leads",
        "A column for each stage that the pod may be in. Empty: the event changes nothing.",
        table(("event", *(stage.value for stage in columns)), reached),
        "## What an event changes\n\nIn brackets: the stages in which it does so.",
        "\n".join(_changes()),
        "How a pod lets go of its node decides what follows:",
        table(("as", "meaning"), ((release.value, releases[release.name]) for release in Release)),
    ]
    return "\n\n".join(written) + "\n"


def _next_stage(transition: Transition | None, stage: Stage) -> str:
    return "" if transition is None else "stays" if transition.to is stage else transition.to.value


def _changes() -> Iterator[str]:
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
            only = f" Only if: {condition[:1].lower()}{condition[1:]}." if condition else ""
            lets_go = f" Lets go of its node: {release}." if release else ""
            yield f"- {trigger.value} ({', '.join(stages)}): {change}{only}{lets_go}"


# --- kinds ------------------------------------------------------------------------------------------------------------


def kinds() -> str:
    """Every kind that is recorded, by the events that record it."""
    rows: dict[tuple[str, str], list[str]] = {}
    for kind in KINDS:
        name, _, _ = kind.name.partition(".")
        resource = kind.resource
        optional = "" if isinstance(resource, Resource) else "\\*"
        shown = f"{name}{optional} ({resource.group or 'core'}/{', '.join(resource.versions)})"
        rows.setdefault((f"`{kind.observed.__name__}`, `{kind.deleted.__name__}`", f"`{kind.key}`"), []).append(shown)
    lines = "\n".join(f"- {both} on {stream}: {'; '.join(names)}" for (both, stream), names in rows.items())
    return f"""# Kinds

The watcher follows these kinds of objects (`kaicore.kube.kinds.table`). It reads the first version that is served.
It records a version of an object that says something new as the first of the two [events](events.md), and the
object's end as the second. \\*: followed where the cluster serves it.

{lines}

## Workloads

Kinds of the dialects (`kaicore.rules.groups.dialects`): their objects group pods, and `kai simulate` makes their pods.
[How to add a dialect](../how-to/add-a-dialect.md).

{_workloads()}
"""


def _workloads() -> str:
    rows = []
    for dialect in DIALECTS:
        kinds_of = [f"{one.kind.partition('.')[0]} ({one.group or 'core'})" for one in dialect.workloads]
        labels = {
            label: None
            for one in dialect.workloads
            for label in (one.name_label, one.instance_label, one.template_label)
            if label
        }
        named = f"; pods name them by {', '.join(f'`{label}`' for label in labels)}" if labels else ""
        rows.append(f"- {dialect.name}: {', '.join(kinds_of)}{named}")
    return "\n".join(rows)


#: The page's name and the function that writes it.
PAGES: dict[str, Callable[[], str]] = {
    "api": api_reference.api,
    "kinds": kinds,
    "kubelets": kubelets_reference.kubelets,
    "device-conformance": devices_reference.devices,
    "gpu-share-conformance": shares_reference.shares,
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
