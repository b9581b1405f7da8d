"""Printed answers: tables, JSON, progress."""
