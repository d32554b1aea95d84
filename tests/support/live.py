"""A gateway with a live authority, as a process of its own, over synthetic model servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.support.cli import ROOT, environment
from tests.support.gateway import CREDENTIALS, Gateway, gateway_process
from tests.support.synthetic import Synthetic, synthetic_thread

OPERATOR = {"authorization": f"Bearer {CREDENTIALS['OPERATOR_KEY']}"}
CLIENT = {"authorization": f"Bearer {CREDENTIALS['CLIENT_KEY']}"}


def boot_text(
    directory: Path, tiers: Mapping[str, Mapping[str, object]], routes: Mapping[str, str], **more: str
) -> str:
    """A boot file with an authority and a ledger in `directory`; `more` are lines for `[server]` and `[router]`."""
    lines = [
        "[server]",
        'listen = ["127.0.0.1:0"]',
        'auth_env = "CLIENT_KEY"',
        'operator_auth_env = "OPERATOR_KEY"',
        f'usage_path = "{directory}/usage.db"',
        f'route_state_path = "{directory}/routes.json"',
        more.get("server", ""),
        "[router]",
        f"probe_interval_s = {more.get('probe_interval_s', '1')}",
        "probe_timeout_s = 10",  # a single fresh probe decides, also on a machine that has much else to do
        more.get("router", ""),
    ]
    for tier_id, keys in tiers.items():
        lines += ["[[router.tiers]]", f'id = "{tier_id}"', 'health_path = "/health"']
        lines += [f"{key} = {_toml(value)}" for key, value in keys.items()]
    lines.append("[router.model_routes]")
    lines += [f'"{alias}" = "{tier_id}"' for alias, tier_id in routes.items()]
    lines.append(more.get("tail", ""))
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str | list) else str(value)


def private(path: Path) -> Path:
    """A directory that the authority's custody rules accept."""
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    return path


def run_verb(*arguments: str | os.PathLike[str], **environ: str) -> subprocess.CompletedProcess[str]:
    """`sndr router …`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "sndr.cli", "router", *map(os.fspath, arguments)],
        cwd=ROOT,
        env=environment(**{**CREDENTIALS, **environ}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def init(config: Path) -> None:
    done = run_verb("init", "--config", config, "--confirm", "--allow-volatile-filesystem")
    assert done.returncode == 0, done.stderr


@dataclass
class RefusedError(Exception):
    """A call that was refused."""

    status: int
    body: dict[str, Any]

    @property
    def code(self) -> str:
        code: str = self.body["code"]
        return code


class Operator:
    """The management API of one gateway; a refused call raises `RefusedError`."""

    def __init__(self, gateway: Gateway) -> None:
        self.url = gateway.url
        self.http = httpx.Client(base_url=self.url, headers=OPERATOR, timeout=60, trust_env=False)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        answer = self.http.request(method, path, json=body, headers=headers)
        if answer.status_code != 200:
            raise RefusedError(answer.status_code, answer.json())
        return answer.json()

    def view(self) -> Any:
        return self.call("GET", "/v1/admin/routes")

    def status(self) -> Any:
        return self.call("GET", "/v1/router/status")

    def preview(self, **body: object) -> Any:
        return self.call("POST", "/v1/admin/routes/preview", body)

    def apply(self, preview: Mapping[str, Any], **more: object) -> Any:
        body = {"preview_id": preview["preview_id"], "preview_sha256": preview["preview_sha256"], "confirm": True}
        return self.call("POST", "/v1/admin/routes/apply", {**body, **more})

    def change(self, apply: Mapping[str, object] | None = None, /, **body: object) -> Any:
        """Preview and apply."""
        return self.apply(self.preview(**body), **(apply or {}))

    def recover(self, action: str, apply: Mapping[str, object] | None = None, /, **more: object) -> Any:
        """Preview and apply a recovery of the transaction at hand."""
        return self.change(apply, op="recover", transaction_id=self.view()["transaction"]["id"], action=action, **more)


def refused(code: str, status: int, call: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
    """The body of the refusal that a call must end in."""
    try:
        answer = call(*arguments, **named)
    except RefusedError as refusal:
        assert (refusal.code, refusal.status) == (code, status), refusal.body
        return refusal.body
    raise AssertionError(f"not refused: {answer}")


class User:
    """A client of the inference paths."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, headers=CLIENT, timeout=60, trust_env=False)

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def ask(self, model: str, request_id: str | None = None, **members: object) -> httpx.Response:
        headers = {} if request_id is None else {"x-request-id": request_id}
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **members}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    @contextmanager
    def stream(self, model: str, tokens: int = 20, delay_ms: float = 20, **plan: object) -> Iterator[httpx.Response]:
        """An open stream; whoever reads it to the end gets every token."""
        body = {
            "model": model,
            "stream": True,
            "messages": [{"role": "user", "content": "hi"}],
            "synthetic": {"tokens": tokens, "token_delay_ms": delay_ms, **plan},
        }
        with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            yield response


def is_whole(text: str, tokens: int) -> bool:
    """Whether the text of a stream has every numbered token, once and in order, and its end."""
    seen = [int(number) for number in re.findall(r'"content":" t(\d+)"', text)]
    return seen == list(range(tokens)) and text.rstrip().endswith("data: [DONE]")


@dataclass
class Live:
    """A directory with a boot file and an authority, its model servers, and the gateways that serve it in turn."""

    directory: Path
    config: Path
    servers: Mapping[str, Synthetic]

    @contextmanager
    def serving(self, *arguments: str, **environ: str) -> Iterator[tuple[Gateway, Operator, User]]:
        with ExitStack() as stack:
            gateway = stack.enter_context(
                gateway_process(self.config, "--allow-volatile-filesystem", *arguments, **environ)
            )
            operator = stack.enter_context(Operator(gateway))
            user = stack.enter_context(User(operator.url))
            yield gateway, operator, user


@contextmanager
def live(
    tmp_path: Path,
    *,
    tiers: Mapping[str, Mapping[str, object]] | None = None,
    routes: Mapping[str, str] | None = None,
    spare: Sequence[str] = (),
    **more: str,
) -> Iterator[Live]:
    """Tiers `a` (m1) and `b` (n1) behind the aliases x and y, unless said otherwise; `spare` servers by model name."""
    directory = private(tmp_path / "live")
    with ExitStack() as stack:
        servers: dict[str, Synthetic] = {}
        named = {"a": {"model": "m1"}, "b": {"model": "n1"}} if tiers is None else tiers
        described = {}
        for tier_id, keys in named.items():
            servers[tier_id] = stack.enter_context(synthetic_thread(model=str(keys["model"])))
            described[tier_id] = {"base_url": servers[tier_id].base_url, **keys}
        for model in spare:
            servers[model] = stack.enter_context(synthetic_thread(model=model))
        config = directory / "gateway.toml"
        text = boot_text(directory, described, {"x": "a", "y": "b"} if routes is None else routes, **more)
        config.write_text(text)
        init(config)
        yield Live(directory, config, servers)


class Liar:
    """A model server whose model list is scripted: it says another thing each time it is asked.

    `script(n)` is asked for the n-th look at the list, from 1: names, or None for a 503. Health and chat always work.
    """

    def __init__(self, script: Callable[[int], Sequence[str] | None]) -> None:
        self.script = script
        self.looks = 0
        self.chats = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path != "/v1/models":
                    self.answer(200, {})
                    return
                outer.looks += 1
                names = outer.script(outer.looks)
                self.answer(503 if names is None else 200, {"object": "list", "data": [{"id": n} for n in names or ()]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                outer.chats += 1
                self.answer(200, {"id": "1", "object": "chat.completion", "model": "liar", "choices": []})

            def answer(self, status: int, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def __enter__(self) -> Liar:
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join(10)
        self.server.server_close()


def until(fact: Callable[[], Any], timeout_s: float = 20) -> Any:
    """Look until it is so; what it then says."""
    ends = time.monotonic() + timeout_s
    while not (found := fact()):
        assert time.monotonic() < ends, "it did not become so"
        time.sleep(0.02)
    return found
