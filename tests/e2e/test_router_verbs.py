"""The verbs of `sndr router` against real processes: serve, check, status, models, quiesce, drain, readmit."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import environment, refused, run_cli
from tests.support.gateway import CREDENTIALS, Gateway, gateway_process
from tests.support.synthetic import Synthetic, synthetic_thread

ENV = environment(**CREDENTIALS)


def boot(directory: Path, server: Synthetic, extra: str = "") -> Path:
    path = directory / "router.toml"
    path.write_text(f"""
[server]
listen = ["127.0.0.1:0"]
auth_env = "CLIENT_KEY"
operator_auth_env = "OPERATOR_KEY"
admission_state_path = "admission.json"
{extra}
[router]
probe_interval_s = 0.05
probe_timeout_s = 10
[[router.tiers]]
id = "primary"
base_url = "{server.base_url}"
model = "m1"
health_path = "/health"
[router.model_routes]
llm.primary = "primary"
""")
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[Synthetic]:
    with synthetic_thread() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: Synthetic, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all tests that leave it as they found it."""
    with gateway_process(boot(tmp_path_factory.mktemp("gateway"), server)) as running:
        assert running.url
        yield running


def online(gateway: Gateway, *words: str) -> subprocess.CompletedProcess[str]:
    verb, *rest = words
    return run_cli("router", verb, "--config", str(gateway.config), "--url", gateway.url, *rest, env=ENV)


def chat(gateway: Gateway) -> int:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
    try:
        body = json.dumps({"model": "llm.primary", "messages": []})
        connection.request(
            "POST", "/v1/chat/completions", body, {"authorization": f"Bearer {CREDENTIALS['CLIENT_KEY']}"}
        )
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def test_status_for_people_and_as_the_api_answers(gateway: Gateway) -> None:
    text = online(gateway, "status")
    assert text.returncode == 0
    assert "\x1b" not in text.stdout
    assert "primary  yes    yes        0" in text.stdout
    assert "llm.primary  primary" in text.stdout
    raw = online(gateway, "status", "--json")
    status = json.loads(raw.stdout)
    assert raw.stdout == json.dumps(status, separators=(",", ":"))
    assert (status["object"], status["state"], status["listen"]) == (
        "router.status",
        "serving",
        [gateway.url.removeprefix("http://")],
    )


def test_models(gateway: Gateway) -> None:
    assert "llm.primary" in online(gateway, "models").stdout
    raw = online(gateway, "models", "--json")
    assert [entry["id"] for entry in json.loads(raw.stdout)["data"]] == ["llm.primary"]


def test_quiesce_drain_readmit_with_a_request_running(gateway: Gateway, server: Synthetic) -> None:
    server.set(next=[{"stall_after": 0}])
    statuses: list[int] = []
    client = threading.Thread(target=lambda: statuses.append(chat(gateway)))
    client.start()
    server.wait(in_flight=1)
    assert online(gateway, "drain", "primary").returncode == 3
    said = online(gateway, "quiesce", "primary", "--reason", "new weights")
    assert (said.returncode, said.stdout) == (0, "primary takes no new requests; 1 request is still running\n")
    assert chat(gateway) == 503
    late = online(gateway, "drain", "primary", "--timeout", "1")
    assert (late.returncode, "left running" in late.stdout) == (1, True)
    assert "no: quiesced (new weights)" in online(gateway, "status").stdout
    server.release()
    client.join(30)
    assert statuses == [200]
    assert online(gateway, "drain", "primary").stdout == "primary is idle\n"
    server.set(models=["m2", "m\xfcd"])
    line = refused(online(gateway, "readmit", "primary"), 3)[0]
    assert line.startswith("sndr router: readmit_refused:")
    assert line.endswith("(identity_mismatch)")
    gateway.wait_event(lambda line: line["event"] == "tier_unready" and line["reason"] == "identity_mismatch")
    assert "no: identity_mismatch (serves m2, m\\xfcd)" in online(gateway, "status").stdout
    server.set(models=["m1"])
    assert online(gateway, "readmit", "primary").stdout == "primary is readmitted (identity_passed)\n"
    assert chat(gateway) == 200


def test_quiescence_survives_a_restart(server: Synthetic, tmp_path: Path) -> None:
    config = boot(tmp_path, server)
    with gateway_process(config) as first:
        assert online(first, "quiesce", "primary", "--reason", "later").returncode == 0
        first.process.kill()
    with gateway_process(config) as second:
        assert "no: quiesced (later)" in online(second, "status").stdout
        assert chat(second) == 503
        assert second.stop() == 0


def test_refusals_have_their_exit_codes(gateway: Gateway) -> None:
    assert "not_found" in refused(online(gateway, "quiesce", "none"), 2)[0]
    env = environment(WRONG="wrong-key-0123456789")
    wrong = run_cli("router", "status", "--url", gateway.url, "--auth-env", "WRONG", env=env)
    assert refused(wrong, 2)[0].endswith("invalid_api_key: a valid credential is required; the value of WRONG was sent")
    none = run_cli("router", "status", "--config", str(gateway.config), "--url", gateway.url)
    assert refused(none, 2)[0].endswith("is required; no credential was sent: set OPERATOR_KEY")
    client_only = environment(CLIENT_KEY=CREDENTIALS["CLIENT_KEY"])
    fell_back = run_cli(
        "router", "quiesce", "primary", "--config", str(gateway.config), "--url", gateway.url, env=client_only
    )
    assert refused(fell_back, 2)[0].endswith("is required; the value of CLIENT_KEY was sent: set OPERATOR_KEY")
    unset = run_cli("router", "status", "--url", gateway.url, "--auth-env", "UNSET_NAME")
    assert "credential_missing" in refused(unset, 2)[0]
    as_client = environment(CLIENT=CREDENTIALS["CLIENT_KEY"])
    client = run_cli("router", "readmit", "primary", "--url", gateway.url, "--auth-env", "CLIENT", env=as_client)
    assert "operator_required" in refused(client, 2)[0]
    refused(run_cli("router", "drain", "primary", "--timeout", "0"), 2)


def test_an_address_without_a_gateway_says_that_nothing_was_sent() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        line = refused(run_cli("router", "status", "--url", url), 5)[0]
    assert "unreachable" in line
    assert "nothing was sent" in line


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://u:p@127.0.0.1:1", "http://127.0.0.1:1/v1", "http://8.8.8.8:80", "x"]
)
def test_a_credential_travels_to_safe_addresses_only(url: str) -> None:
    assert "invalid_url" in refused(run_cli("router", "status", "--url", url), 2)[0]


def test_no_proxy_is_used(gateway: Gateway) -> None:
    env = {
        **ENV,
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
    }
    assert run_cli("router", "status", "--config", str(gateway.config), "--url", gateway.url, env=env).returncode == 0


def test_check_reports_every_fault_and_exits_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        '[server]\nlissten = 1\n[[router.tiers]]\nid = "a"\nbase_url = "http://u:hunter2@h/v1"\nmodel = "m"\n'
    )
    lines = refused(run_cli("router", "check", "--config", str(path)), 2, lines=3)
    assert lines[0] == f"{path}:2: server.lissten: unknown key; did you mean listen?"
    assert lines[1].startswith(f"{path}:3: router.tiers[0]: no route names the tier a")
    assert not any("hunter2" in line for line in lines)
    served = refused(run_cli("router", "serve", "--config", str(path)), 2, lines=3)
    assert served == lines


def test_check_prints_a_file_that_means_the_same(server: Synthetic, tmp_path: Path) -> None:
    path = boot(tmp_path, server)
    done = run_cli("router", "check", "--config", str(path), env=ENV)
    assert done.returncode == 0
    again = tmp_path / "again.toml"
    again.write_text(done.stdout)
    one, two = (
        json.loads(run_cli("router", "check", "--json", "--config", str(name), env=ENV).stdout)
        for name in (path, again)
    )
    assert one == two
    assert "server.usage_path is not set" in done.stderr


def test_check_needs_the_named_variables_unless_told_otherwise(server: Synthetic, tmp_path: Path) -> None:
    path = boot(tmp_path, server)
    assert "CLIENT_KEY is not set" in refused(run_cli("router", "check", "--config", str(path)), 2, lines=2)[0]
    assert run_cli("router", "check", "--without-env", "--config", str(path)).returncode == 0


def test_serve_refuses_an_address_in_use(gateway: Gateway) -> None:
    taken = gateway.url.removeprefix("http://")
    done = run_cli("router", "serve", "--config", str(gateway.config), "--listen", taken, env=ENV)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    hint = "Address already in use: stop what listens there, or choose another address"
    assert line == f"sndr router: listen_failed: cannot listen on {taken}: {hint}"
    synthetic = run_cli("router", "synthetic-serve", "--listen", taken)
    assert refused(synthetic, 2) == [line]


def test_serve_names_the_folder_that_is_missing(server: Synthetic, tmp_path: Path) -> None:
    config = boot(tmp_path, server, 'usage_path = "nowhere/usage.db"')
    line = refused(run_cli("router", "serve", "--config", str(config), env=ENV), 2)[0]
    folder = tmp_path / "nowhere"
    assert line == f"sndr router: usage_custody: {folder}: there is no such folder; make it with mode 0700"


def test_serve_refuses_an_admission_file_that_leaves_doubt(server: Synthetic, tmp_path: Path) -> None:
    config = boot(tmp_path, server)
    (tmp_path / "admission.json").write_text("{")
    done = run_cli("router", "serve", "--config", str(config), env=ENV)
    assert done.returncode == 2
    assert "admission_state_invalid" in done.stderr
    assert "listening" not in done.stderr


def test_metrics_over_http(gateway: Gateway) -> None:
    assert chat(gateway) == 200
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
    try:
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {CREDENTIALS['OPERATOR_KEY']}"})
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    completed = re.search(
        r'sndr_requests_total\{alias="llm.primary",tier="primary",.*outcome="completed"\} (\d+)', text
    )
    assert completed is not None
    assert int(completed[1]) >= 1
    assert 'sndr_tier_ready{tier="primary"} 1.0\n' in text


def test_the_ledger_is_behind_status_trace_and_metrics(server: Synthetic, tmp_path: Path) -> None:
    with gateway_process(boot(tmp_path, server, 'usage_path = "usage.db"')) as gateway:
        assert chat(gateway) == 200
        request = gateway.wait_event(lambda line: line["event"] == "request")
        headers = {"authorization": f"Bearer {CREDENTIALS['OPERATOR_KEY']}"}
        connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
        try:
            connection.request("GET", f"/v1/requests/{request['id']}", headers=headers)
            trace = json.loads(connection.getresponse().read())
            connection.request("POST", "/v1/admin/usage/reconcile", b'{"confirm":true}', headers)
            reconciled = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert (trace["object"], trace["outcome"], trace["tier"]) == ("request", "completed", "primary")
        assert (reconciled["reconciled"], reconciled["left"]) == (0, 0)
        assert "ledger: 1 rows, 0 unresolved" in online(gateway, "status").stdout
        second = run_cli("router", "serve", "--config", str(gateway.config), env=ENV)
        assert (second.returncode, "usage_lock_held" in second.stderr) == (3, True)
        assert gateway.stop() == 0
