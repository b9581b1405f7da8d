"""The controllers without which batch work does not move: Jobs, garbage, namespaces, budgets, volumes, node health."""
