"""The tests; shared code lives in tests.support."""
