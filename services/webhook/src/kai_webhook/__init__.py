"""Admission: topologies and topology constraints that cannot be meant are refused where they are written."""
