"""Which nodes a class of pods may go to, and which of them it would rather have."""
