"""A managed promotion from outside: the script of the documentation, and everything that evidence may lack."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS
from tests.support.live import Liar, Live, Operator, RefusedError, live, refused, run_verb
from tests.support.synthetic import Synthetic

SCRIPT = ROOT / "docs" / "examples" / "promote.py"


def moment(seconds: float = 0) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"


def container(**changes: object) -> dict[str, Any]:
    return {
        "container_id": "0123456789ab", "image_id": f"sha256:{'0' * 64}", "started_at": moment(-30),
        "observed_at": moment(), "observer": "ops", "served_model": "m2", **changes,
    }  # fmt: skip


def evidence(tiers: str = "a", /, **changes: object) -> dict[str, Any]:
    campaign = {"id": "night-7", "sha256": "ab" * 32}
    return {"campaign": campaign, "containers": {tier: container(**changes) for tier in tiers}}


def prepare(operator: Operator, plane_url: str, **more: object) -> Any:
    return operator.change(
        op="tier_replacement", tiers={"a": {"base_url": plane_url, "model": "m2"}}, mode="prepare", managed=True, **more
    )


def posts(server: Synthetic) -> int:
    return sum(entry["method"] == "POST" for entry in server.log())


CLAIMS = {
    "authorized",
    "authorised",
    "safe_to_unload",
    "qualified",
    "promoted",
    "verified_weights",
    "weights",
    "weights_verified",
}


def claims(document: object) -> set[str]:
    """Members that would claim what a gateway cannot know or decide."""
    if isinstance(document, Mapping):
        return (CLAIMS & document.keys()).union(*map(claims, document.values()))
    if isinstance(document, list):
        return set().union(*map(claims, document))
    return set()


@pytest.mark.scenario("S4")
@pytest.mark.req("R103", "R104", "R105", "R106", "R107", "R37")
def test_the_script_of_the_page_promotes_a_model(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (_, operator, user):
        plan = tmp_path / "plan.json"
        plan.write_text('{"why": "because"}')
        plane.servers["m2"].set(health=503, models_status=503)  # nothing is loaded there yet
        marks = tmp_path / "marks"
        load = (
            "import urllib.request as r, json; r.urlopen(r.Request("
            f"'http://{plane.servers['m2'].address}/synthetic/set',"
            "data=json.dumps({'health': 200, 'models_status': 200}).encode(), method='POST'))"
        )
        words = [
            sys.executable, str(SCRIPT), "--url", operator.url, "--tier", "a", "--set", "model=m2",
            "--set", f"base_url={plane.servers['m2'].base_url}", "--campaign", "night-7", "--campaign-file", str(plan),
            "--unload", f"echo unload >> {shlex.quote(str(marks))}",
            "--load", shlex.join([sys.executable, "-c", load]),
            "--observe", shlex.join(["echo", json.dumps({k: v for k, v in container().items() if k != "observed_at"})]),
        ]  # fmt: skip
        env = environment(SNDR_ROUTER_OPERATOR_TOKEN=CREDENTIALS["OPERATOR_KEY"], PYTHONPATH=str(ROOT))
        with user.stream("x", tokens=10, delay_ms=20) as inside:
            process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert inside.read().decode().rstrip().endswith("[DONE]")
            out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), out
        assert marks.read_text() == "unload\n"
        receipt = json.loads(out.splitlines()[-1])
        assert (receipt["state"], receipt["managed"], receipt["authorizes"]) == ("completed", True, [])
        assert (receipt["proves"], receipt["evidence"]["trust"]) == ("advertised_name", "operator_asserted")
        assert receipt["streams"]["cut"] == 0
        assert [event["code"] for event in receipt["events"]].index("committed") > 0
        assert claims(receipt) == set()
        assert claims(operator.view()) == set()
        assert user.ask("x").json()["model"] == "m2"
        steps = [line.split(" ")[1].rstrip(":") for line in out.splitlines()[:-1]]
        order = ["prepared", "unload", "load", "observed", "done"]
        assert [step for step in steps if step in order] == order

        # Nothing was loaded: it stops held, says what may be done, and does none of it.
        plane.servers["a"].set(health=503)
        words[words.index("model=m2")] = "model=m1"
        words[words.index(f"base_url={plane.servers['m2'].base_url}")] = f"base_url={plane.servers['a'].base_url}"
        words[words.index("--load") + 1] = "false"
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert "stopped: CalledProcessError" in done.stderr
        assert "state held, held ['a'], next ['resume', 'cancel']" in done.stderr
        assert operator.view()["route_revision"] == 2
        assert CREDENTIALS["OPERATOR_KEY"] not in out + err + done.stdout + done.stderr


def script(plane: Live, url: str, plan: Path, **commands: str) -> list[str]:
    """The words that promote tier `a` to m2; `commands` replace those of the owner."""
    about = json.dumps({key: value for key, value in container().items() if key != "observed_at"})
    words = {"unload": "true", "load": "true", "observe": shlex.join(["echo", about]), **commands}
    return [
        sys.executable, str(SCRIPT), "--url", url, "--tier", "a", "--set", "model=m2",
        "--set", f"base_url={plane.servers['m2'].base_url}", "--campaign", "night-7", "--campaign-file", str(plan),
        *(word for step, command in words.items() for word in (f"--{step}", command)),
    ]  # fmt: skip


def ran(words: list[str]) -> subprocess.CompletedProcess[str]:
    env = environment(SNDR_ROUTER_OPERATOR_TOKEN=CREDENTIALS["OPERATOR_KEY"], PYTHONPATH=str(ROOT))
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.scenario("S4", "S8")
@pytest.mark.req("R103", "R104", "R105", "R61", "R77")
def test_a_script_that_was_killed_at_any_step_is_gone_on_with(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with live(tmp_path, spare=["m2"]) as plane:
        for step in ("unload", "load", "observe"):
            with plane.serving() as (gateway, operator, user):
                assert user.ask("x").json()["model"] == "m1"
                killed = script(plane, operator.url, plan, **{step: "kill -9 $PPID"})
                assert ran(killed).returncode == -9
                again = ran(script(plane, operator.url, plan))
                assert (again.returncode, "transaction_in_progress" in again.stderr) == (1, True), again.stderr
                assert "state held, held ['a'], next ['resume', 'cancel']" in again.stderr
                other = script(plane, operator.url, plan)
                other[other.index("model=m2")] = "model=m3"
                assert "no held change of this tier" in ran([*other, "--go-on"]).stderr
                assert operator.view()["state"] == "held"
                gateway.process.kill()  # and the gateway with it
                gateway.process.wait(30)
            with plane.serving() as (_, operator, user):
                assert operator.view()["attention"] == "interrupted"
                assert user.ask("x").json()["error"]["code"] == "held"
                done = ran([*script(plane, operator.url, plan), "--go-on"])
                assert done.returncode == 0, done.stderr
                receipt = json.loads(done.stdout.splitlines()[-1])
                assert (receipt["state"], receipt["authorizes"]) == ("completed", [])
                assert user.ask("x").json()["model"] == "m2"
                again = ran([*script(plane, operator.url, plan), "--go-on"])
                assert (again.returncode, "no held change" in again.stderr) == (1, True)
                assert operator.change(op="rollback")["state"] == "completed"


@pytest.mark.req("R103", "R104")
def test_the_script_finds_what_it_lacks_before_it_holds_anything(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (gateway, operator, _):
        assert ran(script(plane, operator.url, plan)).returncode == 2
        assert ran(script(plane, "ftp://nowhere", plan)).returncode == 2
        assert operator.view()["transaction"] is None
        plan.write_text("{}")
        for observer in ("echo []", "echo '{}'", "echo nonsense", "echo '{\"container_id\": 5}'", "false"):
            done = ran(script(plane, operator.url, plan, observe=observer))
            assert (done.returncode, done.stderr.startswith("stopped: ")) == (1, True), done.stderr
            assert "state held, held ['a'], next ['resume', 'cancel']" in done.stderr
            operator.change(op="cancel", transaction_id=operator.view()["transaction"]["id"])
        assert operator.view()["route_revision"] == 1
        done = ran(script(plane, operator.url, plan, load=f"kill -9 {gateway.process.pid}"))
        assert (done.returncode, "how things stand is unknown" in done.stderr) == (1, True), done.stderr


@pytest.mark.scenario("S4")
@pytest.mark.req("R103", "R104", "R105", "R106", "R107")
def test_evidence_is_complete_fresh_of_this_model_and_new(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (_, operator, user):
        new = plane.servers["m2"].base_url
        tiers = {"a": {"base_url": new, "model": "m2"}}
        refused("invalid_change", 400, operator.preview, op="tier_replacement", tiers=tiers, managed=True)
        preview = operator.preview(op="tier_replacement", tiers=tiers, mode="prepare", managed=True)
        assert (preview["will"], "evidence" in preview["requires"]) == (["hold", "drain"], True)
        before_hold = evidence(observed_at=moment(-20))
        prepared = operator.apply(preview)
        assert (prepared["state"], prepared["drain"]["complete"], prepared["drain"]["unresolved"]) == ("held", True, 0)
        assert (prepared["changed"]["to"], prepared["authorizes"], operator.view()["route_revision"]) == (None, [], 1)
        asked = posts(plane.servers["a"])
        assert user.ask("x").json()["error"]["code"] == "held"
        assert posts(plane.servers["a"]) == asked  # from the hold on, nothing reaches the server that is unloaded

        def resume(**more: object) -> dict[str, Any]:
            return {"op": "resume", "transaction_id": prepared["transaction_id"], **more}

        wrong: list[tuple[str, dict[str, Any]]] = [
            ("evidence_required", {}),
            ("evidence_invalid", {"evidence": {}}),
            ("evidence_invalid", {"evidence": {**evidence(), "weights": "sha256:0"}}),
            ("evidence_mismatch", {"evidence": {"campaign": evidence()["campaign"], "containers": {}}}),
            ("evidence_invalid", {"evidence": {"containers": evidence()["containers"]}}),
            ("evidence_invalid", {"evidence": before_hold}),
            ("evidence_invalid", {"evidence": evidence(observed_at=moment(3600))}),
            ("evidence_invalid", {"evidence": evidence(observed_at="yesterday")}),
            ("evidence_invalid", {"evidence": evidence(started_at="2026-13-01T00:00:00Z")}),
            ("evidence_invalid", {"evidence": evidence(container_id="ABC")}),
            ("evidence_invalid", {"evidence": evidence(image_id="latest")}),
            ("evidence_invalid", {"evidence": evidence(observer="")}),
            ("evidence_invalid", {"evidence": evidence(verified=True)}),
            ("evidence_mismatch", {"evidence": evidence("b")}),
            ("evidence_mismatch", {"evidence": evidence("ab")}),
            ("evidence_mismatch", {"evidence": evidence(served_model="m2 ")}),
            ("evidence_mismatch", {"evidence": evidence(served_model="m1")}),
        ]
        for code, more in wrong:
            try:
                answer = operator.preview(**resume(**more))
            except RefusedError as refusal:
                assert refusal.code == code, (more, refusal.body)
            else:
                raise AssertionError(f"taken: {more}: {answer}")
        assert operator.view()["state"] == "held"
        assert operator.view()["attention"] is None  # a refused preview is no failure
        good = evidence()
        receipt = operator.change(**resume(evidence=good))
        assert (receipt["state"], receipt["evidence"]["trust"]) == ("completed", "operator_asserted")
        assert receipt["evidence"]["containers"]["a"] == good["containers"]["a"]

        back = operator.change(
            op="tier_replacement", tiers={"a": {"base_url": plane.servers["a"].base_url, "model": "m1"}},
            mode="prepare", managed=True,
        )  # fmt: skip
        mine = evidence(served_model="m1")
        operator.change(op="resume", transaction_id=back["transaction_id"], evidence=mine)
        # The same model in place again: a managed change without a difference, and the same words as last time.
        again = operator.change(op="tier_replacement", tiers={"a": {}}, mode="prepare", managed=True)
        refused(
            "evidence_replayed",
            422,
            operator.preview,
            op="resume",
            transaction_id=again["transaction_id"],
            evidence=mine,
        )
        done = operator.change(
            op="resume", transaction_id=again["transaction_id"], evidence=evidence(served_model="m1")
        )
        fences = [done["changed"][side] for side in ("from", "to")]
        assert fences[0]["effective_route_sha256"] == fences[1]["effective_route_sha256"]
        assert fences[1]["route_revision"] == fences[0]["route_revision"] + 1
        assert user.ask("x").json()["model"] == "m1"


@pytest.mark.scenario("S8")
@pytest.mark.req("R104", "R61")
def test_evidence_that_was_used_is_known_again_by_the_next_process(tmp_path: Path) -> None:
    """Also after changes without evidence; and its time is no help, because it may lie in the future a little."""
    with live(tmp_path, spare=["m2"]) as plane:
        used = evidence(observed_at=moment(250))
        with plane.serving() as (_, operator, _):
            prepared = prepare(operator, plane.servers["m2"].base_url)
            operator.change(op="resume", transaction_id=prepared["transaction_id"], evidence=used)
            assert operator.change(op="alias_update", aliases={"y": {"tier": "a"}})["state"] == "completed"
            again = operator.change(op="tier_replacement", tiers={"a": {}}, mode="prepare", managed=True)
        with plane.serving() as (_, operator, user):
            assert operator.view()["attention"] == "interrupted"
            resume = {"op": "recover", "action": "resume", "transaction_id": again["transaction_id"]}
            refused("evidence_replayed", 422, operator.preview, **resume, evidence=used)
            late = evidence(started_at=moment(60))  # it was seen before it was started
            refused("evidence_invalid", 422, operator.preview, **resume, evidence=late)
            assert operator.change(**resume, evidence=evidence())["state"] == "completed"
            assert user.ask("x").json()["model"] == "m2"
        done = run_verb("fsck", "--config", plane.config, "--allow-volatile-filesystem")
        assert done.returncode == 0, done.stderr


@pytest.mark.req("R104")
def test_a_change_that_is_not_managed_takes_no_evidence(tmp_path: Path) -> None:
    with live(tmp_path, spare=["m2"]) as plane, plane.serving() as (_, operator, _):
        tiers = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}
        prepared = operator.change(op="tier_replacement", tiers=tiers, mode="prepare")
        resume = {"op": "resume", "transaction_id": prepared["transaction_id"]}
        refused("invalid_change", 400, operator.preview, **resume, evidence=evidence())
        assert operator.change(**resume)["state"] == "completed"


@pytest.mark.req("R105", "R43", "R44", "R46")
def test_the_new_server_is_asked_for_its_name_before_and_after_the_commit_and_for_nothing_else(tmp_path: Path) -> None:
    seen: list[int] = []
    watchers: list[Operator] = []

    def script(_: int) -> list[str]:
        seen.extend(watcher.view()["route_revision"] for watcher in watchers)
        return ["m2"]

    with (
        live(tmp_path, probe_interval_s="600") as plane,
        Liar(script) as server,
        plane.serving() as (gateway, operator, user),
        Operator(gateway) as watcher,
    ):
        prepared = prepare(operator, server.base_url)
        resume = operator.preview(op="resume", transaction_id=prepared["transaction_id"], evidence=evidence())
        watchers.append(watcher)  # from here on, not in the preview: what an apply itself looks at
        receipt = operator.apply(resume)
        watchers.clear()
        assert seen[0] == 1, "nobody looked before the commit"
        assert seen[-1] == 2, "nobody looked after the commit"
        assert server.chats == 0
        codes = [event["code"] for event in receipt["events"]]
        assert codes.index("held") < codes.index("drained") < codes.index("committed") < codes.index("completed")
        assert codes.count("drained") == 2, "the drain is proved again"
        assert user.ask("x").status_code == 200
        assert server.chats == 1
