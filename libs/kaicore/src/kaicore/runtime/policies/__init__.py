"""Policies at the edge: loaded from files and packages, and run under guard."""
