"""Labels that define the topology, by platform."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from kaicore.errors import ConfigurationError
from kaicore.rules.model.node import HOSTNAME
from kaicore.spelling import did_you_mean

Preset = Literal["aws", "gke", "oci", "topograph", "nvlink", "compute-domain"]


class LabelLevel(NamedTuple):
    """A level above the nodes: the label that tells a node's domain, and a short name."""

    label: str
    alias: str = ""


_PRESETS: dict[str, tuple[LabelLevel, ...]] = {
    # EC2's network node layers, the top one first, as DescribeInstanceTopology has them.
    "aws": tuple(LabelLevel(f"topology.k8s.aws/network-node-layer-{layer}", f"layer-{layer}") for layer in (1, 2, 3)),
    # GKE's labels for placement within a block (docs of GKE, "gce-topology-*").
    "gke": (
        LabelLevel("cloud.google.com/gce-topology-block", "block"),
        LabelLevel("cloud.google.com/gce-topology-subblock", "subblock"),
        LabelLevel("cloud.google.com/gce-topology-host", "host"),
    ),
    # OKE's labels of bare-metal nodes.
    "oci": (
        LabelLevel("oci.oraclecloud.com/host.network_block_id", "network-block"),
        LabelLevel("oci.oraclecloud.com/host.rack_id", "rack"),
    ),
    # NVIDIA's device plugin: nodes with GPUs that share an NVLink domain, `<cluster UUID>.<clique>`.
    "nvlink": (LabelLevel("nvidia.com/gpu.clique", "clique"),),
    # NVIDIA's DRA driver: nodes that a ComputeDomain has taken, by its UID.
    "compute-domain": (LabelLevel("resource.nvidia.com/computeDomain", "compute-domain"),),
}

#: Labels of topograph: from 1.0 on as many tiers as there are, tier 0 right above the nodes; before, these names.
TOPOGRAPH_TIER = "fabric.topograph.run/tier-"
_TOPOGRAPH_BEFORE_1 = tuple(
    LabelLevel(f"network.topology.nvidia.com/{name}", name) for name in ("core", "spine", "leaf", "accelerator")
)
_TIER = re.compile(re.escape(TOPOGRAPH_TIER) + r"(\d{1,3})")


def preset_levels(preset: Preset, nodes: Mapping[str, Mapping[str, str]]) -> tuple[LabelLevel, ...]:
    """Return the levels of a preset; of topograph those that nodes have, of which there must be some.

    Raises:
        ConfigurationError: nodes are given, and have none of the labels of topograph; or none are given.
    """
    if preset != "topograph":
        return _PRESETS[preset]
    seen = {label for labels in nodes.values() for label in labels}
    tiers = sorted({int(match[1]) for label in seen if (match := _TIER.fullmatch(label))}, reverse=True)
    levels = tier_levels(tiers) or tuple(level for level in _TOPOGRAPH_BEFORE_1 if level.label in seen)
    if not levels:
        raise ConfigurationError(
            "--preset topograph: its tiers are read from nodes, and no node has a label of topograph"
        )
    return levels


def tier_levels(tiers: Iterable[int]) -> tuple[LabelLevel, ...]:
    """Return levels of topograph's labels."""
    return tuple(LabelLevel(f"{TOPOGRAPH_TIER}{tier}", f"tier-{tier}") for tier in tiers)


def named_levels(labels: str, nodes: Mapping[str, Mapping[str, str]]) -> tuple[LabelLevel, ...]:
    """Return the levels of label keys, with commas between them.

    Raises:
        ConfigurationError: one is empty, is there twice, or is on no node where there are nodes; or the hostname is
            above another.
    """
    keys = [key.strip() for key in labels.split(",")]
    if keys[-1] == HOSTNAME and len(keys) > 1:
        keys.pop()  # the nodes themselves, which are always the lowest level
    seen = {label for one in nodes.values() for label in one}
    for index, key in enumerate(keys):
        if not key:
            raise ConfigurationError(f"--labels {labels}: an empty label")
        if key == HOSTNAME:
            raise ConfigurationError(f"--labels {labels}: {HOSTNAME} can only be the lowest level")
        if key in keys[:index]:
            raise ConfigurationError(f"--labels {labels}: {key} is there twice")
        if seen and key not in seen:
            raise ConfigurationError(f"--labels {labels}: no node has the label {key}{did_you_mean(key, sorted(seen))}")
    return tuple(LabelLevel(key) for key in keys)
