"""The kinds: where each is served, how its objects become facts, and those that the operator makes (`operands`)."""
