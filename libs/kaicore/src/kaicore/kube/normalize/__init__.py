"""From the wire into the model: one module per family of kinds.

Each function raises `InvalidObject`, naming the object and the field, where an object has no name or makes no sense.
"""
