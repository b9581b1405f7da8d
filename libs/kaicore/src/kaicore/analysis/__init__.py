"""Answers to questions about a cluster, from the rules and the ledger: simulation beforehand, inquiry afterwards."""
