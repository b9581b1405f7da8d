"""Cycles over plain Kubernetes objects, without a server: what `kai simulate` runs."""

from kaicore.simulation.identities import Located
from kaicore.simulation.kubelets import Answer, Kubelets
from kaicore.simulation.objects import World, is_read, read_world
from kaicore.simulation.outcome import Outcome, PodOutcome
from kaicore.simulation.run import simulate

__all__ = ["Answer", "Kubelets", "Located", "Outcome", "PodOutcome", "World", "is_read", "read_world", "simulate"]
