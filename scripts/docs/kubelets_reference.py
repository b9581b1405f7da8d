"""The page `docs/reference/kubelets.md`: what kubelets of different versions do otherwise, from the model itself."""

import json
from pathlib import Path
from typing import Any

from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.versions import CHANGES, GATES, NEWEST_MINOR, OLDEST_MINOR, REFERENCE_MINOR

_VERSIONS = range(OLDEST_MINOR, NEWEST_MINOR + 1)

_WHICH = f"""A node's zones are predicted by the rules of its kubelet's version (`status.nodeInfo.kubeletVersion`).
Without a version the rules are those of 1.{REFERENCE_MINOR}. The rules cover 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}; an
older or newer kubelet follows the nearest of them. `kai why pod/NAME`, `kai why node/NAME` and
`kai get nodes -o json` name the version used, and why."""

_GATES = """Feature gates have the version's defaults. A node's `status.declaredFeatures` overrides them, and so does
`kubelets` in the scheduler's configuration: `version`, `feature_gates`, `cpu_options` and `topology_options`
([the scheduler's settings](scheduler-settings.md))."""


_AGREEMENT = Path(__file__).parents[2] / "tests/fidelity/recorded/agreement.json"

_RECORDED = """Each version's own managers decided on made-up nodes and pods, 200 scenarios each
(`python -m tests.fidelity.kubelet_recorder`, decision 0450). The table shows how many decisions the model predicts as
they are. *By the version before*: so many verdicts the model of the minor version before predicts. 1.36 is also
recorded from a whole kubelet (`make fidelity`)."""


def kubelets() -> str:
    """The model of a kubelet per version and gates."""
    return "\n\n".join(
        [
            "# Kubelets by version",
            _WHICH,
            _GATES,
            "## What changed",
            "\n".join(
                f"- 1.{item.since}, {item.matter.value}: {item.what}{f' Only with {item.only}.' if item.only else ''} "
                f"({item.source})"
                for item in CHANGES
            ),
            "## Which versions do what",
            "With the gates that are on by default, and the gate or option that a difference needs. A pod *with "
            "resources of its own* has `spec.resources`.",
            _table(("", "by version"), [(row[0], _ranges(row[1:])) for row in _rows()]),
            "## Recorded",
            _RECORDED,
            _table(
                ("kubelet", "verdicts", "zones", "memory", "CPUs and devices", "by the version before"),
                [_recorded(one) for one in json.loads(_AGREEMENT.read_bytes())],
            ),
            "## Gates",
            "\n".join(
                f"- `{name}`: known since 1.{gate.since}, "
                + ("off by default." if gate.default_on is None else f"on by default since 1.{gate.default_on}.")
                for name, gate in GATES.items()
            ),
            "Each difference of a verdict or of zones has a test that cites its source "
            "(`tests/fidelity/test_versions.py`).\n",
        ]
    )


def _recorded(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["version"],
        *(f"{one[f'{name}_agreed']}/{one[name]}" for name in ("verdicts", "masks", "memory", "amounts")),
        f"{one['agreed_with_the_version_before']}/{one['verdicts']}",
    )


def _ranges(values: tuple[str, ...]) -> str:
    """The values of all versions in order, each with the first version that has it."""
    changes = [f"{values[0]} at first"]
    for minor, before, value in zip(_VERSIONS[1:], values, values[1:], strict=False):
        if value != before:
            changes.append(f"{value} from 1.{minor} on")
    return ", ".join(changes) if len(changes) > 1 else values[0]


def _rows() -> list[tuple[str, ...]]:
    options = frozenset({"distribute-cpus-across-numa", "align-by-socket"})
    plain = [KubeletSettings(minor=minor) for minor in _VERSIONS]
    gated = [KubeletSettings(minor=minor, gates_on=frozenset(GATES)) for minor in _VERSIONS]
    spread = [KubeletSettings(minor=minor, cpu_options=options, zones_per_socket=2).spreading for minor in _VERSIONS]
    return [
        ("a pod with resources of its own: aligned are", *(str(item.pod_level) for item in plain)),
        ("the same with PodLevelResourceManagers", *(str(item.pod_level) for item in gated)),
        ("memory on a mask in use otherwise is refused", *(_yes(item.refuses_mixed_memory_groups) for item in plain)),
        (
            "device hints over zones with devices only",
            *(_yes(item.device_masks_are_of_hosting_zones) for item in plain),
        ),
        ("spread CPUs stay on a socket", *(_yes(item is not None and item.keeps_socket) for item in spread)),
        ("spread CPUs use the whole mask", *(_yes(item is not None and item.at_least > 0) for item in spread)),
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
