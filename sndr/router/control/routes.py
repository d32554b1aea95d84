"""The management API of the live routes: previews, applies, and what can be seen.

A preview asks the machine itself, with the very command that an apply would give it, whether that is legal now; nothing
is performed. So a preview never promises what an apply would refuse for a reason that was known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sndr.errors import AuthorityError, ControlError, RequestError
from sndr.router.control.coordinator import Coordinator, identity_failure, is_exact
from sndr.router.control.previews import PREVIEW_BYTES_MAX, Preview, PreviewCache
from sndr.router.core import effects as fx
from sndr.router.core import receipt as rc
from sndr.router.core.effects import Code
from sndr.router.core.evidence import TRUST
from sndr.router.core.exclusions import exclusions
from sndr.router.core.family import serving
from sndr.router.core.listener import Listener
from sndr.router.core.projection import (
    Finding,
    Projection,
    ProjectionError,
    canonical,
    changed_tiers,
    diff,
    sha256,
    thaw,
    tier_of,
)
from sndr.router.core.proposal import propose
from sndr.router.core.recovery import Action, Standing
from sndr.router.core.transaction import Machine, State, next_actions, step
from sndr.router.ports import Clock, Gate, Ledger
from sndr.router.wire import operator_api as wire
from sndr.router.wire.record import (
    content_sha256,
    evidence_document,
    fence_document,
    format_instant,
    parse_change,
    parse_evidence,
    receipt_document,
    revision_document,
)
from sndr.router.wire.routing_table import TableState, unbound

__all__ = ["ChangeRefusedError", "Routes"]

LOOK_S: Final = 0.25
DISK_S: Final = 10.0
"""How long an answer may wait for the authority's disk before it says busy."""

_CHECKED: Final = {
    "writable": "consistent",
    "authority_changed_externally": "changed_externally",
    "authority_lock_lost": "lock_lost",
    "authority_path_moved": "path_moved",
    "authority_write_uncertain": "uncertain",
}
_ALL_STEPS: Final = ("hold", "drain", "commit", "publish", "verify", "readmit")
_STATE_CODES: Final = frozenset(
    {
        Code.TRANSACTION_IN_PROGRESS,
        Code.RECOVERY_REQUIRED,
        Code.MANAGEMENT_BUSY,
        Code.AUTHORITY_READ_ONLY,
        Code.SHUTTING_DOWN,
    }
)


class ChangeRefusedError(ControlError):
    """A change that may not be made; `findings` names every reason, `code` is the first one's."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__(findings[0].code, "; ".join(f"{one.pointer or '/'}: {one.message}" for one in findings))
        self.findings = tuple(findings)


class _Plan:
    """What one preview is about, before its checks.

    Attributes:
        command: With a call that is bound to now.
        proposed: The routes that it leads to; None when it changes none.
        scope: Tiers that are or stay held.
        transaction_id: The one begun or gone on with.
        will: Steps that an apply takes.
    """

    __slots__ = ("command", "proposed", "scope", "transaction_id", "will")

    def __init__(
        self,
        command: fx.Command,
        transaction_id: str | None,
        *,
        proposed: Projection | None = None,
        scope: Sequence[str] = (),
        will: Sequence[str] = (),
    ) -> None:
        self.command = command
        self.transaction_id = transaction_id
        self.proposed = proposed
        self.scope = tuple(scope)
        self.will = tuple(will)


def _known(machine: Machine) -> rc.Receipt | None:
    """The transaction that may be told: one that is only about to be begun is nobody's to see until it is durable."""
    if machine.record is not None and machine.standing is Standing.IDLE and machine.state is not State.IDLE:
        return machine.record.transaction
    return machine.receipt


class Routes:
    """Answers `/v1/admin/routes*` with JSON documents; refusals are `ControlError` and `RequestError`."""

    def __init__(
        self,
        *,
        coordinator: Coordinator,
        gate: Gate,
        ledger: Ledger,
        clock: Clock,
        new_id: Callable[[], str],
        run_id: str,
        tier_view: Callable[[str], dict[str, Any]],
        listeners: Callable[[], Collection[Listener]],
        others: Mapping[str, str],
        own_hosts: frozenset[str],
        table: TableState,
    ) -> None:
        """Make the API of a coordinator.

        Args:
            new_id: A fresh UUID.
            run_id: Identity of this process; a preview is bound to it.
            tier_view: A tier as the operator sees it.
            listeners: The gateway's own addresses, as bound.
            others: Name -> URL of what is served outside the routes.
            own_hosts: Names and addresses of this machine.
            table: The routing table, for family aliases.
        """
        self._coordinator = coordinator
        self._gate = gate
        self._ledger = ledger
        self._clock = clock
        self._new_id = new_id
        self._run_id = run_id
        self._tier_view = tier_view
        self._listeners = listeners
        self._others = others
        self._own_hosts = own_hosts
        self._table = table.table
        self._presets = table.presets
        self._previews = PreviewCache(clock)

    @property
    def writes(self) -> Mapping[str, int]:
        """Durable writes by result."""
        return self._coordinator.writes

    # -- what can be seen ---------------------------------------------------------------------------------------------

    def standing(self) -> dict[str, Any]:
        """Members that every refusal carries."""
        machine = self._coordinator.machine
        receipt = _known(machine)
        return {
            "authority_id": None if machine.record is None else machine.record.authority_id,
            "transaction_id": None if receipt is None else receipt.id,
            "state": machine.standing.value,
            "held": bool(machine.gated),
            "attention": None if machine.attention is None else machine.attention.code.value,
            "next": list(next_actions(machine)),
        }

    def status(self) -> dict[str, Any]:
        """`route_authority` of the router's status; the last receipt included."""
        machine = self._coordinator.machine
        standing = self.standing()
        receipt = _known(machine)
        return {
            "authority_id": standing["authority_id"],
            "state": standing["state"],
            "attention": standing["attention"],
            "transaction_id": standing["transaction_id"],
            "held_tiers": list(machine.gated),
            "writable": self._coordinator.condition == "writable",
            "next": standing["next"],
            "last_receipt": None
            if receipt is None
            else self._receipt(replace(machine, receipt=receipt), replayed=False),
        }

    def view(self) -> dict[str, Any]:
        """`GET /v1/admin/routes`; from memory, whatever the disk does."""
        machine = self._coordinator.machine
        record = machine.record
        assert record is not None
        assert machine.published is not None
        receipt = _known(machine)
        return {
            "object": "route.view",
            "authority_id": record.authority_id,
            "route_revision": machine.published.route_revision,
            "effective_route_sha256": machine.published.effective_route_sha256,
            "boot": {"projection_sha256": record.boot_sha256},
            "current": revision_document(record.current),
            "previous": None if record.previous is None else revision_document(record.previous),
            "transaction": None if receipt is None else receipt_document(receipt),
            "tiers": [self._tier(tier_id) for tier_id in self._gate.snapshot.runtimes],
            "state": machine.standing.value,
            "held_tiers": list(machine.gated),
            "attention": None if machine.attention is None else machine.attention.code.value,
            "next": list(next_actions(machine)),
            "previews": self._previews.live,
            "writable": self._coordinator.condition == "writable",
            "condition": self._coordinator.condition,
            "last_write": self._coordinator.last_write,
            "write_seq": record.write_seq,
        }

    def _tier(self, tier_id: str) -> dict[str, Any]:
        generations = {str(one.generation): one.leases for one in self._gate.runtimes_of(tier_id)}
        unresolved = self._ledger.unresolved((tier_id,)).total
        return {**self._tier_view(tier_id), "leases": generations, "unresolved": unresolved}

    async def check(self) -> dict[str, Any]:
        """`GET /v1/admin/routes/check`; `visible` is what a reassert would write again, null without a doubt."""
        condition = await self._from_disk(self._coordinator.check())
        visible: dict[str, Any] | None = None
        if condition == "authority_write_uncertain":
            record: rc.Record = await self._from_disk(self._coordinator.visible())
            receipt = record.transaction
            visible = {
                "transaction_id": None if receipt is None else receipt.id,
                "state": None if receipt is None else receipt.state.value,
                "route_revision": record.current.route_revision,
                "write_seq": record.write_seq,
            }
        return {
            "object": "route.check",
            "result": _CHECKED[condition],
            "writable": condition == "writable",
            "visible": visible,
        }

    async def _from_disk(self, answer: Any) -> Any:
        try:
            async with asyncio.timeout(DISK_S):
                return await answer
        except TimeoutError:
            raise ControlError("management_busy", "the disk of the authority does not answer") from None
        except OSError as error:
            raise ControlError("management_busy", "the authority file could not be read now") from error
        except AuthorityError as error:
            raise ControlError(error.code, error.message) from error

    async def watch_drain(self, timeout_s: int) -> dict[str, Any]:
        """`GET /v1/admin/routes/drain`: until the scope is idle, something else happens, or the time is over."""
        receipt = self._coordinator.machine.receipt
        if receipt is None or not self._coordinator.machine.gated:
            raise ControlError("no_transaction", "no transaction is open")
        ends_ms = self._clock.elapsed_ms() + timeout_s * 1000
        while True:
            machine = self._coordinator.machine
            if machine.state is State.STOPPED:
                raise ControlError("shutting_down", "the gateway is stopping")
            if machine.receipt is None or machine.receipt.id != receipt.id:
                raise ControlError("transaction_changed", "the transaction is another one now")
            scope = machine.receipt.scope
            leases = {tier_id: self._gate.leases(tier_id) for tier_id in scope}
            rows = self._ledger.unresolved(scope)
            complete = not any(leases.values()) and not rows.total
            left_s = (ends_ms - self._clock.elapsed_ms()) / 1000
            if complete or left_s <= 0 or not machine.gated:
                drain = receipt_document(machine.receipt)["drain"]
                return {
                    "object": "route.drain",
                    "transaction_id": receipt.id,
                    "state": machine.receipt.state.value,
                    "complete": complete,
                    "timed_out": not complete and bool(machine.gated),
                    "leases": leases,
                    "unresolved": rows.total,
                    "unassociated": rows.unassociated,
                    "drain": drain,
                }
            await asyncio.sleep(min(LOOK_S, left_s))

    # -- previews -----------------------------------------------------------------------------------------------------

    async def preview(self, body: bytes) -> dict[str, Any]:
        """`POST /v1/admin/routes/preview`; changes nothing.

        Raises:
            RequestError, ControlError: The change cannot be read, is not legal now, or is excluded.
        """
        wanted = wire.parse_preview(body)
        await self._coordinator.calm()
        visible: rc.Record | None = None
        if isinstance(wanted, wire.Recover) and wanted.action == "reassert":
            visible = await self._from_disk(self._coordinator.visible())
        machine = self._coordinator.machine
        plan = self._plan(machine, wanted, visible)
        refusal = _refusal(machine, plan.command)
        if refusal is not None:
            raise ControlError(refusal.value, "the machine would refuse it now")
        checks = await self._check(machine, plan)
        return self._present(machine, wanted, plan, checks)

    def _plan(self, machine: Machine, wanted: wire.PreviewBody, visible: rc.Record | None) -> _Plan:
        record = machine.record
        assert record is not None
        assert machine.published is not None
        call = fx.Call(
            id="",
            preview_sha256="0" * 64,
            base=machine.published.fence,
            write_seq=record.write_seq,
            attention_seq=machine.attention_seq,
            recovers=isinstance(wanted, wire.Recover),
            at_ms=self._clock.wall_ms(),
        )
        match wanted:
            case wire.AliasUpdate():
                return self._plan_aliases(machine, call, wanted)
            case wire.TierReplacement():
                return self._plan_replacement(machine, call, wanted)
            case wire.Rollback():
                return self._plan_rollback(machine, call, wanted)
            case wire.Resume():
                return self._plan_resume(machine, call, wanted.transaction_id, wanted.evidence)
            case wire.Cancel():
                command = fx.Cancel(call, wanted.transaction_id)
                return _Plan(command, wanted.transaction_id, scope=machine.gated, will=("verify", "readmit"))
            case _:
                return self._plan_recovery(machine, call, wanted, visible)

    def _plan_aliases(self, machine: Machine, call: fx.Call, wanted: wire.AliasUpdate) -> _Plan:
        _require_idle(machine, call)
        assert machine.record is not None
        named = {name.strip().lower(): _filled(target) for name, target in wanted.aliases.items()}
        change = _change({"kind": "alias_update", "aliases": named})
        assert isinstance(change, rc.AliasUpdate)
        proposed = _proposed(machine.record, change)
        command = fx.UpdateAliases(call, self._new_id(), change, sha256(proposed))
        return _Plan(command, command.transaction_id, proposed=proposed, will=("commit", "publish"))

    def _plan_replacement(self, machine: Machine, call: fx.Call, wanted: wire.TierReplacement) -> _Plan:
        _require_idle(machine, call)
        record = machine.record
        assert record is not None
        change = _change({"kind": "tier_replacement", "tiers": wanted.tiers})
        assert isinstance(change, rc.TierReplacement)
        proposed = _proposed(record, change, managed=wanted.managed)
        scope = tuple(sorted(change.tiers))
        self._exclude(record.current.projection, proposed, scope)
        prepares = wanted.mode == "prepare"
        command = fx.ReplaceTiers(call, self._new_id(), change, sha256(proposed), wanted.managed, prepares)
        will = _ALL_STEPS[:2] if prepares else _ALL_STEPS
        return _Plan(command, command.transaction_id, proposed=proposed, scope=scope, will=will)

    def _plan_rollback(self, machine: Machine, call: fx.Call, wanted: wire.Rollback) -> _Plan:
        _require_idle(machine, call)
        record = machine.record
        assert record is not None
        proposed = _proposed(record, rc.Rollback())
        current, new_id = record.current.projection, self._new_id()
        scope = changed_tiers(current, proposed)
        if wanted.accept_unready:
            raise ControlError("not_committed", "working tiers are not traded for unproven ones")
        if not scope:
            if proposed == current:
                raise ControlError("no_effective_change", "the previous routes are the current ones")
            if wanted.mode == "prepare":
                raise ControlError("invalid_change", "only aliases differ; there is nothing to hold")
            update = fx.UpdateAliases(call, new_id, rc.Rollback(), sha256(proposed))
            return _Plan(update, new_id, proposed=proposed, will=("commit", "publish"))
        self._exclude(current, proposed, scope)
        prepares = wanted.mode == "prepare"
        command = fx.RollBack(call, new_id, sha256(proposed), prepares=prepares)
        return _Plan(command, new_id, proposed=proposed, scope=scope, will=_ALL_STEPS[:2] if prepares else _ALL_STEPS)

    def _plan_resume(
        self, machine: Machine, call: fx.Call, transaction_id: str, evidence: Mapping[str, Any] | None
    ) -> _Plan:
        parsed = None if evidence is None else parse_evidence(evidence)
        command = fx.Resume(call, transaction_id, parsed)
        proposed = None
        if machine.state is State.HELD and machine.receipt is not None and machine.record is not None:
            proposed = _proposed(machine.record, machine.receipt.change, managed=machine.receipt.managed)
        return _Plan(command, transaction_id, proposed=proposed, scope=machine.gated, will=_ALL_STEPS[1:])

    def _plan_recovery(self, machine: Machine, call: fx.Call, wanted: wire.Recover, visible: rc.Record | None) -> _Plan:
        action, named, scope = Action(wanted.action), wanted.transaction_id, machine.gated
        if wanted.evidence is not None and action is not Action.RESUME:
            raise ControlError("invalid_change", "only a resume takes evidence")
        if wanted.accept_unready and action is not Action.ROLLBACK:
            raise ControlError("invalid_change", "only a rollback takes accept_unready")
        if action is Action.REASSERT:
            assert visible is not None
            return _Plan(fx.Reassert(call, named, visible.write_seq), named, scope=scope, will=("reassert",))
        if named is None:
            raise ControlError("transaction_changed", "the transaction must be named")
        match action:
            case Action.DRAIN:
                return _Plan(fx.Drain(call, named), named, scope=scope, will=("drain",))
            case Action.RESUME:
                return self._plan_resume(machine, call, named, wanted.evidence)
            case Action.CANCEL:
                return _Plan(fx.Cancel(call, named), named, scope=scope, will=("verify", "readmit"))
            case Action.VERIFY:
                return _Plan(fx.Verify(call, named), named, scope=scope, will=("verify", "readmit"))
        record = machine.record if machine.fallback is None else machine.fallback
        if machine.state is State.IDLE or record is None:
            raise ControlError("no_transaction", "no transaction is open")
        proposed = _proposed(record, rc.Rollback())
        new_id = self._new_id()
        command = fx.RollBack(call, new_id, sha256(proposed), parent_id=named, accepts_unready=wanted.accept_unready)
        # Out of doubt the new revision is only made certain; its verification is a step of its own.
        stops = wanted.accept_unready or machine.state is State.UNCERTAIN
        will = ("commit", "publish") if stops else ("commit", "publish", "verify", "readmit")
        return _Plan(command, new_id, proposed=proposed, scope=scope, will=will)

    def _exclude(self, before: Projection, after: Projection, scope: Sequence[str]) -> None:
        found = exclusions(
            before,
            after,
            scope,
            others=self._others,
            listeners=self._listeners(),
            own_hosts=self._own_hosts,
        )
        if found:
            raise ChangeRefusedError(found)

    # -- checks of a preview ------------------------------------------------------------------------------------------

    async def _check(self, machine: Machine, plan: _Plan) -> list[dict[str, Any]]:
        """Everything that can be known now and could stop an apply: all of it, not only the first."""
        checks: list[dict[str, Any]] = []
        command = plan.command
        proposed = plan.proposed
        if isinstance(command, fx.UpdateAliases):
            assert proposed is not None
            checks += await self._check_targets(machine, proposed)
        elif proposed is not None and not isinstance(command, fx.Drain):
            unproven = machine.state is State.UNCERTAIN  # what is proposed there is not checked before it is written
            advisory = (
                unproven
                or (isinstance(command, fx.ReplaceTiers) and command.prepares)
                or (isinstance(command, fx.RollBack) and command.accepts_unready)
            )
            checks += await self._check_candidates(plan.scope, proposed, blocking=not advisory)
        if isinstance(command, fx.Cancel | fx.Verify):
            # The machine proves again, and a failure there must leave its trace: nothing is forbidden here.
            checks += await self._check_served(plan.scope, command)
        if proposed is not None and machine.record is not None:
            known = unbound(machine.record.current.projection, self._table)
            checks += [
                _check("presets_bound", "preset_unbound", blocking=False, reason=sentence)
                for sentence in unbound(proposed, self._table)
                if sentence not in known
            ]
        if "drain" in plan.will:
            checks.append(self._check_rows(plan.scope))
        condition = self._coordinator.condition
        writable = condition == "writable" or isinstance(command, fx.Reassert | fx.RollBack)
        checks.append(_check("authority_writable", None if writable else "authority_read_only"))
        return checks

    async def _check_targets(self, machine: Machine, proposed: Projection) -> list[dict[str, Any]]:
        assert machine.record is not None
        before = machine.record.current.projection.aliases
        moved = {target for alias, target in proposed.aliases.items() if target != before[alias]}
        tiers = sorted({tier_of(target) for target in moved})
        seen = await self._coordinator.observe(tiers)
        checks = []
        for tier_id, one in zip(tiers, seen, strict=True):
            code = None if one.passed else "target_not_ready"
            checks.append(_check("target_ready", code, tier=tier_id, reason=one.reason.value))
        for tier_id in tiers:
            admitting = self._gate.snapshot.runtimes[tier_id].admitting
            checks.append(_check("target_admitting", None if admitting else "target_not_admitting", tier=tier_id))
        return checks

    async def _check_candidates(
        self, scope: Sequence[str], proposed: Projection, *, blocking: bool
    ) -> list[dict[str, Any]]:
        seen = await self._coordinator.probe([proposed.tiers[tier_id] for tier_id in scope])
        checks = []
        for tier_id, one in zip(scope, seen, strict=True):
            code = None if is_exact(one) else "precheck_failed"
            checks.append(
                _check(
                    "candidate_identity", code, blocking=blocking, tier=tier_id, reason=one.reason.value,
                    observed=list(one.models),
                )
            )  # fmt: skip
        return checks

    async def _check_served(self, scope: Sequence[str], command: fx.Cancel | fx.Verify) -> list[dict[str, Any]]:
        seen = await self._coordinator.observe(scope)
        checks = []
        for tier_id, one in zip(scope, seen, strict=True):
            failure = identity_failure([one])
            code = None if failure is None else failure.value
            if failure is not None and isinstance(command, fx.Cancel):
                code = "cancel_target_unverified"
            checks.append(
                _check("served_identity", code, blocking=False, tier=tier_id, reason=one.reason.value,
                       observed=list(one.models))
            )  # fmt: skip
        return checks

    def _check_rows(self, scope: Sequence[str]) -> dict[str, Any]:
        """Rows that no waiting will close: of earlier runs, and of requests whose end could not be written."""
        rows = self._ledger.unresolved(scope)
        stuck = rows.earlier + rows.failed
        code = "drain_blocked_legacy" if rows.unassociated else "drain_blocked_usage" if stuck else None
        return _check("usage_resolved", code, unresolved=stuck, unassociated=rows.unassociated)

    # -- the preview's document ---------------------------------------------------------------------------------------

    def _present(
        self, machine: Machine, wanted: wire.PreviewBody, plan: _Plan, checks: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        record, published, receipt = machine.record, machine.published, machine.receipt
        assert record is not None
        assert published is not None
        now_ms, ttl_ms = self._clock.wall_ms(), wanted.ttl_s * 1000
        proposed = plan.proposed
        fence = published.fence
        base = {
            "authority_id": record.authority_id,
            "route_revision": fence.route_revision,
            "effective_route_sha256": fence.effective_route_sha256,
        }
        proposed_sha256 = fence.effective_route_sha256 if proposed is None else sha256(proposed)
        next_revision = published.route_revision if proposed is None else machine.max_attempted + 1
        refusal = next((check["code"] for check in checks if not check["ok"] and check["blocking"]), None)
        evidence = plan.command.evidence if isinstance(plan.command, fx.Resume) else None
        asked = wanted.model_dump(mode="json", exclude={"evidence", "ttl_s"})
        bound = {
            "asked": asked,
            "base": base,
            "proposed_sha256": proposed_sha256,
            "scope": list(plan.scope),
            "receipt_sha256": None if receipt is None else content_sha256(receipt_document(receipt)),
            "write_seq": record.write_seq,
            "visible_seq": plan.command.visible_seq if isinstance(plan.command, fx.Reassert) else None,
            "attention_seq": machine.attention_seq,
            "evidence_sha256": None if evidence is None else content_sha256(evidence_document(evidence)),
            "transaction_id": plan.transaction_id,
            "run_id": self._run_id,
            "nonce": self._new_id(),
            "expires_at": format_instant(now_ms + ttl_ms),
            "applicable": refusal is None,
        }
        if len(canonical(bound)) > PREVIEW_BYTES_MAX:
            raise ControlError("change_too_large", "the preview would be too large")
        preview = Preview(
            id=self._new_id(),
            sha256=content_sha256(bound),
            command=plan.command,
            transaction_id=plan.transaction_id,
            refusal=refusal,
            wall_ends_ms=now_ms + ttl_ms,
            elapsed_ends_ms=self._clock.elapsed_ms() + ttl_ms,
        )
        self._previews.add(preview)
        current = published.projection
        changes = [] if proposed is None else diff(current, proposed)
        requires = ["confirm"]
        managed = isinstance(plan.command, fx.ReplaceTiers) and plan.command.managed
        if managed or (isinstance(plan.command, fx.Resume) and receipt is not None and receipt.managed):
            requires.append("evidence")
        return {
            "object": "route.preview",
            "preview_id": preview.id,
            "preview_sha256": preview.sha256,
            "expires_at": bound["expires_at"],
            "ttl_s": wanted.ttl_s,
            "op": wanted.op,
            "applicable": refusal is None,
            "base": base,
            "proposed": {"effective_route_sha256": proposed_sha256, "next_revision_at_least": next_revision},
            "scope": list(plan.scope),
            "diff": [
                {"path": change.pointer, "from": thaw(change.before), "to": thaw(change.after)} for change in changes
            ],
            "affected": self._affected(current, proposed, plan.scope),
            "checks": [dict(check) for check in checks],
            "requires": requires,
            "will": list(plan.will),
            "transaction_id": plan.transaction_id,
            "next": list(next_actions(machine)),
        }

    def _affected(self, current: Projection, proposed: Projection | None, scope: Sequence[str]) -> dict[str, Any]:
        """Aliases whose requests may go to another server afterwards, and the requests that run there now."""
        after = current if proposed is None else proposed
        held, aliases, tiers = frozenset(scope), [], set(scope)
        now, then = serving(current, self._presets), serving(after, self._presets)
        for alias, target in current.aliases.items():
            if after.aliases[alias] != target:
                tiers.update(now[alias])
            elif held.isdisjoint((*now[alias], *then[alias])):
                continue
            aliases.append(alias)
        return {"aliases": aliases, "in_flight": self._coordinator.leases(tiers)}

    # -- apply --------------------------------------------------------------------------------------------------------

    async def apply(self, body: bytes) -> dict[str, Any]:
        """`POST /v1/admin/routes/apply`: the receipt once the transaction is over or stops where it should.

        Raises:
            RequestError, ControlError: It did not, and this is why; the receipt is what `GET` shows.
        """
        asked = wire.parse_apply(body)
        preview = self._previews.find(asked.preview_id, asked.preview_sha256)
        if preview is None:
            return self._replay(asked.preview_sha256)
        if preview.running is not None:
            outcome = await asyncio.shield(preview.running)
            machine = self._coordinator.machine
            if not outcome.taken or machine.receipt is None or machine.receipt.id != preview.transaction_id:
                raise ControlError("preview_consumed", "the preview was used before")
            return self._receipt(machine, replayed=True)
        running = self._previews.use(preview)
        call = replace(
            preview.command.call,
            id=preview.id,
            preview_sha256=preview.sha256,
            at_ms=self._clock.wall_ms(),
            drain_timeout_ms=asked.drain_timeout_s * 1000,
            verify_timeout_ms=asked.verify_timeout_s * 1000,
        )
        try:
            outcome = await self._coordinator.submit(replace(preview.command, call=call))
        except BaseException as error:
            running.set_exception(error)
            running.exception()  # whoever else waits is told; nobody has to
            raise
        running.set_result(outcome)
        if outcome.code is not None:
            raise ControlError(outcome.code.value, "it did not end as asked")
        return self._receipt(outcome.machine, replayed=False)

    def _replay(self, sha256_: str) -> dict[str, Any]:
        """A preview that this process does not know, of which the durable receipt says that it was applied."""
        machine = self._coordinator.machine
        receipt = machine.record.transaction if machine.record is not None else None
        if receipt is None or receipt.preview_sha256 != sha256_:
            raise ControlError("preview_unknown", "there is no such preview")
        return self._receipt(machine, replayed=True)

    def _receipt(self, machine: Machine, *, replayed: bool) -> dict[str, Any]:
        receipt = machine.receipt
        attention = None if machine.attention is None else machine.attention.code.value
        if receipt is None:
            return {
                "object": "route.receipt", "transaction_id": None, "op": None, "state": machine.standing.value,
                "replayed": replayed, "changed": None, "scope": [], "held": False, "drain": None, "identity": None,
                "streams": {"in_scope_finished": 0, "cut": 0}, "attention": attention,
                "next": list(next_actions(machine)), "authorizes": [], "proves": None,
            }  # fmt: skip
        document = receipt_document(receipt)
        drain = receipt.drain
        return {
            "object": "route.receipt",
            "transaction_id": receipt.id,
            "op": receipt.op.value,
            "state": receipt.state.value,
            "replayed": replayed,
            "changed": {
                "from": fence_document(receipt.base),
                "to": None
                if receipt.committed_revision is None
                else fence_document(rc.Fence(receipt.committed_revision, receipt.proposed_sha256)),
            },
            "scope": list(receipt.scope),
            "held": receipt.hold,
            "drain": document["drain"],
            "identity": document["identity"],
            "streams": {
                "in_scope_finished": 0 if drain is None else drain.finished,
                "cut": 0 if drain is None else drain.cut,
            },
            "attention": attention,
            "next": list(next_actions(machine)),
            "authorizes": [],
            "proves": None if receipt.identity is None else receipt.identity.proves,
            "managed": receipt.managed,
            "evidence": None if receipt.evidence is None else {**evidence_document(receipt.evidence), "trust": TRUST},
            "parent_id": receipt.parent_id,
            "events": document["events"],
        }


def _filled(target: object) -> object:
    """A family target without a word about unready tiers refuses, as in the boot file."""
    return {"on_unready": "refuse", **target} if isinstance(target, dict) and "family" in target else target


def _check(name: str, code: str | None, *, blocking: bool = True, **more: object) -> dict[str, Any]:
    return {"name": name, "ok": code is None, "code": code, "blocking": blocking, **more}


def _change(document: Mapping[str, object]) -> rc.ChangeSpec:
    """A change as the operator wrote it.

    Raises:
        RequestError: What is wrong with it, and where.
    """
    try:
        return parse_change(document)
    except ControlError as error:
        raise RequestError(error.code, error.message) from error


def _proposed(record: rc.Record, change: rc.ChangeSpec, *, managed: bool = False) -> Projection:
    try:
        return propose(record, change, managed=managed)
    except ProjectionError as error:
        raise ChangeRefusedError(error.findings) from error


def _refusal(machine: Machine, command: fx.Command) -> Code | None:
    """Whether the machine would take the command now; nothing is performed."""
    after, effects = step(machine, command)
    if after is machine:
        return next(effect.code for effect in effects if isinstance(effect, fx.Reply))
    return None


def _require_idle(machine: Machine, call: fx.Call) -> None:
    """Whether a change may begin at all, before its content is looked at.

    Raises:
        ControlError: The code of the state that forbids it.
    """
    code = _refusal(machine, fx.UpdateAliases(call, "", rc.AliasUpdate({}), ""))
    if code in _STATE_CODES:
        assert code is not None
        raise ControlError(code.value, "another change cannot begin now")
