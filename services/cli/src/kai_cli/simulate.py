"""`kai simulate`: cycles over plain manifests, without a server and without a database (docs/reference/simulate.md)."""

import asyncio
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from kaicore.analysis.simulation import Located, Outcome, read_world, simulate
from kaicore.analysis.simulation.kubelets import FleetKubelets, find_kubelets
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.config import EngineConfig, PlacementStrategy
from kaicore.runtime.shard_settings import read_shard_settings
from kaicore.spelling import did_you_mean

from kai_cli.manifests import STDIN, read_files
from kai_cli.printing import print_data
from kai_cli.progress import Progress
from kai_cli.simulation_table import render_table


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
) -> int:
    """Schedule the pods of manifests on the nodes of manifests, and say where they go and why not, with no server.

    Args:
        files: YAML or JSON, folders of them, or - for standard input.
        cycles: how many scheduling cycles to run, a second apart; by default until nothing changes.
        wait: when nothing changes, go on with what only waits for time: graces, delays, minimum runtimes.
        kubelet: let a model of the nodes' kubelets answer each bind.
        profile: add the nodes of a simulated fleet: a profile's name (demo24, mini, ...) or file.
        scheduler_config: the scheduler's settings, the same YAML file that kai-scheduler takes.
        scheduler_name: whose pods are scheduled; also of pods that name no scheduler.
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
    settings = _settings(
        read_shard_settings(scheduler_config),
        scheduler_name=scheduler_name,
        strategy=strategy,
        ignore=ignore,
        numa=numa,
    )
    model = find_kubelets(profile) if kubelet or profile is not None else None
    reading = read_files(list(files))
    objects = reading.objects
    if model is not None and profile is not None:
        objects += _of_profile(model, profile, objects)
    world = read_world(objects, scheduler_name=settings.scheduler_name)
    if problems := [*reading.problems, *world.problems]:
        raise ConfigurationError("\n     ".join(map(str, problems)))
    with Progress("simulating cycles") as progress:
        kubelets = model if kubelet else None
        outcome = asyncio.run(simulate(world, settings, kubelets=kubelets, cycles=cycles, wait=wait, on_cycle=progress))
    strangers = [f"skipped {where}: not a Kubernetes object" for where in reading.strangers]
    for warning in [*strangers, *world.warnings]:
        sys.stderr.write(f"kai: warning: {warning}\n")
    _write(outcome, output)
    return 0


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
