"""Cycles over plain Kubernetes objects, without a server, for `kai simulate`."""

from kaicore.analysis.simulation.identities import Located
from kaicore.analysis.simulation.kubelets import KubeletAnswer, Kubelets
from kaicore.analysis.simulation.objects import is_read, read_world
from kaicore.analysis.simulation.outcome import Outcome, PodOutcome
from kaicore.analysis.simulation.run import simulate
from kaicore.analysis.simulation.world import World

__all__ = [
    "KubeletAnswer",
    "Kubelets",
    "Located",
    "Outcome",
    "PodOutcome",
    "World",
    "is_read",
    "read_world",
    "simulate",
]
