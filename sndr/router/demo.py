"""Door: the narrated demonstration of live route changes.

Model servers and clients run in this process, the gateway in a process of its own, because it is killed on the way. The
clients read numbered tokens, so that a missing, doubled or misplaced one would be seen; the servers' own logs are the
other side of the count. Everything listens on 127.0.0.1 and lives in a temporary directory that is removed at the end.

The gateway ends when this process ends, however that happens: it watches the pipe between the two.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import httpx

from sndr.errors import SndrError
from sndr.router import app, offline
from sndr.router.client import Client, RefusedError, TransportError, UnsettledError
from sndr.router.synthetic import Options, SyntheticServer
from sndr.router.wire import boot

__all__ = ["DemoError", "Outcome", "Report", "play", "run"]

_TOKENS: Final = 60
_TOKEN_DELAY_MS: Final = 20
_CLIENTS_PER_ALIAS: Final = 2
_STAGGER_S: Final = 0.5
_LOOK_S: Final = 0.1
_START_S: Final = 20.0
_TOKEN: Final = re.compile(r" t(\d+)\Z")
_CLIENT_KEY: Final = "SNDR_DEMO_CLIENT_KEY"
_OPERATOR_KEY: Final = "SNDR_DEMO_OPERATOR_KEY"
_ROUTES: Final = {"chat": "big", "code": "big", "fast": "small"}


_Result = TypeVar("_Result")


class DemoError(SndrError):
    """A demonstration did not go as it must: the gateway did not start, or something was not as promised."""


@dataclass(slots=True)
class Outcome:
    """What was counted.

    Attributes:
        whole: Streams that arrived with every token, once and in order, and their end.
        tokens: Tokens of all streams, as the clients got them.
        sent: The same as the servers count them.
        held: Requests that were refused because their tier was held; none of them had begun.
        faults: What was wrong with the others, one sentence each.
        revisions: Revisions seen by fenced reads, in the order seen.
    """

    whole: int = 0
    tokens: int = 0
    sent: int = 0
    held: int = 0
    faults: list[str] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)


Report = Callable[[str, str], None]
"""Told a step's name (empty: a heading) and what happened."""


def run(report: Report) -> Outcome:
    """Run the whole demonstration: well under half a minute.

    Raises:
        DemoError: Something was not as promised; nothing is left behind.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, after everything was cleaned up.
    """

    async def work(directory: str) -> Outcome:
        demo = _Demo(directory, report)
        try:
            return await demo.run()
        finally:
            await demo.close()

    return play(work)


def play(work: Callable[[str], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run `work` with a directory of its own, which is removed.

    Raises:
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, after `work` was cancelled and everything was cleaned up.
    """

    async def prepared() -> _Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        with tempfile.TemporaryDirectory(prefix="sndr-demo-") as directory:
            return await work(directory)

    try:
        return asyncio.run(prepared())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class _Gateway:
    """The gateway as a process of its own, which can be killed and started again on the same files."""

    def __init__(self, config: str, keys: Mapping[str, str]) -> None:
        self._config = config
        self._keys = keys
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._said: deque[str] = deque(maxlen=20)
        self._address: asyncio.Future[str]
        self.url = ""
        self.client: Client

    async def start(self) -> None:
        """Start it, and wait until it listens and finds its tiers ready.

        Raises:
            DemoError: `demo_failed`.
        """
        self._address = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sndr.router.demo", self._config,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._keys},
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read(self._process))
        try:
            async with asyncio.timeout(_START_S):
                self.url = f"http://{await self._address}"
        except TimeoutError:
            raise DemoError("demo_failed", f"the gateway did not start: {' / '.join(self._said)}") from None
        self.client = Client(self.url, self._keys[_OPERATOR_KEY])
        await _until(self._is_ready, "the gateway does not find its servers ready")

    async def _is_ready(self) -> bool:
        return all(tier["ready"] for tier in (await self.ask(Client.status))["tiers"])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for raw in process.stderr:
            line = raw.decode("utf-8", "replace").strip()
            self._said.append(line)
            with suppress(ValueError, KeyError, TypeError, IndexError):
                event = json.loads(line)
                if event["event"] == "listening" and not self._address.done():
                    self._address.set_result(event["addresses"][0])
        if not self._address.done():
            error = DemoError("demo_failed", f"the gateway did not start: {' / '.join(self._said)}")
            self._address.set_exception(error)

    async def ask(self, question: Callable[[Client], Any]) -> Any:
        """A call of the management API, as JSON."""
        return (await asyncio.to_thread(question, self.client)).document

    async def kill(self) -> None:
        """SIGKILL, as a power cut or the kernel would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """An orderly stop; SIGKILL if that takes too long."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or self._reader is None:
            return
        if process.returncode is None:
            process.send_signal(number)
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        await self._reader
        if self.url:
            self.client.close()


class _Demo:
    """Servers, clients and the operator's part."""

    def __init__(self, directory: str, report: Report) -> None:
        self._directory = directory
        self._report = report
        self._keys = {_CLIENT_KEY: secrets.token_hex(16), _OPERATOR_KEY: secrets.token_hex(16)}
        self._servers = {name: SyntheticServer(Options(model=name)) for name in ("m1", "n1", "m2")}
        self._gateway = _Gateway(os.path.join(directory, "router.toml"), self._keys)
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {self._keys[_CLIENT_KEY]}"}, timeout=30, trust_env=False
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._may_start = asyncio.Event()
        self._running = 0
        self._tokens_of = dict.fromkeys(_ROUTES, 0)
        self._outcome = Outcome()

    async def close(self) -> None:
        """Leave nothing behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gateway.stop()
        await self._http.aclose()
        for server in self._servers.values():
            with suppress(AttributeError):  # one that was never started has no loop
                await server.stop()

    # -- the story ----------------------------------------------------------------------------------------------------

    async def run(self) -> Outcome:
        await self._set_up()
        await self._move_an_alias()
        await self._replace_by_the_wrong_model()
        await self._replace_by_the_right_model()
        await self._survive_a_kill()
        await self._count()
        return self._outcome

    async def _set_up(self) -> None:
        for name in ("m1", "n1"):
            await self._servers[name].start()
        big, small = self._servers["m1"], self._servers["n1"]
        await asyncio.to_thread(_initialise, self._directory, {"big": big, "small": small})
        await self._gateway.start()
        self._report("servers", f"big is {big.address} with m1, small is {small.address} with n1")
        self._report("gateway", f"{self._gateway.url} in front of both; its routes are revision 1")
        for alias in _ROUTES:
            for number in range(_CLIENTS_PER_ALIAS):
                self._begin(self._read_streams(alias, number * _STAGGER_S))
        self._begin(self._watch_revisions())
        self._may_start.set()
        for alias in _ROUTES:
            await self._until_streaming(alias)
        named = ", ".join(f"{alias} -> {tier}" for alias, tier in _ROUTES.items())
        self._report("clients", f"{len(_ROUTES) * _CLIENTS_PER_ALIAS} of them stream without a pause: {named}")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._note_fault)
        self._tasks.append(task)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for the clients' tasks; one that breaks is a fault like any other."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._outcome.faults.append(f"a client broke: {error!r}")

    async def _move_an_alias(self) -> None:
        self._report("", "1. An alias moves to another tier")
        receipt = await self._apply({"op": "alias_update", "aliases": {"code": {"tier": "small"}}})
        revision = receipt["changed"]["to"]["route_revision"]
        self._report("publish", f"revision {revision}: code -> small; streams that run stay on big to their end")

    async def _replace_by_the_wrong_model(self) -> None:
        self._report("", "2. A tier is replaced, and the new server turns out to serve the wrong model")
        server = self._servers["m2"]
        await server.start()
        change = {"op": "tier_replacement", "tiers": {"big": {"base_url": server.base_url, "model": "m2"}}}
        preview = await self._preview(change)
        server.next_models.append(["m2"])  # what it says when it is checked before the commit
        server.models = ["m2-draft"]  # and what it says ever after
        try:
            await self._apply_preview(preview)
        except RefusedError as error:
            _expect(error.code == "identity_mismatch", f"the change ended with {error.code}")
            _expect(error.body["held"] and error.body["state"] == "committed", "the tier is not held")
        else:
            raise DemoError("demo_failed", "a wrong model was let in")
        view = await self._gateway.ask(Client.routes)
        self._report("verify", f"revision {view['route_revision']} is published, but the server says m2-draft: held")
        await self._until_streaming("fast")
        self._report("others", "fast and code stream on as if nothing were")
        recovery = {"op": "recover", "transaction_id": view["transaction"]["id"], "action": "rollback"}
        receipt = await self._apply(recovery)
        _expect(receipt["state"] == "completed", "the rollback did not complete")
        to = receipt["changed"]["to"]
        _expect(to["effective_route_sha256"] == preview["base"]["effective_route_sha256"], "other routes came back")
        self._report("rollback", f"revision {to['route_revision']} has the content of before; m1 proved itself")
        await self._until_streaming("chat")

    async def _replace_by_the_right_model(self) -> None:
        self._report("", "3. The server is corrected, and the tier is replaced")
        self._servers["m2"].models = None
        target = {"base_url": self._servers["m2"].base_url, "model": "m2"}
        receipt = await self._apply({"op": "tier_replacement", "tiers": {"big": target}})
        revision = receipt["changed"]["to"]["route_revision"]
        self._report("verify", f"revision {revision} is published and the server says m2")
        streams = receipt["streams"]
        self._report("readmit", f"big takes requests again; {streams['in_scope_finished']} streams finished, "
                                f"{streams['cut']} cut")  # fmt: skip
        await self._until_streaming("chat")

    async def _survive_a_kill(self) -> None:
        self._report("", "4. kill -9 in the middle of a change")
        target = {"base_url": self._servers["m1"].base_url, "model": "m1"}
        await self._apply({"op": "tier_replacement", "tiers": {"big": target}, "mode": "prepare"})
        await self._pause_clients()
        before = await self._gateway.ask(Client.routes)
        await self._gateway.kill()
        self._report("kill", "big is held and drained, the clients pause between two streams; the gateway is gone")
        await self._gateway.start()
        after = await self._gateway.ask(Client.routes)
        for key in ("authority_id", "route_revision", "effective_route_sha256"):
            _expect(after[key] == before[key], f"{key} did not survive")
        _expect(after["attention"] == "interrupted", "nobody is told of the interruption")
        refused = await self._http.post(f"{self._gateway.url}/v1/chat/completions", json=_chat("chat"))
        _expect(refused.status_code == 503, "the hold did not survive")
        _expect(refused.json()["error"]["code"] == "held", "the hold did not survive")
        self._report("restart", f"revision {after['route_revision']} as before, big still held, and a person is asked")
        self._may_start.set()
        recovery = {"op": "recover", "transaction_id": after["transaction"]["id"], "action": "resume"}
        receipt = await self._apply(recovery)
        self._report("recover", f"resumed: revision {receipt['changed']['to']['route_revision']}, big serves m1")
        await self._until_streaming("chat")

    async def _count(self) -> None:
        await self._pause_clients()
        outcome = self._outcome
        for record in (record for server in self._servers.values() for record in server.log):
            if record.ended != "complete" or record.tokens != _TOKENS:
                outcome.faults.append(f"a server saw a stream end as {record.ended} after {record.tokens} tokens")
        outcome.sent = sum(record.tokens for server in self._servers.values() for record in server.log)
        if outcome.sent != outcome.tokens:
            outcome.faults.append(f"the servers sent {outcome.sent} tokens, the clients got {outcome.tokens}")
        if outcome.revisions != sorted(outcome.revisions):
            outcome.faults.append(f"a reader saw the revisions {outcome.revisions}")
        self._report("", "The count")
        self._report("streams", f"{outcome.whole} streams, {outcome.tokens} tokens: each came once, in its place")
        self._report("held", f"{outcome.held} requests were told that their tier is held; none of them had begun")
        seen = sorted(set(outcome.revisions))
        self._report("fences", f"{len(outcome.revisions)} fenced reads saw the revisions {_listed(seen)}, never back")
        if outcome.faults:
            raise DemoError("demo_failed", "; ".join(outcome.faults[:3]))

    # -- the operator -------------------------------------------------------------------------------------------------

    async def _preview(self, change: Mapping[str, Any]) -> dict[str, Any]:
        preview: dict[str, Any] = await self._gateway.ask(lambda client: client.preview(change))
        _expect(preview["applicable"], f"not applicable: {preview['checks']}")
        return preview

    async def _apply(self, change: Mapping[str, Any]) -> dict[str, Any]:
        return await self._apply_preview(await self._preview(change))

    async def _apply_preview(self, preview: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a preview and say how its drain goes."""
        applying: asyncio.Task[dict[str, Any]] = asyncio.create_task(
            self._gateway.ask(
                lambda client: client.apply(preview["preview_id"], preview["preview_sha256"], confirm=True)
            )
        )
        try:
            if "drain" in preview["will"]:
                await self._watch_drain(applying, preview)
            receipt = await applying
        finally:
            applying.cancel()
        _expect(receipt["streams"]["cut"] == 0, "a stream was cut")
        return receipt

    async def _watch_drain(self, applying: asyncio.Task[dict[str, Any]], preview: Mapping[str, Any]) -> None:
        left = -1
        while not applying.done():
            view = await self._gateway.ask(Client.routes)
            transaction = view["transaction"]
            if transaction is not None and transaction["id"] == preview["transaction_id"]:
                now = sum(sum(t["leases"].values()) for t in view["tiers"] if t["id"] in preview["scope"])
                if left < 0 and "hold" in preview["will"]:
                    self._report("hold", f"{', '.join(preview['scope'])} takes no new requests")
                if now != left and now + max(left, 0) and transaction["state"] == "held":
                    self._report("drain", f"{now} streams left" if now != 1 else "1 stream left")
                left = now
            await asyncio.wait([applying], timeout=_LOOK_S)

    async def _watch_revisions(self) -> None:
        """A consumer that fences what it reads."""
        while True:
            client = self._gateway.client
            with suppress(TransportError, UnsettledError, RuntimeError):  # killed, changing, closed by the kill
                read = await asyncio.to_thread(client.read_fenced, Client.models)
                self._outcome.revisions.append(read.fence.route_revision)
            await asyncio.sleep(_LOOK_S)

    # -- the clients --------------------------------------------------------------------------------------------------

    async def _read_streams(self, alias: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while True:
            await self._may_start.wait()
            self._running += 1
            try:
                is_served = await self._read_stream(alias)
            except httpx.HTTPError as error:
                self._outcome.faults.append(f"a stream of {alias} was lost: {type(error).__name__}")
                is_served = False
            finally:
                self._running -= 1
            await asyncio.sleep(0 if is_served else _LOOK_S)

    async def _read_stream(self, alias: str) -> bool:
        outcome, numbers, is_ended = self._outcome, [], False
        async with self._http.stream("POST", f"{self._gateway.url}/v1/chat/completions", json=_chat(alias)) as response:
            if response.status_code != 200:
                code = json.loads(await response.aread())["error"]["code"]
                if code == "held":
                    outcome.held += 1
                else:
                    outcome.faults.append(f"a request for {alias} was refused: {code}")
                return False
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    is_ended = True
                elif line.startswith("data: "):
                    for choice in json.loads(line[6:]).get("choices", ()):  # an error has none
                        if found := _TOKEN.match(choice["delta"].get("content") or ""):
                            numbers.append(int(found[1]))
                            outcome.tokens += 1
                            self._tokens_of[alias] += 1
        if numbers == list(range(_TOKENS)) and is_ended:
            outcome.whole += 1
        else:
            outcome.faults.append(f"a stream of {alias} is not whole: {len(numbers)} of {_TOKENS} tokens")
        return True

    async def _pause_clients(self) -> None:
        """Let every stream end and begin no other; then wait for the last durable row."""
        self._may_start.clear()

        async def is_over() -> bool:
            return not self._running and not (await self._gateway.ask(Client.status))["ledger"]["unresolved"]

        await _until(is_over, "a stream does not end")

    async def _until_streaming(self, alias: str) -> None:
        """Wait until an alias has delivered a token since now.

        Raises:
            DemoError: `demo_failed`: it does not, or a stream was not whole.
        """
        before = self._tokens_of[alias]

        async def is_so() -> bool:
            return self._tokens_of[alias] > before or bool(self._outcome.faults)

        await _until(is_so, f"{alias} does not stream")
        if self._outcome.faults:
            raise DemoError("demo_failed", self._outcome.faults[0])


async def _until(is_so: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Ask until it is so.

    Raises:
        DemoError: `demo_failed`: it took too long.
    """
    try:
        async with asyncio.timeout(_START_S):
            while not await is_so():  # noqa: ASYNC110 - another process decides, and has no event to wait for
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise DemoError("demo_failed", otherwise) from None


def _initialise(directory: str, tiers: Mapping[str, SyntheticServer]) -> None:
    """A boot file, and the authority that belongs to it."""
    path = os.path.join(directory, "router.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_boot_text(directory, tiers))
    offline.create(offline.load(path), allow_volatile=True)


def _expect(is_so: object, otherwise: str) -> None:
    if not is_so:
        raise DemoError("demo_failed", otherwise)


def _listed(numbers: list[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"


def _chat(alias: str) -> dict[str, Any]:
    plan = {"tokens": _TOKENS, "token_delay_ms": _TOKEN_DELAY_MS}
    return {"model": alias, "stream": True, "messages": [{"role": "user", "content": "count"}], "synthetic": plan}


def _boot_text(directory: str, tiers: Mapping[str, SyntheticServer]) -> str:
    lines = [
        "[server]",
        'listen = ["127.0.0.1:0"]',
        f'auth_env = "{_CLIENT_KEY}"',
        f'operator_auth_env = "{_OPERATOR_KEY}"',
        f"usage_path = {json.dumps(os.path.join(directory, 'usage.db'))}",
        f"route_state_path = {json.dumps(os.path.join(directory, 'routes.json'))}",
        "shutdown_grace_s = 1",
        "[router]",
        "probe_interval_s = 1",
    ]
    for tier_id, server in tiers.items():
        lines += ["[[router.tiers]]", f'id = "{tier_id}"', f'base_url = "{server.base_url}"']
        lines += [f'model = "{server.model}"', 'health_path = "/health"']
    lines += ["[router.model_routes]", *(f'{alias} = "{tier_id}"' for alias, tier_id in _ROUTES.items())]
    return "\n".join(lines) + "\n"


# -- the gateway's process --------------------------------------------------------------------------------------------


def _serve(config_path: str) -> int:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    return app.run(boot.load(config_path, os.environ), allow_volatile=True)


def _end_with_the_parent() -> None:
    """The pipe closes when whoever holds its other end is gone, also by SIGKILL."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
