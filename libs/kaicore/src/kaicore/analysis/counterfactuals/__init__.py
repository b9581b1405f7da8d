"""What would make a pod start: changes that are made to a copy of the state, and tried there by running the engine."""
