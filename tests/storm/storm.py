"""One storm: clients, an operator, model servers that flap and lie, and a gateway that is killed again and again."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from sndr.router.wire.operator_api import PROBLEMS
from sndr.router.wire.record import parse_record
from tests.storm.history import Asked, History, Observation, judge
from tests.support.gateway import CREDENTIALS, Gateway, gateway_process
from tests.support.live import CLIENT, OPERATOR, boot_text, init, private
from tests.support.synthetic import Synthetic, synthetic_thread

CLIENTS = 8
LIMITS = {"a": 4, "b": 2, "c": 3}
ALIASES = {"x": "a", "y": "b", "z": "c"}
KILL_EVERY_S = 6.0
SETTLE_S = 60.0
MODELS = [f"{tier}{number}" for tier in LIMITS for number in (1, 2)]
FAULT_CODES = {"authority_write_failed", "authority_write_uncertain", "authority_no_space"}
"""Codes of problems that a storm has no reason to meet: its disk works, and nobody else touches its files."""


@dataclass
class Report:
    """Counts of a storm, and what was wrong."""

    seed: int
    seconds: float
    requests: int
    kills: int
    revisions: int
    """How many different ones the operator saw."""
    operations: Counter[str]
    statuses: Counter[str]
    rows: int
    observations: int
    violations: list[str]


class Storm:
    """A storm of some seconds. What it does is drawn from its seed; how threads interleave is not."""

    def __init__(self, folder: Path, seed: int, seconds: float) -> None:
        self.folder = private(folder)
        self.seed = seed
        self.seconds = seconds
        self.over = threading.Event()
        self.serving = threading.Event()
        self.applying = threading.Event()
        """Set whenever an apply is sent."""
        self.lock = threading.Lock()
        self.operations: Counter[str] = Counter()
        self.servers: dict[str, Synthetic] = {}
        self.history = History("", LIMITS)
        self.left: tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]] = ([], {})
        """What was judged beside the history: the ledger's rows, and what each server saw."""
        self._standing: tuple[float, tuple[Any, ...], frozenset[str]] | None = None
        """When a view said so, what it said of the transaction, what it held; None once an apply was sent."""
        self._quiesced: dict[str, float] = {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    # -- the whole -----------------------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Everything, to the judgement."""
        with ExitStack() as stack:
            for model in MODELS:
                self.servers[model] = stack.enter_context(synthetic_thread(model=model))
            config = self._boot_file()
            threads = [self._thread(self._client, number) for number in range(CLIENTS)]
            threads += [self._thread(target) for target in (self._operator, self._watcher, self._weather)]
            for thread in threads:
                thread.start()
            try:
                starts = self._kill_and_restart(config)
            finally:
                self.over.set()
                self.serving.set()
            if starts:
                with gateway_process(config, *self._serve()) as gateway:
                    if self._listens(gateway):
                        self._join(threads)
                        self._clear_the_weather()
                        self._settle()
                        code = gateway.stop()
                        if code != 0:
                            self.fault(f"the last gateway ended with {code}")
            self._join(threads)
            served = {
                model: [e for e in server.log() if e["method"] == "POST"] for model, server in self.servers.items()
            }
        rows = self._rows()
        self.left = (rows, served)
        violations = judge(self.history, rows, served)
        statuses = Counter(str(one.code or one.status) for one in self.history.asked)
        return Report(
            self.seed, self.seconds, len(self.history.asked), len(self.history.kills), len(self.history.projections),
            self.operations, statuses, len(rows), len(self.history.observed), violations,
        )  # fmt: skip

    def _join(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join(90)
            if thread.is_alive():
                self.fault(f"{thread.name} does not end")

    def evidence(self) -> dict[str, Any]:
        """Everything that the judge looked at, for a person who looks again."""
        rows, served = self.left
        return {"history": vars_of(self.history), "rows": rows, "served": served}

    def _boot_file(self) -> Path:
        tiers = {
            tier: {"model": f"{tier}1", "base_url": self.servers[f"{tier}1"].base_url, "max_concurrency": limit}
            for tier, limit in LIMITS.items()
        }
        config = self.folder / "gateway.toml"
        config.write_text(boot_text(self.folder, tiers, ALIASES, router="admission_timeout_s = 10\nqueue_limit = 64"))
        init(config)
        record = parse_record((self.folder / "routes.json").read_bytes())
        self.history.authority_id = record.authority_id
        return config

    def _serve(self) -> list[str]:
        return ["--allow-volatile-filesystem", "--listen", f"127.0.0.1:{self.port}"]

    def _thread(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                target(*arguments)
            except Exception as error:
                self.fault(f"{target.__name__} failed: {error!r}")

        return threading.Thread(target=guarded, name=target.__name__, daemon=True)

    def fault(self, text: str) -> None:
        """Something that is wrong by itself."""
        with self.lock:
            self.history.faults.append(text)

    def _listens(self, gateway: Gateway) -> bool:
        """Wait for it; a gateway that does not start ends the storm."""
        try:
            gateway.wait_event(lambda line: line["event"] == "listening", 60)
        except AssertionError as error:
            self.fault(f"INV-1, INV-14: a gateway does not start: {error}")
            return False
        if self.history.kills:
            killed, _ = self.history.kills[-1]
            self.history.kills[-1] = (killed, time.time())
        self.serving.set()
        return True

    def _kill_and_restart(self, config: Path) -> bool:
        """A kill every so many seconds, at a moment that nobody has prepared for; False if a gateway did not start."""
        chance = random.Random(f"{self.seed} kills")
        ends = time.monotonic() + self.seconds
        while time.monotonic() < ends:
            due = time.monotonic() + min(KILL_EVERY_S, ends - time.monotonic())
            with gateway_process(config, *self._serve()) as gateway:
                if not self._listens(gateway):
                    return False
                time.sleep(max(0.2, due - time.monotonic() - chance.random() * 0.5))
                if chance.random() < 0.5:  # what is half done lasts milliseconds: half of the kills look for it
                    self.applying.clear()
                    self.applying.wait(1)
                    time.sleep(chance.random() * 0.02)
                if gateway.process.poll() is not None:
                    self.fault(f"a gateway ended by itself: {''.join(gateway.raw)[-500:]}")
                self.serving.clear()
                before = time.time()
                gateway.process.kill()
                gateway.process.wait(30)
                self.history.kills.append((before, time.time()))
                for line in gateway.lines:
                    if line["event"] in ("internal_error", "crash"):
                        self.fault(f"the gateway logged {line}")
                self._look_at_the_file(before)
        return True

    def _look_at_the_file(self, killed_at: float) -> None:
        try:
            record = parse_record((self.folder / "routes.json").read_bytes())
        except Exception as error:
            self.fault(f"INV-12: the file after a kill: {error!r}")
            return
        self.history.on_disk.append((killed_at, record.current.fence.route_revision))

    def _rows(self) -> list[dict[str, Any]]:
        base = sqlite3.connect(self.folder / "usage.db")
        base.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in base.execute("SELECT * FROM requests ORDER BY seq")]
        finally:
            base.close()

    # -- clients -------------------------------------------------------------------------------------------------------

    def _client(self, number: int) -> None:
        chance = random.Random(f"{self.seed} client {number}")
        connection: http.client.HTTPConnection | None = None
        connected_at = 0.0
        n = 0
        while not self.over.is_set():
            self.serving.wait()
            if connection is None:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
                connected_at = time.time()
            n += 1
            one = Asked(
                f"s{self.seed}-{number}-{n}", chance.choice("xyz"), chance.random() < 0.5, time.time(), connected_at
            )
            keep = False
            try:
                keep = self._ask(connection, one, chance)
            except (OSError, http.client.HTTPException, ValueError) as error:
                one.trouble = repr(error)
            one.ended_at = time.time()
            with self.lock:
                self.history.asked.append(one)
                if one.revision is not None and one.head_at is not None:
                    self.history.observed.append(
                        Observation(one.sent_at, one.head_at, one.revision, None, f"client {number}")
                    )
            if not keep:
                connection.close()
                connection = None
                time.sleep(0.02)
            time.sleep(chance.random() * 0.02)
        if connection is not None:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection, one: Asked, chance: random.Random) -> bool:
        """One request; whether its connection may be used again."""
        plan: dict[str, Any] = {"tokens": chance.randrange(1, 12), "token_delay_ms": chance.choice([0, 0, 1, 5, 15])}
        trouble = chance.random()
        if trouble < 0.03:
            plan["reset_after"] = 1
        elif trouble < 0.05:
            plan["status"] = 500
        leaves = chance.random() < 0.08
        body = {
            "model": one.alias, "stream": one.stream, "synthetic": plan,
            "messages": [{"role": "user", "content": "hi"}],
        }  # fmt: skip
        headers = {**CLIENT, "content-type": "application/json", "x-request-id": one.id}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        if leaves and chance.random() < 0.5:
            one.left = True
            return False
        response = connection.getresponse()
        one.head_at = time.time()
        one.status = response.status
        told = response.getheader("x-sndr-route-revision")
        one.revision = None if told is None else int(told)
        if leaves:
            one.left = True
            response.read(10)
            return False
        data = response.read()
        if response.status != 200:
            one.code = json.loads(data)["error"]["code"]
            one.complete = True
            return True
        text = data.decode()
        if one.stream:
            one.tokens = [int(found) for found in re.findall(r'"content":" t(\d+)"', text)]
            found = re.search(r'"model":"([^"]*)"', text)
            one.model = None if found is None else found[1]
            one.complete = text.rstrip().endswith("data: [DONE]")
            return one.complete
        document = json.loads(text)
        one.model = document["model"]
        one.tokens = [int(found) for found in re.findall(r"t(\d+)", document["choices"][0]["message"]["content"])]
        one.complete = True
        return True

    # -- what is seen of the routes ------------------------------------------------------------------------------------

    def _see(self, began: float, document: Any, where: str) -> None:
        """Note the fence that an answer carries."""
        revision = document.get("route_revision") if isinstance(document, dict) else None
        if revision is not None:
            seen = Observation(began, time.time(), revision, document["effective_route_sha256"], where)
            with self.lock:
                self.history.observed.append(seen)

    def _watcher(self) -> None:
        paths = ["/v1/models", "/v1/router/status", "/v1/admin/tiers", "/v1/admin/routes", "/v1/admin/routes/check"]
        with httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=OPERATOR, timeout=30, trust_env=False
        ) as http_:
            while not self.over.is_set():
                self.serving.wait()
                for path in paths:
                    began = time.time()
                    try:
                        answer = http_.get(path)
                        document = answer.json()
                    except (httpx.HTTPError, ValueError):
                        time.sleep(0.02)
                        continue
                    self._see(began, document, f"GET {path}")
                    if path == "/v1/admin/tiers":
                        for tier in document["data"] if answer.status_code == 200 else ():
                            if tier["in_flight"] < 0 or tier["in_flight"] > LIMITS[tier["id"]]:
                                self.fault(f"INV-20, INV-23: tier {tier['id']} says {tier['in_flight']} in flight")
                    if path.endswith("check") and answer.status_code == 200 and document["result"] != "consistent":
                        self.fault(f"the authority says {document['result']}")
                time.sleep(0.03)

    # -- model servers -------------------------------------------------------------------------------------------------

    def _weather(self) -> None:
        chance = random.Random(f"{self.seed} weather")
        while not self.over.wait(0.2 + chance.random() * 0.8):
            model = chance.choice(MODELS)
            server = self.servers[model]
            lie = chance.choice([[f"{model} "], [model.upper()], ["another"], [], [model, "lora"]])
            change: dict[str, Any] = chance.choice([{"models": lie}, {"health": 503}, {"models_status": 500}])
            server.set(**change)
            self.over.wait(chance.random() * 0.8)
            server.set(models=[model], health=200, models_status=200)

    def _clear_the_weather(self) -> None:
        for model, server in self.servers.items():
            server.set(models=[model], health=200, models_status=200)

    # -- the operator --------------------------------------------------------------------------------------------------

    def _call(self, http_: httpx.Client, method: str, path: str, body: object = None) -> tuple[int | None, Any]:
        """One call: its status, or None if there was no whole answer."""
        began = time.time()
        try:
            answer = http_.request(method, path, json=body)
            document = answer.json()
        except (httpx.HTTPError, ValueError):
            return None, {}
        self._see(began, document, f"{method} {path}")
        code = document.get("code") if answer.status_code != 200 else None
        if answer.status_code != 200 and (code not in PROBLEMS or code in FAULT_CODES):
            self.fault(f"{method} {path} {body}: {answer.status_code} {document}")
        return answer.status_code, document

    def _hold(self, scope: frozenset[str]) -> None:
        with self.lock:
            self.history.holds.append((time.time(), scope))

    def _view(self, http_: httpx.Client) -> Any:
        began = time.time()
        status, view = self._call(http_, "GET", "/v1/admin/routes")
        if status != 200:
            return None
        self._stands(began, view)
        self.history.projections.setdefault(view["route_revision"], view["current"]["projection"])
        if self.history.projections[view["route_revision"]] != view["current"]["projection"]:
            self.fault(f"INV-3: revision {view['route_revision']} has two contents")
        self._hold(frozenset(view["held_tiers"]))
        return view

    def _stands(self, began: float, view: Any) -> None:
        """What a view says of the transaction, which only an apply may change: not time, and no kill."""
        receipt = view["transaction"] or {}
        open_ = receipt.get("state") in ("held", "committed")
        said = (view["route_revision"], receipt.get("id"), receipt.get("state"), tuple(sorted(view["held_tiers"])))
        if set(said[3]) != set(receipt["scope"] if open_ else ()):
            self.fault(f"INV-7, INV-19: {said[3]} are held, and the transaction is {receipt}")
        if self._standing is None:
            self._standing = (time.time(), said, frozenset(said[3]))
        elif self._standing[1] != said:
            self.fault(f"INV-7, INV-22: without an apply {self._standing[1]} became {said} at {began}")
            self._standing = (time.time(), said, frozenset(said[3]))

    def _applies(self) -> None:
        """From now on what is held may change."""
        if self._standing is not None and self._standing[2]:
            self.history.closed.append((self._standing[0], time.time(), self._standing[2]))
        self._standing = None

    def _operator(self) -> None:
        chance = random.Random(f"{self.seed} operator")
        kept: list[dict[str, Any]] = []
        with httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=OPERATOR, timeout=60, trust_env=False
        ) as http_:
            while not self.over.is_set():
                self.serving.wait()
                view = self._view(http_)
                if view is None:
                    time.sleep(0.02)
                    continue
                if view["held_tiers"] and chance.random() < 0.3:
                    time.sleep(0.2)  # a hold that lasts, so that somebody would get through if it did not hold
                self._act(http_, chance, view, kept)
                time.sleep(chance.random() * 0.05)

    def _act(self, http_: httpx.Client, chance: random.Random, view: Any, kept: list[dict[str, Any]]) -> None:
        """One thing that an operator may or may not do now."""
        luck = chance.random()
        tier = chance.choice("abc")
        if luck < 0.10:
            self._bit(http_, tier, chance.choice(["quiesce", "readmit", "readmit"]))
        elif luck < 0.13:
            self._tell("operator drain", http_, f"/v1/admin/tiers/{tier}/drain", {"timeout_s": 1})
        elif luck < 0.20 or (view["attention"] == "interrupted" and luck < 0.4):
            self._tell("reconcile", http_, "/v1/admin/usage/reconcile", {"confirm": True})
        elif luck < 0.28 and kept:
            old = dict(chance.choice(kept))  # stale, used, of another run, or with another hash
            if chance.random() < 0.3:
                old["preview_sha256"] = f"{chance.getrandbits(256):064x}"
            self._apply(http_, chance, old, "old preview")
        elif luck < 0.33:
            body = chance.choice(
                [{}, {"op": "alias_update"}, {"op": "promote"}, {"op": "alias_update", "aliases": {"x": 1}}, [1]]
            )
            status, _ = self._call(http_, "POST", "/v1/admin/routes/preview", body)
            self.operations["malformed"] += 1
            if status == 200:
                self.fault(f"a malformed preview was taken: {body}")
        else:
            wanted = self._wish(chance, view, tier)
            status, preview = self._call(http_, "POST", "/v1/admin/routes/preview", wanted)
            kind = str(wanted.get("action") or wanted["op"])
            self.operations[f"preview {kind} {'given' if status == 200 else 'refused'}"] += 1
            if status == 200:
                kept.append(preview)
                del kept[:-20]
                self._apply(http_, chance, preview, kind)

    def _wish(self, chance: random.Random, view: Any, tier: str) -> dict[str, Any]:
        """A change; where a transaction is open, mostly one of its legal ways on."""
        transaction = (view["transaction"] or {}).get("id")
        if view["next"] and chance.random() < 0.85:
            action = chance.choice(view["next"])
            if view["attention"] is None and action in ("resume", "cancel"):
                return {"op": action, "transaction_id": transaction}
            more = {"accept_unready": True} if action == "rollback" and chance.random() < 0.3 else {}
            return {"op": "recover", "transaction_id": transaction, "action": action, **more}
        luck = chance.random()
        if luck < 0.35:
            to = {alias: {"tier": chance.choice("abcd" if chance.random() < 0.1 else "abc")} for alias in "xyz"}
            return {"op": "alias_update", "aliases": dict(chance.sample(sorted(to.items()), chance.randrange(1, 4)))}
        if luck < 0.80:
            tiers = sorted({tier, chance.choice("abc")}) if chance.random() < 0.2 else [tier]
            now = view["current"]["projection"]["tiers"]
            change = {}
            for one in tiers:
                model = f"{one}{2 if now[one]['model'].endswith('1') else 1}"
                server = model if chance.random() < 0.9 else chance.choice(MODELS)
                change[one] = {"model": model, "base_url": self.servers[server].base_url}
            return {"op": "tier_replacement", "tiers": change, "mode": chance.choice(["apply", "apply", "prepare"])}
        if luck < 0.88:
            return {"op": "rollback"}
        action = chance.choice(["drain", "resume", "cancel", "verify", "rollback", "reassert"])
        return {"op": "recover", "transaction_id": transaction, "action": action}

    def _apply(self, http_: httpx.Client, chance: random.Random, preview: dict[str, Any], kind: str) -> None:
        held = self.history.holds[-1][1] if self.history.holds else frozenset()
        self._hold(held | frozenset(preview.get("scope", ())))
        body = {
            "preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"],
            "confirm": chance.random() < 0.97, "drain_timeout_s": chance.randrange(1, 3),
            "verify_timeout_s": chance.randrange(0, 2),
        }  # fmt: skip
        began = time.time()
        self._applies()
        self.applying.set()
        status, answer = self._call(http_, "POST", "/v1/admin/routes/apply", body)
        self.operations[f"apply {kind}: {_said(status, answer)}"] += 1
        to = (answer.get("changed") or {}).get("to") if status == 200 and not answer["replayed"] else None
        if to is not None and to["route_revision"] > preview["base"]["route_revision"]:
            self.history.commits.append((began, to["route_revision"]))
        if status == 200 and body["confirm"] is not True:
            self.fault("an apply without a confirmation was done")
        if status == 200 and answer["authorizes"] != []:
            self.fault(f"a receipt authorizes {answer['authorizes']}")

    def _bit(self, http_: httpx.Client, tier: str, verb: str) -> None:
        began = time.time()
        status = self._tell("operator bit", http_, f"/v1/admin/tiers/{tier}/{verb}", {})
        since = self._quiesced.pop(tier, None)
        if since is not None:
            self.history.quiesced.append((since, began, tier))
        if verb == "quiesce" and status == 200:
            self._quiesced[tier] = time.time()

    def _tell(self, what: str, http_: httpx.Client, path: str, body: object) -> int | None:
        status, answer = self._call(http_, "POST", path, body)
        self.operations[f"{what}: {_said(status, answer)}"] += 1
        return status

    # -- the end -------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring everything to rest, as an operator would: then nothing may be left over."""
        ends = time.monotonic() + SETTLE_S
        with httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", headers=OPERATOR, timeout=90, trust_env=False
        ) as http_:
            chance = random.Random(f"{self.seed} end")
            while time.monotonic() < ends:
                view = self._view(http_)
                if view is None:
                    self.fault("no view at the end")
                    return
                if view["state"] == "idle" and view["attention"] is None:
                    break
                self._call(http_, "POST", "/v1/admin/usage/reconcile", {"confirm": True})
                status, preview = self._call(http_, "POST", "/v1/admin/routes/preview", self._way_out(chance, view))
                if status == 200:
                    self._apply(http_, chance, preview, "at the end")
            else:
                self.fault(f"the transaction cannot be brought to an end: {view['state']} {view['attention']}")
            self._call(http_, "POST", "/v1/admin/usage/reconcile", {"confirm": True})
            for tier in LIMITS:
                self._call(http_, "POST", f"/v1/admin/tiers/{tier}/readmit", {})
            idle: Any = None
            while time.monotonic() < ends + 10:
                view = self._view(http_)
                idle = (
                    None
                    if view is None
                    else [(t["id"], t["in_flight"], t["unresolved"], sum(t["leases"].values())) for t in view["tiers"]]
                )
                if idle == [(tier, 0, 0, 0) for tier in LIMITS]:
                    break
                time.sleep(0.1)
            else:
                self.fault(f"INV-20: not idle when everybody has gone: {idle}")
            for alias in ALIASES:
                one = Asked(f"s{self.seed}-end-{alias}", alias, False, time.time())
                body = {"model": alias, "messages": [{"role": "user", "content": "hi"}]}
                answer = http_.post("/v1/chat/completions", json=body, headers={**CLIENT, "x-request-id": one.id})
                if answer.status_code != 200:
                    self.fault(f"alias {alias} is not served at the end: {answer.text}")
                one.ended_at = one.head_at = time.time()
                one.status, one.complete = answer.status_code, True
                one.revision = int(answer.headers["x-sndr-route-revision"])
                self.history.asked.append(one)

    def _way_out(self, chance: random.Random, view: Any) -> dict[str, Any]:
        transaction = (view["transaction"] or {}).get("id")
        action = chance.choice(view["next"]) if view["next"] else "cancel"
        if view["attention"] is None and action in ("resume", "cancel"):
            return {"op": action, "transaction_id": transaction}
        return {"op": "recover", "transaction_id": transaction, "action": action}


def _said(status: int | None, answer: Any) -> str:
    return "no answer" if status is None else "done" if status == 200 else str(answer.get("code"))


def vars_of(history: History) -> dict[str, Any]:
    """A history as JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(history), default=sorted))
    return found


def secrets_in(folder: Path) -> list[str]:
    """Files of a storm that contain a credential."""
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in CREDENTIALS.values())
    ]
