"""The account of GPU-hours: what was held, by whom, by right or borrowed, and what became of it."""
