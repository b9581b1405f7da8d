"""Changes that make a waiting pod start. Each is made to a copy of the state and tried there by running the engine."""
