"""The fenced reader against a real gateway whose routes flip all the time; the one who flips them knows the truth.

`SNDR_FLIPS=1000` is the whole run.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from sndr.router.client import Client, Fence, Fenced, UnsettledError
from tests.support.gateway import CREDENTIALS
from tests.support.live import live

FLIPS = int(os.environ.get("SNDR_FLIPS", "200"))
READERS = 3
LIMITS = {"a": 1111, "b": 2222}


@pytest.mark.req("R11", "R12", "R20")
@pytest.mark.invariant("INV-2", "INV-3", "INV-11")
def test_no_torn_observation_is_accepted_while_routes_flip(tmp_path: Path) -> None:
    tiers = {name: {"model": f"m-{name}", "context_limit": limit} for name, limit in LIMITS.items()}
    accepted: list[list[Fenced]] = [[] for _ in range(READERS)]
    faults: list[BaseException] = []
    is_over = threading.Event()

    def read(url: str, mine: list[Fenced], observe: str) -> None:
        try:
            with Client(url, CREDENTIALS["OPERATOR_KEY"]) as client:
                while not is_over.is_set():
                    try:
                        mine.append(client.read_fenced(getattr(Client, observe), attempts=3))
                    except UnsettledError as error:
                        assert error.code == "fence_unsettled"
        except BaseException as error:
            faults.append(error)
            raise

    with live(tmp_path, tiers=tiers, routes={"x": "a", "y": "b"}) as plane, plane.serving() as (_, operator, _):
        view = operator.view()
        truth = {view["route_revision"]: (view["effective_route_sha256"], "a", "b")}
        threads = [
            threading.Thread(target=read, args=(operator.url, mine, "models" if number else "routes"))
            for number, mine in enumerate(accepted)
        ]
        for thread in threads:
            thread.start()
        chance, now = random.Random(20), {"x": "a", "y": "b"}
        try:
            for _ in range(FLIPS):
                alias = chance.choice(["x", "y"])
                now[alias] = "b" if now[alias] == "a" else "a"
                to = operator.change(op="alias_update", aliases={alias: {"tier": now[alias]}})["changed"]["to"]
                truth[to["route_revision"]] = (to["effective_route_sha256"], now["x"], now["y"])
        finally:
            is_over.set()
            for thread in threads:
                thread.join(60)
    assert not faults
    assert len(truth) == FLIPS + 1
    for mine in accepted:
        assert mine, "a reader never got a whole observation"
        revisions = [read.fence.route_revision for read in mine]
        assert revisions == sorted(revisions)
    for read in (read for mine in accepted for read in mine):
        sha256, x, y = truth[read.fence.route_revision]
        assert read.fence == Fence(view["authority_id"], read.fence.route_revision, sha256)
        document = read.answer.document
        if document["object"] == "list":
            seen = {entry["id"]: entry["context_window"] for entry in document["data"]}
            assert seen == {"x": LIMITS[x], "y": LIMITS[y]}
        else:
            aliases = document["current"]["projection"]["aliases"]
            assert (aliases["x"]["tier"], aliases["y"]["tier"]) == (x, y)
