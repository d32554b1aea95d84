"""What a receipt keeps of what servers say."""

from __future__ import annotations

from sndr.router.core.receipt import OBSERVED_BYTES_MAX, OBSERVED_MAX, kept_names
from sndr.router.wire.record import canonical


def test_few_names_are_all_kept_in_their_order() -> None:
    assert kept_names(("m2", "a", "é")) == ("m2", "a", "é")


def test_neither_many_names_nor_long_ones_make_a_receipt_too_large() -> None:
    assert kept_names(f"m{number}" for number in range(40)) == tuple(f"m{number}" for number in range(OBSERVED_MAX))
    for character in ("a", '"', "\\", "\U0001f600"):
        long = [f"{number}{character * 2000}" for number in range(OBSERVED_MAX)]
        kept = kept_names([*long, "short"])
        assert len(canonical(list(kept))) <= OBSERVED_BYTES_MAX + 2
        assert "short" in kept
