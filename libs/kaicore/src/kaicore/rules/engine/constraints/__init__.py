"""Constraints and preferences of a class of pods about nodes."""
