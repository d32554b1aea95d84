"""The package imports, and says its version once."""

import sndr


def test_version_is_a_release_number() -> None:
    assert [part.isdigit() for part in sndr.__version__.split(".")] == [True, True, True]
