"""Damaged files end in a value or in findings, with both parsers alike."""

from tests.support.catalog_fuzz import fuzz


def test_two_thousand_damaged_files() -> None:
    done, good = fuzz(20260523, runs=2000)
    assert done == 2000
    assert 0 < good < 2000
