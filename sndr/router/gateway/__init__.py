"""Data plane: from an accepted request to its last delivered byte."""
