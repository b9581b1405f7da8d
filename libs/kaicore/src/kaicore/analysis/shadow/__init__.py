"""What a shadow's decisions come to, beside what the other scheduler did and what became of it."""
