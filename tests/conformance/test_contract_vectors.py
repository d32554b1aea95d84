"""The library, and the naive second implementation, on every published conformance vector."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest

from sndr.cli.table.build import build_table
from sndr.cli.table.catalog import load_catalog
from sndr.contract import check_structure, decide, explain, load
from sndr.resources import presets_dir
from tests.support import contract_vectors, naive_contract

FOLDER = os.path.join(os.path.dirname(__file__), "..", "..", "schemas", "conformance")
FILES = ("decisions.json", "matrix.json", "rules.json", "families.json")


def read(name: str) -> Any:
    with open(os.path.join(FOLDER, name), encoding="ascii") as file:
        return json.load(file)


def given(vector: dict[str, Any]) -> dict[str, Any]:
    return {name: vector[name] for name in ("in_flight", "input_tokens", "headers", "dialect", "family")}


@pytest.mark.parametrize("name", FILES)
def test_the_library_decides_every_vector(name: str) -> None:
    document = read(name)
    tables = {key: load(table) for key, table in document["tables"].items()}
    wrong = []
    for vector in document["vectors"]:
        table = tables[vector["table"]]
        got = decide(table, vector["request"], **given(vector)).record()
        if got != vector["expect"]:
            wrong.append((vector["name"], got, vector["expect"]))
        assert explain(table, vector["request"], **given(vector)).decision.record() == got, vector["name"]
    assert not wrong


@pytest.mark.parametrize("name", FILES)
def test_the_naive_implementation_decides_every_vector(name: str) -> None:
    document = read(name)
    for vector in document["vectors"]:
        got = naive_contract.decide(document["tables"][vector["table"]], vector["request"], **given(vector))
        assert got == vector["expect"], vector["name"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node: the port to JavaScript cannot run")
def test_a_port_from_the_documentation_decides_every_vector() -> None:
    port = os.path.join(os.path.dirname(__file__), "port.mjs")
    done = subprocess.run(["node", port, FOLDER], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_dropped_rules_of_the_rule_tables() -> None:
    document = read("rules.json")
    for name, table in document["tables"].items():
        loaded = load(table)
        kept = {rule.position for rule in loaded.routing_rules}
        dropped = [position for position in range(len(table["routing_rules"])) if position not in kept]
        assert dropped == document["dropped_rules"][name], name
        for position in dropped:
            assert sum(w.startswith(f"/routing_rules/{position}: dropped") for w in loaded.warnings) == 1, name


def test_loading_cases() -> None:
    for case in read("loading.json")["cases"]:
        table = load(case["text"])
        assert (table.degraded is not None) == case["degraded"], case["name"]
        if case["degraded"]:
            assert len(table.warnings) == 1, case["name"]
        kept = {rule.position for rule in table.routing_rules}
        assert not kept & set(case["dropped_rules"]), case["name"]
        assert decide(table, case["request"], in_flight=case["in_flight"]).record() == case["expect"], case["name"]
        assert load(case["text"].encode()).degraded == table.degraded


@pytest.mark.parametrize("name", ["decisions.json", "matrix.json"])
def test_the_shipped_table_decides_the_vectors_of_the_reference_table(name: str) -> None:
    shipped = load(build_table(load_catalog(presets_dir())))
    assert shipped.warnings == ()
    for vector in read(name)["vectors"]:
        got = decide(shipped, vector["request"], **given(vector)).record()
        assert got == vector["expect"], vector["name"]


def test_there_are_enough_vectors_and_their_names_are_unique() -> None:
    names = [vector["name"] for name in FILES for vector in read(name)["vectors"]]
    assert len(names) >= 100
    assert len(set(names)) == len(names)
    assert len(read("decisions.json")["vectors"]) >= 100  # by hand


def test_every_outcome_axis_value_and_hint_place_is_covered() -> None:
    vectors = [vector for name in FILES for vector in read(name)["vectors"]]
    for member, values in {
        "workload_class": {"tool_call", "structured_json", "summarization", "code_gen", "free_chat"},
        "expected_output_length": {"short", "medium", "long"},
        "concurrency_mode": {"single_stream", "multi_conc"},
        "outcome": {"rule", "family_default", "natural"},
    }.items():
        assert {vector["expect"][member] for vector in vectors} == values
    assert {vector["dialect"] for vector in vectors} == {"chat", "responses", "messages"}


def test_the_reference_table_has_the_shape_of_v1() -> None:
    assert check_structure(contract_vectors.REFERENCE) == []


def test_the_files_are_what_their_source_writes() -> None:
    """Run `python -m tests.support.contract_vectors` after a change of the source."""
    documents = contract_vectors.documents()
    assert {*documents, "README.md"} == set(os.listdir(FOLDER))
    for name, document in documents.items():
        with open(os.path.join(FOLDER, name), encoding="ascii") as file:
            assert file.read() == contract_vectors.encode(document), name
