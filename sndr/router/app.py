"""From a boot configuration to a gateway that serves, and back down again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import shlex
import signal
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sndr import __version__
from sndr.errors import AuthorityError, InputError, cannot_listen
from sndr.router.control.api import Management
from sndr.router.control.coordinator import Coordinator
from sndr.router.control.quiescence import Quiescence
from sndr.router.control.routes import Routes
from sndr.router.core.admission import Admission, TierRuntime
from sndr.router.core.listener import parse_listener
from sndr.router.core.readiness import Thresholds, TierReadiness
from sndr.router.gateway.endpoints import Client, Credentials, Gateway
from sndr.router.gateway.gate import DataGate
from sndr.router.gateway.journal import Form, Journal
from sndr.router.gateway.peers import Cors, Proxies
from sndr.router.gateway.published import Published, build_snapshot
from sndr.router.gateway.relay import Timeouts, Upstream
from sndr.router.metrics import Metrics
from sndr.router.net.flow import AfterReads, Ticker, Turns
from sndr.router.net.prober import Prober, Target
from sndr.router.net.resolver import Resolver
from sndr.router.net.server import Server, ServerLimits
from sndr.router.net.tls import Certificate, TlsListener, client_context
from sndr.router.net.unix_socket import UnixSocket
from sndr.router.net.upstream import Origin, UpstreamPool
from sndr.router.routing_table import load_table
from sndr.router.store import table_source
from sndr.router.store.admission import AdmissionFile
from sndr.router.store.authority import Authority, check_not_rolled_back, open_authority
from sndr.router.store.authority_writer import AuthorityWriter
from sndr.router.store.ledger import UsageLedger, UsageStore
from sndr.router.store.spool import TemporarySpool
from sndr.router.store.writer import Worker
from sndr.router.wire.routing_table import no_table, unbound

if TYPE_CHECKING:
    from collections.abc import Collection

    from sndr.router.core.projection import Tier
    from sndr.router.core.receipt import Record, Revision
    from sndr.router.ports import EventLog, Ledger, ManagementApi
    from sndr.router.wire.boot import BootConfig
    from sndr.router.wire.routing_table import TableState

__all__ = ["App", "run"]

LOG_FLUSH_S: Final = 0.25
CUT_S: Final = 1.0
"""How long a client may take to read the event that says its stream was cut."""
LEDGER_CLOSE_S: Final = 10.0
"""How long the end may wait for the ledger's disk; rows that are not durable then stay unresolved."""
AUTHORITY_CLOSE_S: Final = 15.0
"""How long the end may wait for a transaction to stop, and then for its file; the next start looks at what is there."""
ADMISSION_CLOSE_S: Final = 10.0
"""How long the end may wait for a write of operator quiescence; the caller of that write has no answer yet."""
OPERATOR_KEY_LEAST: Final = 16
"""Characters of an operator credential that may change routes."""
HEAP_KEPT_BYTES: Final = 4_194_304
DESCRIPTOR_RESERVE: Final = 64
"""Descriptors kept for files, probes and listeners."""


class App:
    """A gateway within a running loop.

    Attributes:
        gateway: The data plane.
        gate: Its state, for the control plane.
        prober: Readiness.
        metrics: Counters.
        addresses: What is listened on, with real ports, once started.
    """

    def __init__(
        self,
        config: BootConfig,
        *,
        log_descriptor: int | None = None,
        log_form: Form = "json",
        ledger: Ledger | None = None,
        record: Record | None = None,
        table: TableState | None = None,
    ) -> None:
        """Make it; nothing is listened on yet.

        Args:
            table: The routing table, as it was read before anything was locked; None is none.
            log_form: Of the log's lines.
            record: What the live authority says; None serves the boot file's routes.

        Raises:
            InputError: The certificate or the decision log cannot be used.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._config = config
        self._pools: dict[tuple[bool, str, int], UpstreamPool] = {}
        self._tls: ssl.SSLContext | None = None
        self._listeners: list[asyncio.Server | TlsListener] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._unix: list[UnixSocket] = []
        self.addresses: list[str] = []
        self.started_at = time.time()
        self._started = loop.time()
        self.state = "starting"
        self.ticker = Ticker(loop)
        self._turns = Turns(loop)
        self._resolver = Resolver()
        server = config.server
        self.certificate: Certificate | None = None
        if config.paths.tls_cert is not None and config.paths.tls_key is not None:
            self.certificate = Certificate(config.paths.tls_cert, config.paths.tls_key)
        self.decisions = None if config.paths.decision_log is None else _open_log(config.paths.decision_log)
        self.journal = Journal(log_descriptor, form=log_form)
        self.admission = Admission()
        purposes = config.purposes
        self.metrics = Metrics(
            [*config.projection.aliases, *(purpose.name for purpose in purposes)],
            [*config.projection.tiers, *(purpose.id for purpose in purposes)],
        )
        self.prober = Prober(
            interval_s=config.router.probe_interval_s,
            timeout_s=config.router.probe_timeout_s,
            thresholds=Thresholds(config.router.probe_failures, config.router.probe_successes),
            secret=config.secrets.get,
            wall_clock=time.time,
            on_change=self._readiness_changed,
            on_probe=lambda tier_id, seen: self.metrics.probed(tier_id, seen.reason.value),
            resolver=self._resolver,
        )
        self.table = table = no_table() if table is None else table
        self._presets = table.presets
        keys = config.router.routing_table
        self.table_view = table_source.TableView(
            table, config.paths.routing_table, 0 if keys is None else keys.max_bytes
        )
        self.authority_id = None if record is None else record.authority_id
        snapshot = build_snapshot(
            config.projection if record is None else record.current.projection,
            self.admission,
            self.upstream,
            queue_limit=config.router.queue_limit,
            authority_id=self.authority_id,
            route_revision=None if record is None else record.current.route_revision,
            effective_route_sha256=None if record is None else record.current.effective_route_sha256,
            presets=self._presets,
        )
        self.published = Published(snapshot)
        self.gate = DataGate(self.published, self.admission, self.connections)
        self.gate.purposes = {
            (purpose.kind, purpose.name): TierRuntime(
                self.admission,
                purpose.tier,
                tier_id=purpose.id,
                generation=1,
                queue_limit=config.router.queue_limit,
                upstream=self.upstream(purpose.tier, is_probed=False),
            )
            for purpose in purposes
        }
        self.ledger = ledger
        self._spools = Worker("sndr-spool")
        self.gateway = Gateway(
            loop,
            gate=self.gate,
            ticker=self.ticker,
            readiness=self.prober,
            credentials=_credentials(config),
            ledger=ledger,
            metrics=self.metrics,
            journal=self.journal if log_descriptor is not None else None,
            purposes=self.gate.purposes,
            spool=TemporarySpool,
            spool_thread=self._spools,
            max_body_bytes=config.server.max_body_bytes,
            receipts=config.router.receipt_headers,
            proxies=Proxies(server.trusted_proxies) if server.trusted_proxies else None,
            cors=Cors(server.cors.allow_origins) if server.cors.allow_origins else None,
            decisions=self.decisions,
            renames=config.router.response_model == "alias",
            table=table.table,
        )
        self.server = Server(
            loop,
            self.gateway,
            ServerLimits(
                max_head_bytes=config.server.max_head_bytes,
                header_timeout_s=config.server.header_timeout_s,
                body_timeout_s=config.server.body_timeout_s,
                body_total_s=config.router.total_timeout_s,
                keepalive_idle_s=config.server.keepalive_idle_s,
                max_connections=_connection_limit(config.server.max_connections),
            ),
            self.ticker,
            AfterReads(loop),
        )

    def publish(self, revision: Revision, replaced: Collection[str]) -> None:
        """Make a revision the one that new requests are admitted under; see `ports.Publisher`."""
        snapshot = build_snapshot(
            revision.projection,
            self.admission,
            self.upstream,
            queue_limit=self._config.router.queue_limit,
            previous=self.published.snapshot,
            authority_id=self.authority_id,
            route_revision=revision.route_revision,
            effective_route_sha256=revision.effective_route_sha256,
            replaced=replaced,
            presets=self._presets,
        )
        self.gate.publish(snapshot)
        self.prober.sync(self.targets())
        self._forget_pools()

    def _forget_pools(self) -> None:
        """Close what leads to servers that no tier names any more; who still uses one keeps it until its own end."""
        runtimes = [one for tier_id in self.published.snapshot.runtimes for one in self.gate.runtimes_of(tier_id)]
        upstreams = [runtime.upstream for runtime in (*runtimes, *self.gate.purposes.values())]
        named = {id(upstream.pool) for upstream in upstreams if isinstance(upstream, Upstream)}
        for key, pool in list(self._pools.items()):
            if id(pool) not in named and not pool.active:
                pool.close()
                del self._pools[key]

    def use_management(self, management: ManagementApi) -> None:
        """Let the control plane answer the management paths."""
        self.gateway.management = management

    @property
    def listen(self) -> list[str]:
        """Addresses as bound."""
        return list(self.addresses)

    @property
    def uptime_s(self) -> int:
        """Whole seconds since the process made the application."""
        return int(self._loop.time() - self._started)

    @property
    def dropped_log_lines(self) -> dict[str, int]:
        """Lines that nobody took, by log."""
        dropped = {"requests": self.journal.dropped}
        if self.decisions is not None:
            dropped["decisions"] = self.decisions.dropped
        return dropped

    def upstream(self, tier: Tier, *, is_probed: bool = True) -> Upstream:
        """What the data plane needs to talk to a tier's server."""
        parts = urlsplit(tier.base_url)
        is_tls = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if is_tls else 80)
        if is_tls and self._tls is None:
            self._tls = client_context()
        key = (is_tls, host, port)
        pool = self._pools.get(key)
        if pool is None:
            origin = Origin(host, port, tls=self._tls if is_tls else None)
            pool = self._pools[key] = UpstreamPool(self._loop, origin, self.ticker, self._turns, self._resolver)
        router = self._config.router
        return Upstream(
            tier,
            pool,
            host=parts.netloc,
            prefix=parts.path,
            credential=self._config.secrets.get(tier.auth_env),
            timeouts=Timeouts(
                tier,
                {
                    "admission": router.admission_timeout_s,
                    "first_byte": router.first_byte_timeout_s,
                    "idle": router.idle_timeout_s,
                    "total": router.total_timeout_s,
                },
            ),
            is_probed=is_probed,
        )

    def connections(self) -> Mapping[str, int]:
        """Open connections by side."""
        return {
            "client": len(self.server.connections),
            "client_handshake": len(self.server.handshaking),
            "upstream_active": sum(len(pool.active) for pool in self._pools.values()),
            "upstream_idle": sum(pool.idle for pool in self._pools.values()),
        }

    def targets(self) -> list[Target]:
        """What is to be probed under the current snapshot."""
        snapshot = self.published.snapshot
        return [Target(runtime.tier_id, runtime.generation, runtime.spec) for runtime in snapshot.runtimes.values()]

    async def start(self) -> None:
        """Probe every tier once, so that the first request finds the truth, then listen.

        Raises:
            InputError: An address cannot be listened on.
        """
        self.journal.event("started", version=__version__, config_sha256=self._config.config_sha256)
        self._show_table()
        self.prober.sync(self.targets())
        self._spawn(self.prober.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * self._config.router.probe_timeout_s + 1):
                await self.prober.first_round()
        backlog = self._config.server.backlog
        for listener in self._config.listeners:
            try:
                if listener.path is not None:
                    bound = UnixSocket(listener.path)
                    self._unix.append(bound)
                    server: asyncio.Server | TlsListener = await self._loop.create_unix_server(
                        self.server.protocol, sock=bound.socket, backlog=backlog
                    )
                    self.addresses.append(listener.text)
                else:
                    assert listener.host is not None
                    host, port = listener.host, listener.port or 0
                    if self.certificate is None:
                        server = await self._loop.create_server(self.server.protocol, host, port, backlog=backlog)
                    else:
                        server = await TlsListener.bind(
                            self._loop,
                            self.server,
                            self.certificate,
                            host,
                            port,
                            backlog=backlog,
                            timeout_s=self._config.server.header_timeout_s,
                        )
                    self.addresses.extend(_address(one) for one in server.sockets)
            except OSError as error:
                await self.stop(0)
                raise cannot_listen(listener.text, error) from error
            self._listeners.append(server)
        self._spawn(self._flush_log())
        self.state = "serving"
        self.journal.event("listening", addresses=self.addresses)

    def _show_table(self) -> None:
        """Say once what the routing table is, what is wrong with it, and which cells nobody measured."""
        state, table = self.table, self.table.table
        if state.source is None and not self.published.snapshot.families:
            return
        self.journal.event(
            "routing_table",
            state=state.state,
            content_sha256=state.sha256,
            rules=len(table.routing_rules),
            presets=len(table.presets),
        )
        for warning in table.warnings:
            self.journal.event("routing_table_warning", level="warning", detail=warning)
        if table.degraded is None and state.findings:
            self.journal.event("routing_table_findings", level="warning", detail=[*map(str, state.findings)])
        if table.coverage_gaps:
            gaps = [{"family": gap.model_family, "gap": gap.missing_cell} for gap in table.coverage_gaps]
            self.journal.event("coverage_gaps", gaps=gaps)
        for finding in unbound(self.published.snapshot.projection, table):
            self.journal.event("routing_table_warning", level="warning", detail=finding)

    async def stop(self, grace_s: float) -> None:
        """Refuse new work at once, let running requests finish, cut the rest when the time is over."""
        self.state = "stopping"
        self.gateway.stopping = True
        self.journal.event("stopping", in_flight=len(self.gateway.exchanges))
        for listener in self._listeners:
            listener.close()
        for bound in self._unix:
            bound.remove()
        self.server.stop()
        await self.server.drained(grace_s)
        cut = self.gateway.cut_all()
        await self.server.drained(CUT_S)
        for connection in tuple(self.server.connections):
            connection.abort()
        for pool in self._pools.values():
            pool.close()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await asyncio.sleep(0)
        self.ticker.close()
        await _within(CUT_S, self._spools.close())
        self.journal.event("stopped", cut=cut)
        await asyncio.to_thread(self.journal.close)
        if self.decisions is not None:
            await asyncio.to_thread(self.decisions.close)

    def reload(self) -> None:
        """Open the decision log's file again, and read certificate and key; what cannot be had stays as it is."""
        done: dict[str, object] = {}
        if self.decisions is not None:
            try:
                self.decisions.reopen()
                done["decision_log"] = "reopened"
            except OSError as error:
                done["decision_log"] = f"kept: {error.strerror}"
        if self.certificate is not None:
            try:
                self.certificate.reload()
                done["tls"] = "reloaded"
            except InputError as error:
                done["tls"] = f"kept: {error.message}"
        kept = any(str(outcome).startswith("kept") for outcome in done.values())
        self.journal.event("reloaded", level="error" if kept else "info", **done)

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _flush_log(self) -> None:
        while True:
            await asyncio.sleep(LOG_FLUSH_S)
            self.journal.flush()
            if self.decisions is not None:
                self.decisions.flush()

    def _readiness_changed(self, target: Target, state: TierReadiness) -> None:
        self.journal.event(
            "tier_ready" if state.ready else "tier_unready",
            level="info" if state.ready else "warning",
            tier=target.tier_id,
            generation=target.generation,
            reason=state.reason.value,
        )


def _credentials(config: BootConfig) -> Credentials:
    clients: list[tuple[str, Client]] = []
    for entry in config.clients:
        secret = config.secrets.get(entry.auth_env)
        if secret is not None:
            clients.append((secret, Client(entry.id, entry.aliases, entry.max_concurrency)))
    return Credentials(
        clients,
        operator=config.secrets.get(config.server.operator_auth_env),
        metrics=config.secrets.get(config.server.metrics_auth_env),
        anonymous=Client("default", None),
    )


def _connection_limit(wanted: int) -> int:
    """Client connections that leave a descriptor for each upstream connection and some for everything else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * wanted + DESCRIPTOR_RESERVE
    if soft != resource.RLIM_INFINITY and soft < need:
        raised = need if hard == resource.RLIM_INFINITY else min(need, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
            soft = max(soft, raised)
        if soft < need:
            return max(8, (soft - DESCRIPTOR_RESERVE) // 2)
    return wanted


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _open_log(path: str) -> Journal:
    try:
        return Journal.to_file(path)
    except OSError as error:
        raise InputError("decision_log_unusable", f"server.decision_log_path: {path}: {error.strerror}") from error


def _notify(state: str) -> None:
    """Tell the service manager, where there is one."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path or path[0] not in "/@":
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect("\0" + path[1:] if path[0] == "@" else path)
        sock.sendall(state.encode())


def _reload(app: App) -> None:
    _notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
    app.reload()
    _notify("READY=1")


class _FaultLog:
    """The loop's exception handler: a log line per kind of fault and second, never a flood."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last: dict[str, float] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        kind = type(error).__name__ if error is not None else "message"
        now = loop.time()
        if now - self._last.get(kind, -1e9) < 1.0:
            return
        self._last[kind] = now
        where = ""
        if error is not None and error.__traceback__ is not None:
            frame = error.__traceback__
            while frame.tb_next is not None:
                frame = frame.tb_next
            where = f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}"
        self._journal.event("internal_error", level="error", kind=kind, where=where)


class _SystemClock:
    """This machine's two clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def elapsed_ms(self) -> int:
        # CLOCK_BOOTTIME goes on while the machine sleeps; elsewhere the monotonic clock is the best there is.
        return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


class _Files:
    """What a gateway keeps on disk, taken before it listens and let go of when it ends."""

    def __init__(self, config: BootConfig, *, allow_volatile: bool) -> None:
        """Open them: the authority first, as its checks say, and the ledger within its last one.

        Raises:
            AuthorityError: A start-up code; nothing is held any more.
        """
        self._config = config
        self.usage: UsageStore | None = None
        self.authority: Authority | None = None
        if config.paths.route_state is None:
            if config.paths.usage is not None:
                self.usage = UsageStore.open(config.paths.usage)
            return
        _check_operator(config)
        try:
            self.authority = open_authority(
                config.paths.route_state,
                config.projection,
                cross_check=self._cross_check,
                allow_volatile=allow_volatile,
                init_command=f"sndr router init --config {shlex.quote(config.source)} --confirm",
            )
        except BaseException:
            self._let_go()
            raise

    def _let_go(self) -> None:
        if self.usage is not None:
            self.usage.close()

    def _cross_check(self, record: Record) -> None:
        if self._config.paths.usage is None:
            raise AuthorityError(
                "usage_store_required", "server.route_state_path needs server.usage_path: a drain counts its rows"
            )
        self.usage = UsageStore.open(self._config.paths.usage, may_create=False)
        check_not_rolled_back(record, self.usage.max_route_revision(record.authority_id))


def _check_operator(config: BootConfig) -> None:
    """Changing routes needs a credential of its own; that no caller shares it, the boot file's checks have seen to.

    Raises:
        AuthorityError: `route_operator_credential_missing` or `route_operator_credential_weak`.
    """
    name = config.server.operator_auth_env
    secret = config.secrets.get(name)
    if name is None or not secret:
        raise AuthorityError(
            "route_operator_credential_missing", "server.route_state_path needs server.operator_auth_env"
        )
    if len(secret) < OPERATOR_KEY_LEAST:
        raise AuthorityError(
            "route_operator_credential_weak",
            f"the environment variable {name} must hold at least {OPERATOR_KEY_LEAST} characters",
        )


async def _serve(
    config: BootConfig,
    table: TableState,
    attach: Callable[[App], None] | None,
    *,
    allow_volatile: bool,
    log_form: Form,
) -> int:
    loop = asyncio.get_running_loop()
    files = _Files(config, allow_volatile=allow_volatile)
    ledger: UsageLedger | None = None
    authority: AuthorityWriter | None = None
    if files.usage is not None:
        ledger = UsageLedger(
            files.usage,
            on_failure=lambda reason, count: app.journal.event(
                "ledger_failure", level="error", reason=reason, count=count
            ),
        )
    if files.authority is not None:
        authority = AuthorityWriter(files.authority, config.projection)
    record = None if files.authority is None else files.authority.record
    store = None if config.paths.admission_state is None else AdmissionFile(config.paths.admission_state)
    app = App(config, log_descriptor=sys.stderr.fileno(), log_form=log_form, ledger=ledger, record=record, table=table)
    loop.set_exception_handler(_FaultLog(app.journal))
    try:
        return await _serve_until_told(app, config, attach, authority, store)
    finally:
        parts = ((authority, AUTHORITY_CLOSE_S), (ledger, LEDGER_CLOSE_S), (store, ADMISSION_CLOSE_S))
        await asyncio.gather(*(_within(limit_s, part.close()) for part, limit_s in parts if part is not None))


async def _within(limit_s: float, closing: Coroutine[Any, Any, None]) -> None:
    """A disk that stalls must not hold the exit for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await closing


async def _serve_until_told(
    app: App,
    config: BootConfig,
    attach: Callable[[App], None] | None,
    authority: AuthorityWriter | None,
    store: AdmissionFile | None,
) -> int:
    loop = asyncio.get_running_loop()

    def log(event: str, fields: Mapping[str, object]) -> None:
        level = {"attention": "warning", "internal_error": "error"}.get(event, "info")
        app.journal.event(event, level=level, **fields)
        if app.decisions is not None:
            app.decisions.line(event, **fields)

    def audit(event: str, fields: Mapping[str, object]) -> None:
        if app.decisions is not None:
            app.decisions.line(event, **fields)

    quiescence = Quiescence(app.gate, app.prober, log, store)
    if store is not None:
        quiescence.restore(store.load())
    management = Management(
        config=config,
        gate=app.gate,
        prober=app.prober,
        ledger=app.ledger,
        metrics=app.metrics,
        quiescence=quiescence,
        process=app,
        routing_table=app.table_view,
        audit=None if app.decisions is None else audit,
    )
    coordinator = None if authority is None else _go_live(app, config, authority, management, log)
    app.use_management(management)
    if attach is not None:
        attach(app)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, _reload, app)
    await app.start()
    _notify("READY=1")
    await stop.wait()
    _notify("STOPPING=1")
    quiescence.stop()
    stopping = None if coordinator is None else asyncio.ensure_future(coordinator.stop())
    await app.stop(config.server.shutdown_grace_s)
    if stopping is not None:
        await asyncio.wait({stopping}, timeout=AUTHORITY_CLOSE_S)
    return 0


def _go_live(
    app: App, config: BootConfig, authority: AuthorityWriter, management: Management, log: EventLog
) -> Coordinator:
    """Put the authority in charge of the routes: holds in force and routes published, before anything listens.

    Raises:
        AuthorityError: It cannot be served.
    """
    assert app.ledger is not None
    clock = _SystemClock()
    coordinator = Coordinator(
        authority=authority,
        gate=app.gate,
        publisher=app,
        prober=app.prober,
        ledger=app.ledger,
        clock=clock,
        log=log,
    )
    coordinator.open(authority.record)
    others = {f"the {entry.kind} model {entry.model}": entry.base_url for entry in config.router.purpose_models}
    others |= {f"the {entry.kind} route {entry.model}": entry.base_url for entry in config.router.audio_routes}
    management.use_routes(
        Routes(
            coordinator=coordinator,
            gate=app.gate,
            ledger=app.ledger,
            clock=clock,
            new_id=lambda: str(uuid.uuid4()),
            run_id=str(uuid.uuid4()),
            tier_view=management.tier_view,
            listeners=lambda: [parse_listener(address) for address in app.addresses],
            others=others,
            own_hosts=config.own_hosts,
            table=app.table,
        )
    )
    return coordinator


def run(
    config: BootConfig,
    *,
    attach: Callable[[App], None] | None = None,
    allow_volatile: bool = False,
    log_form: Form = "json",
) -> int:
    """Serve until SIGTERM or SIGINT; a second signal ends the process at once.

    Args:
        config: The boot configuration.
        attach: Called with the application before it listens.
        allow_volatile: Accept an authority on a file system in memory; tests only.
        log_form: Of the log on standard error.

    Returns:
        0 after an orderly stop.

    Raises:
        InputError: Something in the configuration cannot be had (an address in use).
        AuthorityError: The authority or the ledger is missing, unsafe or held by another process.
    """
    table = load_table(config)
    if table.fatal:
        raise InputError("routing_table_invalid", table.table.degraded or "the routing table cannot be used")
    # A request makes some hundred containers and no cycle that outlives it: look for cycles less often, and not among
    # what start-up has made.
    gc.freeze()
    # glibc returns free memory at the end of its heap to the system beyond 128 KiB, and asks for it again with the next
    # large body. Once a block of its own has been freed it keeps twice that block's size. The pages are never touched.
    bytearray(HEAP_KEPT_BYTES)
    gc.set_threshold(10_000, 20, 20)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(config, table, attach, allow_volatile=allow_volatile, log_form=log_form))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (`sndr[fast]`), else asyncio's own loop."""
    if os.environ.get("SNDR_LOOP") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
