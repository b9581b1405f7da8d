"""Why pods wait: what cycles record and what people read."""
