"""`sndr router check` over family aliases: bindings, siblings that cannot be told apart, gaps that can be hit."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sndr.cli.main import module_root, run
from sndr.router import routing_table
from tests.support.cli import ROOT, run_cli
from tests.support.contract_vectors import D26, D31, G26, M26, REFERENCE, S26, T
from tests.support.gateway import CREDENTIALS, gateway_process
from tests.support.live import run_verb, until
from tests.support.raw import Answer, ask, request
from tests.support.synthetic import synthetic_process
from tests.support.workload import SHORT_TOOL_CALL, body, holding, siblings

ALONE = {**REFERENCE, "routing_rules": []}
URLS = {"k1": "http://127.0.0.1:1/v1", "k4": "http://127.0.0.1:2/v1"}


def check(config: Path, *arguments: str) -> tuple[int, list[str], list[str]]:
    """Exit code, findings and notes; in this process, because there are many."""
    out, err = StringIO(), StringIO()
    with mock.patch.dict(os.environ, CREDENTIALS), redirect_stdout(out), redirect_stderr(err):
        code = run(module_root(), ["router", "check", "--config", os.fspath(config), *arguments], "sndr")
    assert bool(out.getvalue()) is (code == 0)
    lines = err.getvalue().splitlines()
    notes = [line.removeprefix("note: ") for line in lines if line.startswith("note: ")]
    return code, [line for line in lines if not line.startswith("note: ")], notes


def test_a_complete_file_is_valid_and_its_gaps_are_listed(tmp_path: Path) -> None:
    code, findings, notes = check(siblings(tmp_path, URLS))
    assert (code, findings) == (0, [])
    gaps = [note for note in notes if note.startswith("coverage gap")]
    assert [gap.split()[2] for gap in gaps] == [S26, T]
    assert f"served by {D26}, {M26}" in gaps[1]
    assert any("serve the name m1" in note for note in notes)
    assert check(siblings(tmp_path, URLS), "--json") == (0, [], notes)


def test_the_output_is_a_boot_file_with_the_same_meaning(tmp_path: Path) -> None:
    config = siblings(tmp_path, URLS)
    first = run_verb("check", "--config", config)
    (tmp_path / "again.toml").write_text(first.stdout)
    again = run_verb("check", "--config", tmp_path / "again.toml")
    assert again.stdout.splitlines()[1:] == first.stdout.splitlines()[1:]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"presets": {"k1": D26}}, f"router.family_routes: family {G26}: no tier runs the preset {M26} (rule "),
        ({"presets": {"k4": M26}}, f"no tier runs the preset {D26} (the family's default)"),
        ({"families": {"gemma": ("gone", "k1")}}, "the routing table has no such family"),
        (
            {"table": b"{", "routing_table": 'path = "table.json"\non_table_error = "refuse"'},
            "router.routing_table: routing table ",
        ),
    ],
)
def test_what_must_be_mended_is_exit_2_with_the_line(tmp_path: Path, given: Any, text: str) -> None:
    code, findings, _ = check(siblings(tmp_path, URLS, **given))
    assert code == 2
    assert len(findings) == 1
    assert findings[0].startswith(f"{tmp_path}/gateway.toml:")
    assert text in findings[0]


def test_siblings_that_are_one_server_are_refused(tmp_path: Path) -> None:
    code, findings, _ = check(siblings(tmp_path, dict.fromkeys(URLS, "http://127.0.0.1:1/v1")))
    assert code == 2
    assert "k1 and k4 are one server with one model" in findings[0]


@pytest.mark.parametrize("table", [b"{", {**REFERENCE, "schema_version": 7}, None])
def test_a_table_that_is_not_used_is_one_note(tmp_path: Path, table: Any) -> None:
    code, findings, notes = check(siblings(tmp_path, URLS, table=table))
    assert (code, findings) == (0, [])
    assert len([note for note in notes if note.startswith("routing table")]) == 1


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('[router.family_routes]\nx = "k1"', "must be a table with the keys family and natural"),
        ('[router.family_routes.x]\nfamily = "f"', "the key natural is missing"),
        ('[router.family_routes.x]\nfamily = "f"\nnatural = "k9"', "there is no tier k9"),
        (
            '[router.family_routes.x]\nfamily = "f"\nnatural = "k1"\non_unready = "x"',
            "must be one of refuse, family_def",
        ),
        ('[router.family_routes.x]\nfamily = "f"\nnatural = "k1"\nnaturel = "k1"', "unknown key; did you mean natural"),
        ('[router.family_routes."only.k1"]\nfamily = "f"\nnatural = "k1"', "the alias only.k1 is defined twice"),
    ],
)
def test_a_family_route_that_is_none_is_named_with_its_line(tmp_path: Path, lines: str, text: str) -> None:
    config = siblings(tmp_path, URLS, families={})
    config.write_text(config.read_text() + lines + "\n")
    code, findings, _ = check(config)
    assert code == 2
    assert any(text in finding for finding in findings), findings


@pytest.mark.parametrize(
    "lines", ["", 'path = "a"\ncommand = ["b"]', "command = []", 'path = "a"\non_table_error = "x"', "timeout_s = 0"]
)
def test_a_table_source_needs_exactly_one_of_path_and_command(tmp_path: Path, lines: str) -> None:
    code, findings, _ = check(siblings(tmp_path, URLS, routing_table=lines))
    assert code == 2
    assert all("router.routing_table" in finding for finding in findings)


def test_limits_that_siblings_do_not_share_are_told(tmp_path: Path) -> None:
    tier = {"k1": "context_limit = 8192", "k4": "context_limit = 4096\nmax_output_tokens = 100"}
    _, _, notes = check(siblings(tmp_path, URLS, tier=tier))
    told = [note.partition("differ in ")[2] for note in notes if "differ in " in note]
    assert [(note.split(":")[0], note.split(" when ")[0].split(" be ")[1]) for note in told] == [
        ("context_limit", "refused"),
        ("max_output_tokens", "cut shorter"),
    ]


def test_a_natural_tier_of_another_family_is_told(tmp_path: Path) -> None:
    urls, presets = {**URLS, "d": "http://127.0.0.1:3/v1"}, {"k1": D26, "k4": M26, "d": D31}
    _, _, notes = check(siblings(tmp_path, urls, presets=presets, families={"gemma": (G26, "d")}))
    assert f"alias gemma: its natural tier d runs {D31}, a preset of another family" in notes


@contextmanager
def vllm(metrics: str | None, *, length: int | None = 1000, model: str = "m1", drips: bool = False) -> Iterator[str]:
    """The two paths of a vLLM server that a check reads; `drips` ends no answer and never falls silent."""
    gone = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            entry = {"id": model, "max_model_len": length}
            texts = {"/v1/models": json.dumps({"object": "list", "data": [entry]}), "/metrics": metrics}
            text = texts.get(self.path)
            data = (text or "").encode()
            self.send_response(404 if text is None else 200)
            if drips:
                self.end_headers()
                with suppress(OSError):
                    while not gone.wait(0.05):
                        self.wfile.write(b" ")
                return
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        gone.set()
        server.shutdown()
        server.server_close()
        thread.join(10)


FLAT = 'vllm:num_requests_running{model_name="m1"} 0.0\n'


def deep(depth: int) -> str:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    return FLAT + "".join(f'{name}{{engine="0",model_name="m1",position="{n}"}} 0.0\n' for n in range(depth))


@pytest.mark.parametrize(
    ("one", "four", "findings", "notes"),
    [
        ({"metrics": FLAT}, {"metrics": deep(4)}, [], ["speculation K=1", "speculation K=4"]),
        ({"metrics": FLAT}, {"metrics": deep(3)}, ["speculates with K=3, its preset"], []),
        ({"metrics": FLAT}, {"metrics": FLAT}, ["differ in nothing", "speculates with K=1, its preset"], []),
        ({"metrics": None}, {"metrics": None}, [], ["do not reveal a difference"]),
        ({"metrics": None}, {"metrics": None, "length": 500}, [], ["context 500, speculation not revealed"]),
    ],
)
def test_servers_are_asked_what_tells_them_apart(
    tmp_path: Path, one: Any, four: Any, findings: Sequence[str], notes: Sequence[str]
) -> None:
    with ExitStack() as stack:
        urls = {"k1": stack.enter_context(vllm(**one)), "k4": stack.enter_context(vllm(**four))}
        code, found, said = check(siblings(tmp_path, urls), "--probe")
    assert code == (2 if findings else 0), found
    assert len(found) == len(findings)
    for text, line in zip(findings, found, strict=True):
        assert text in line
    for text in notes:
        assert any(text in line for line in said), said


def test_a_server_that_never_ends_its_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_table, "ANSWER_S", 0.3)
    with vllm(None, drips=True) as url:
        code, _, notes = check(siblings(tmp_path, {"k1": url}, presets={"k1": D26}, table=ALONE), "--probe")
    assert (code, "tier k1: no answer" in notes) == (0, True)


def test_a_server_that_does_not_answer_is_a_note(tmp_path: Path) -> None:
    code, _, notes = check(siblings(tmp_path, URLS), "--probe")
    assert code == 0
    assert {"tier k1: no answer", "tier k4: no answer"} <= set(notes)
    assert G26 in "".join(notes)


PAGE = (ROOT / "docs" / "workload-routing.md").read_text("utf-8")


def test_the_page_holds_for_a_reader_who_follows_it(tmp_path: Path) -> None:
    """Its table, its synthetic siblings, its boot file; check, serve, coverage; only the ports are others."""
    emitted = run_cli("routing-table", "--validate", "--out", str(tmp_path / "table.json"))
    assert emitted.returncode == 0, emitted
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    with ExitStack() as stack:
        servers = []
        for port, more in re.findall(r"synthetic-serve --listen 127\.0\.0\.1:(\d+) (.*) &", PAGE):
            servers.append(stack.enter_context(synthetic_process(*more.split())))
            text = text.replace(f"http://127.0.0.1:{port}/v1", servers[-1].base_url)
        config = tmp_path / "router.toml"
        config.write_text(text.replace("[server]\n", '[server]\nlisten = ["127.0.0.1:0"]\n'))
        checked = run_verb("check", "--config", config, "--probe")
        assert checked.returncode == 0, checked
        assert "speculation K=1" in checked.stderr
        assert "speculation K=4" in checked.stderr
        url = stack.enter_context(gateway_process(config)).url
        with holding(url, servers[0], 1):
            answer = ask(url, request(body(**SHORT_TOOL_CALL)))
        assert (answer.status, answer.headers["x-sndr-tier"]) == (200, "gemma-k4"), answer

        def trace() -> Answer:
            return ask(url, request(method="GET", path=f"/v1/requests/{answer.headers['x-request-id']}"))

        until(lambda: trace().json.get("outcome"))
        assert trace().json["routing"]["preset_key"] == M26
        shown = run_verb("status", "--config", config, "--url", url)
        assert " in force\n" in shown.stdout, shown
        covered = run_verb("coverage", "--config", config)
        assert (covered.returncode, M26 in covered.stdout) == (0, True), covered
