"""The catalog that comes with the package is whole."""

from sndr.cli.table.catalog import load_catalog
from sndr.cli.table.compose import check_evidence, compose_all
from sndr.cli.table.validate import resolves_in


def test_it_loads_and_composes_with_its_archive() -> None:
    catalog = load_catalog(archive=True)
    assert (len(catalog.presets), len(catalog.archived)) == (15, 11)
    assert len(catalog.models) == 12
    assert len(catalog.hardware) == 3
    assert len(compose_all(catalog)) == 15
    assert check_evidence(catalog) == []


def test_the_rule_cites_a_record_of_the_catalog_with_a_computed_gain() -> None:
    catalog = load_catalog()
    (rule,) = catalog.rules
    record = catalog.evidence[rule.evidence]
    cited = record.cite(rule.preset_key)
    assert "K=4 235.9 vs K=1 209.1 at concurrency 8, mode A (+12.8 %)" in cited
    assert record.path in cited
    assert cited.isascii()
    assert resolves_in(catalog.root, record.path)
    assert not resolves_in(catalog.root, "presets/evidence/other.yaml")
    assert not resolves_in(catalog.root, "presets/../pyproject.toml")
