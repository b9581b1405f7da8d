"""Changes before they are made: for a waiting pod to start, to drain nodes, to reserve them.

Each is made to a copy of the state and tried there by running the engine.
"""
