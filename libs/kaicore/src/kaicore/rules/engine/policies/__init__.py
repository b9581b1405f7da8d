"""Policies of an operator in a cycle: their settings, the book of their code, and their guarded evaluation."""
