"""Live routes where the machine misbehaves, or nothing happens at all: stalled syncs, clocks that jump, idle hours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.interpose import Clocks, Stall
from tests.support.live import Liar, Operator, User, is_whole, live, refused, until

SOAK_S = float(os.environ.get("SNDR_SOAK_S", "30"))
DAY_S = 86_400


@contextmanager
def traced(pid: int, calls: str, out: Path) -> Iterator[None]:
    """These system calls of a running process, one a line in `out`."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace")
    tool = subprocess.Popen(
        [strace, "-f", "-p", str(pid), "-e", f"trace={calls}", "-o", os.fspath(out)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert tool.stderr is not None
        if "attached" not in tool.stderr.readline():
            pytest.skip("strace may not attach here")
        yield
    finally:
        tool.terminate()
        tool.wait(10)
        tool.stderr.close()


@pytest.mark.scenario("S23")
@pytest.mark.req("R2", "R27", "R40", "R45", "R49", "R81")
def test_a_sync_that_stands_still_stalls_its_own_change_and_nothing_else(tmp_path: Path) -> None:
    stall = Stall(tmp_path, "routes.json")
    with (
        live(tmp_path, spare=["m2"], routes={"x": "a", "spare": "a", "y": "b"}) as plane,
        plane.serving(**stall.environ) as (gateway, operator, user),
        Operator(gateway) as other,
        ThreadPoolExecutor(1) as pool,
    ):

        def flows(model: str, served: str, revision: int) -> None:
            for _ in range(10):
                answer = user.ask(model)
                assert (answer.status_code, answer.json()["model"]) == (200, served)
                assert answer.headers["x-sndr-route-revision"] == str(revision)

        def is_busy() -> None:
            refused("management_busy", 503, operator.preview, op="alias_update", aliases={"y": {"tier": "a"}})

        stall.on()
        moving = pool.submit(other.change, op="alias_update", aliases={"x": {"tier": "b"}})
        until(lambda: stall.hits)
        with user.stream("y", tokens=40, delay_ms=50) as running:
            flows("x", "m1", 1)
            flows("y", "n1", 1)
            assert operator.view()["transaction"] is None
            assert operator.view()["route_revision"] == operator.status()["route_revision"] == 1
            is_busy()
            assert is_whole(running.read().decode(), 40)
        assert not moving.done()
        stall.off()
        assert moving.result(30)["changed"]["to"]["route_revision"] == 2
        flows("x", "n1", 2)

        stall.on()
        change = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}
        replacing = pool.submit(other.change, op="tier_replacement", tiers=change)
        until(lambda: stall.hits)
        flows("y", "n1", 2)
        view = operator.view()
        assert (view["state"], view["transaction"]["op"], view["write_seq"]) == ("idle", "alias_update", 3)
        assert view["held_tiers"] == ["a"]  # closed at once; said to be held only when that is durable
        answer = user.ask("spare")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "held")
        stall.off()
        assert replacing.result(30)["state"] == "completed"
        flows("y", "n1", 3)
        flows("spare", "m2", 3)


@pytest.mark.scenario("S22")
@pytest.mark.req("R94")
def test_clocks_that_jump_end_previews_early_and_never_late(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    move = {"op": "alias_update", "aliases": {"x": {"tier": "b"}}}
    with (
        live(tmp_path, spare=["m2"]) as plane,
        plane.serving(**clocks.environ) as (gateway, operator, user),
        Operator(gateway) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        for jump in ({"wall_s": DAY_S}, {"suspended_s": DAY_S}, {"wall_s": -DAY_S, "suspended_s": 2 * DAY_S}):
            preview = operator.preview(**move)
            clocks.jump(**jump)
            refused("preview_expired", 409, operator.apply, preview)
        preview = operator.preview(**move)
        clocks.jump(wall_s=-2 * DAY_S, suspended_s=2 * DAY_S)
        assert operator.apply(preview)["state"] == "completed"
        # A drain is measured by the clock that nobody sets: a day forward or back neither ends nor prolongs it.
        change = {"a": {"base_url": plane.servers["m2"].base_url, "model": "m2"}}
        assert operator.change(op="alias_update", aliases={"x": {"tier": "a"}})["state"] == "completed"
        with user.stream("x", tokens=3, delay_ms=0, stall_after=1) as running:
            draining = pool.submit(other.change, op="tier_replacement", tiers=change)
            until(lambda: operator.view()["state"] == "held")
            for wall_s in (DAY_S, -3 * DAY_S):
                clocks.jump(wall_s=wall_s, suspended_s=2 * DAY_S)
                watched = operator.call("GET", "/v1/admin/routes/drain?timeout_s=1")
                assert (watched["timed_out"], watched["state"]) == (True, "held")
            assert not draining.done()
            plane.servers["a"].release()
            assert is_whole(running.read().decode(), 3)
        assert draining.result(30)["state"] == "completed"


@pytest.mark.scenario("S24")
@pytest.mark.req("R112", "R113", "R45")
def test_nothing_changes_by_itself(tmp_path: Path) -> None:
    """At rest, held and committed, each for `SNDR_SOAK_S` seconds (30): no write, no watcher, no step."""
    calls = (
        "inotify_init,inotify_init1,fanotify_init,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,pwrite64"
    )
    with ExitStack() as stack:
        planes, operators = [], []
        liar = stack.enter_context(Liar(lambda look: ["m2"] if look <= 2 else ["m3"]))
        users: list[User] = []
        for name in ("idle", "held", "committed"):
            (tmp_path / name).mkdir()
            plane = stack.enter_context(live(tmp_path / name, spare=["m2"], probe_interval_s="1"))
            gateway, operator, user = stack.enter_context(plane.serving())
            planes.append(plane)
            operators.append(operator)
            users.append(user)
            stack.enter_context(traced(gateway.process.pid, calls, tmp_path / f"{name}.calls"))
        change = {"a": {"base_url": planes[1].servers["m2"].base_url, "model": "m2"}}
        operators[1].change(op="tier_replacement", tiers=change, mode="prepare")
        change = {"a": {"base_url": liar.base_url, "model": "m2"}}
        refused("identity_mismatch", 502, operators[2].change, op="tier_replacement", tiers=change)
        liar.script = lambda _: ["m2"]  # the right model at last: nobody may act on it
        for user in users:
            assert user.ask("y").status_code == 200
        for operator in operators:
            until(lambda operator=operator: operator.status()["ledger"]["unresolved"] == 0)
        traces = [tmp_path / f"{name}.calls" for name in ("idle", "held", "committed")]
        files = [plane.directory / "routes.json" for plane in planes]

        def seen() -> list[object]:
            stats = [os.stat(file) for file in files]
            views = [{key: value for key, value in one.view().items() if key != "tiers"} for one in operators]
            return [[(stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats], views]

        before = seen()
        written = [trace.stat().st_size for trace in traces]
        time.sleep(SOAK_S)
        assert [trace.stat().st_size for trace in traces] == written, [trace.read_text()[-500:] for trace in traces]
        assert seen() == before
        assert [operator.view()["state"] for operator in operators] == ["idle", "held", "committed"]
        assert [user.ask("x").status_code for user in users] == [200, 503, 503]
        for trace in traces:
            assert not re.search("inotify|fanotify", trace.read_text())
