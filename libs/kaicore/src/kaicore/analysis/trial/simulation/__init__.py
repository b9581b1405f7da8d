"""Cycles over plain Kubernetes objects, without a server, for `kai simulate`."""

from kaicore.analysis.trial.simulation.kubelets import KubeletAnswer, Kubelets
from kaicore.analysis.trial.simulation.manifest_text import Located
from kaicore.analysis.trial.simulation.objects import is_read, read_world
from kaicore.analysis.trial.simulation.outcome import Outcome, PodOutcome
from kaicore.analysis.trial.simulation.run import simulate
from kaicore.analysis.trial.simulation.world import World

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
