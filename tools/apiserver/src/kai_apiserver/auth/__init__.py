"""Who asks, and whether they may: tokens, RBAC, and the reviews that answer both questions."""
