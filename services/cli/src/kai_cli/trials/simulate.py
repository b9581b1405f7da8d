"""`kai simulate`: cycles over plain manifests, without a server and without a database (docs/reference/simulate.md).

In the outcome for people, what is wrong stands last, where the eye is.
"""

import asyncio
import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from kaicore.analysis.json_spelling import duration_text
from kaicore.analysis.trial.simulation import Located, Outcome, PodOutcome, read_world, simulate
from kaicore.analysis.trial.simulation.kubelets import FleetKubelets, find_kubelets
from kaicore.analysis.trial.simulation.outcome import Phase
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import format_amount
from kaicore.runtime.policies.guard import TimeAndMemory
from kaicore.runtime.shard_settings import read_shard_settings
from kaicore.spelling import did_you_mean

from kai_cli.output import Progress, aligned, print_data, warn
from kai_cli.sources.manifests import STDIN, read_files

_HEADER: tuple[str, ...] = ("NAMESPACE", "POD", "PHASE", "NODE", "ZONES")

#: A column that only tables with a pod of a group with a topology constraint have.
_TOPOLOGY = "TOPOLOGY"


def render_table(outcome: Outcome, *, wide: bool = False) -> str:
    """Write a table of pods, then why those without a node have none, then one line that sums up.

    Args:
        wide: also pods that had a node before.
    """
    shown = [pod for pod in outcome.pods if wide or pod.placed or pod.phase is not Phase.BOUND]
    places = [_place(pod) for pod in shown]
    rows = [_HEADER, *map(_row, shown)]
    if any(places):
        rows = [(*row, place) for row, place in zip(rows, (_TOPOLOGY, *places), strict=True)]
    if any(pod.gpus for pod in shown):
        rows = [(*row, parts) for row, parts in zip(rows, ("GPUS", *map(_gpus, shown)), strict=True)]
    lines = aligned(rows, between="  ") if shown else []
    for phase in (Phase.EVICTED, Phase.REJECTED, Phase.NOMINATED, Phase.PENDING):
        lines += _explained(phase, [pod for pod in outcome.pods if pod.phase is phase])
    lines += [f"  ! {name}: {text}" for name, notes in outcome.notes.items() for text in notes]
    return "\n".join([*lines, *([""] if lines else []), _sum(outcome), ""])


def _row(pod: PodOutcome) -> tuple[str, ...]:
    zones = "; ".join(f"{zone}: {_amounts(held)}" for zone, held in pod.zones)
    return pod.namespace, pod.name, pod.phase, pod.node or "-", zones


def _place(pod: PodOutcome) -> str:
    """Return the domains of a pod's node, but for the node itself, and its rank; empty for neither."""
    path = "/".join(domain for domain in pod.domains.values() if domain != pod.node)
    return ", ".join(filter(None, (path, "" if pod.rank is None else f"rank {pod.rank}")))


def _gpus(pod: PodOutcome) -> str:
    return ", ".join(f"{gpus_text(part.milli)} of GPU group {part.group[:8]}" for part in pod.gpus)


def _amounts(held: Amounts) -> str:
    return ", ".join(f"{format_amount(name, amount)} {name}" for name, amount in sorted(held.items()))


def _explained(phase: Phase, pods: Iterable[PodOutcome]) -> list[str]:
    """Say why, once for pods of one owner and the same reasons."""
    groups: dict[object, list[PodOutcome]] = {}
    for pod in pods:
        groups.setdefault((pod.namespace, pod.owner, pod.reasons), []).append(pod)
    if not groups:
        return []
    lines = ["", f"{phase}:"]
    for group in groups.values():
        first = group[0]
        others = f" and {len(group) - 1} more" + (f" of {first.owner}" if first.owner else "") if len(group) > 1 else ""
        lines.append(f"  {first.namespace}/{first.name}{others}")
        lines += [f"    - {_why(phase, why.code, why.message, why.example)}" for why in first.reasons]
    return lines


def _why(phase: Phase, code: str, message: str, node: str) -> str:
    return f"{code} on {node}: {message}" if phase is Phase.REJECTED else message


def _sum(outcome: Outcome) -> str:
    placed = sum(pod.placed and pod.phase is Phase.BOUND for pod in outcome.pods)
    before = sum(not pod.placed and pod.phase is Phase.BOUND for pod in outcome.pods)
    counts = [f"{placed} placed"]
    for phase in (Phase.PENDING, Phase.NOMINATED, Phase.EVICTED, Phase.REJECTED):
        number = sum(pod.phase is phase for pod in outcome.pods)
        if number or phase is Phase.PENDING:
            counts.append(f"{number} {phase.lower()}")
    if before:
        counts.append(f"{before} had a node before")
    cycles = plural(outcome.cycles, "cycle")
    if outcome.seconds > outcome.cycles:
        cycles += f" in {duration_text(outcome.seconds)} of simulated time"
    hint = "" if outcome.nodes else " (no nodes: add their manifests, or --profile demo24)"
    return f"{plural(outcome.nodes, 'node')}, {cycles}: {', '.join(counts)}{hint}"


def simulate_command(
    # For `-`, which is no option.
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    cycles: int | None = None,
    wait: bool = False,
    kubelet: bool = False,
    profile: str | None = None,
    scheduler_config: Path | None = None,
    scheduler_name: str | None = None,
    strategy: PlacementStrategy | None = None,
    ignore: list[str] | None = None,
    numa: bool | None = None,
    output: Annotated[Literal["table", "wide", "json", "yaml"], Parameter(name=["--output", "-o"])] = "table",
) -> None:
    """Schedule the pods of manifests on the nodes of manifests, and say where they go and why not, with no server.

    Args:
        files: YAML or JSON, folders of them, or - for standard input.
        cycles: how many scheduling cycles to run, a second apart; by default until nothing changes.
        wait: when nothing changes, go on with what only waits for time: graces, delays, minimum runtimes.
        kubelet: let a model of the nodes' kubelets answer each bind.
        profile: add the nodes of a simulated fleet: a profile's name (demo24, mini, ...) or file.
        scheduler_config: the scheduler's settings, the same YAML file that kai-scheduler takes.
        scheduler_name: the scheduler of the pods that are scheduled; also of pods that name no scheduler.
        strategy: binpack or spread.
        ignore: a resource that zones report but kubelets do not align; may be given several times.
        numa: look at NUMA zones, or not.
        output: table, wide (also pods that ran before), json or yaml.
    """
    if not files and profile is None:
        raise ConfigurationError("simulate what? Name files or folders, or - for standard input")
    for file in files:
        if str(file).startswith("-") and file != STDIN:
            raise ConfigurationError(f"no such option: {file}{did_you_mean(str(file), _options())}")
    if cycles is not None and cycles < 0:
        raise ConfigurationError(f"--cycles: must be 0 or more: {cycles}")
    policies = PolicyBook(TimeAndMemory())
    config = read_shard_settings(scheduler_config, policies)
    settings = _settings(config, scheduler_name=scheduler_name, strategy=strategy, ignore=ignore, numa=numa)
    model = find_kubelets(profile) if kubelet or profile is not None else None
    reading = read_files(list(files))
    objects = reading.objects
    if model is not None and profile is not None:
        objects += _of_profile(model, profile, objects)
    world = read_world(objects, scheduler_name=settings.scheduler_name, gpu_sharing=settings.gpu_sharing)
    if problems := [*reading.problems, *world.problems]:
        raise ConfigurationError("\n     ".join(map(str, problems)))
    with Progress("simulating cycles") as progress:
        kubelets = model if kubelet else None
        simulated = simulate(
            world, settings, kubelets=kubelets, cycles=cycles, wait=wait, policies=policies, on_cycle=progress
        )
        outcome = asyncio.run(simulated)
    warn([*(f"skipped {where}: not a Kubernetes object" for where in reading.strangers), *world.warnings])
    _write(outcome, output)


def _of_profile(model: FleetKubelets, profile: str, objects: Sequence[Located]) -> list[Located]:
    """Return a profile's objects, but for namespaces that the files bring themselves."""
    own = {str(item.object["metadata"].get("name")) for item in objects if item.object["kind"] == "Namespace"}
    shown = (one for one in model.objects() if one["kind"] != "Namespace" or one["metadata"]["name"] not in own)
    return [Located(f"profile {profile}", one) for one in shown]


def _options() -> list[str]:
    return [f"--{name.replace('_', '-')}" for name in inspect.signature(simulate_command).parameters]


def _settings(
    config: EngineConfig,
    *,
    scheduler_name: str | None,
    strategy: PlacementStrategy | None,
    ignore: list[str] | None,
    numa: bool | None,
) -> EngineConfig:
    """Return a shard's settings with what the flags say instead."""
    given = {
        "scheduler_name": scheduler_name,
        "placement_strategy": strategy,
        "ignore_list": None if ignore is None else tuple(ignore),
        "numa": numa,
    }
    return msgspec.structs.replace(config, **{name: value for name, value in given.items() if value is not None})


def _write(outcome: Outcome, output: str) -> None:
    if output == "yaml":
        print_data(outcome.document(), "yaml")
    elif output == "json":
        body = msgspec.json.format(msgspec.json.encode(outcome.document()), indent=2)
        sys.stdout.write(body.decode() + "\n")
    else:
        sys.stdout.write(render_table(outcome, wide=output == "wide"))
