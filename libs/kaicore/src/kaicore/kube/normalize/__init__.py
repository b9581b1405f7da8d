"""From the wire into the model: one module per family of kinds; and shares of GPUs back into objects.

Each function raises `InvalidObject`, naming the object and the field, where an object has no name or makes no sense.
"""
