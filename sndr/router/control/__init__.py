"""Control plane: the single writer and its management API."""
