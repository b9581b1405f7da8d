"""Constraints by claims of devices and volumes: the demands of pods, the supplies of nodes, and the rules."""
