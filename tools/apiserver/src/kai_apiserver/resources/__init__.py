"""Resource types: built-in and custom ones, their discovery and their fields."""
