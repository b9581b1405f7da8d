"""Authentication and authorization: tokens, RBAC, and the reviews that answer questions about both."""
