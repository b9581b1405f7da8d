"""From the wire into the model: one module per family of kinds."""
