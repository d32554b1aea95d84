"""What the authority should do, written down a second time, without the machine's words.

One method per operation, straight through, in terms of what is on disk, what readers see and which gates are closed.
Content is a triple: the tier that alias x selects, and whether tiers a and b have their first or second model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

Content = tuple[str, int, int]
TIERS = ("a", "b")


@dataclass(frozen=True)
class Disk:
    """One record: the routes, what was before, and the transaction as (state, scope, proposed content, undoes)."""

    revision: int
    content: Content
    before: tuple[int, Content] | None = None
    state: str = "none"
    scope: tuple[str, ...] = ()
    proposed: Content | None = None
    undoes: bool = False

    @property
    def holds(self) -> bool:
        return self.state in ("held", "committed")


class Died(Exception):  # noqa: N818 - an event of the world, not a fault
    """The process ended in the middle of a write."""


class Doubt(Exception):  # noqa: N818 - likewise
    """A write ended with its outcome unknown."""


class Failed(Exception):  # noqa: N818 - likewise
    """A write ended with nothing changed."""


@dataclass
class Oracle:
    """The expected truth. `fates` says how each coming write ends; leases, rows and servers are set by the test."""

    visible: Disk = field(default_factory=lambda: Disk(1, ("a", 0, 0)))
    others: set[Disk] = field(default_factory=set)
    known: Disk | None = None
    alive: bool = False
    standing: str = "stopped"
    attention: str | None = None
    published: tuple[int, Content] | None = None
    gate: tuple[str, ...] = ()
    top: int = 0
    seen: int = 0
    doubted: Disk | None = None
    undone: tuple[str, ...] = ()
    leases: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    rows: set[str] = field(default_factory=set)
    serves: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    fates: Iterator[str] = field(default_factory=lambda: iter(()))

    # --- disk

    def write(self, disk: Disk) -> None:
        """Replace what is on disk, the way the next fate says."""
        fate = next(self.fates, "done")
        if fate == "fails":
            raise Failed
        if fate in ("died new", "doubt new", "done"):
            self.others.add(self.visible)
            self.visible = disk
            self.others.discard(disk)
        if fate.startswith("died"):
            self.die()
            raise Died
        if fate.startswith("doubt"):
            self.top = max(self.top, disk.revision)
            if self.doubted is None and self.gate:
                self.doubted = disk if disk.holds else self.known
            self.standing, self.attention = "uncertain", "write_uncertain"
            raise Doubt
        self.others, self.known, self.doubted = set(), disk, None
        self.top = max(self.top, disk.revision)

    def die(self) -> None:
        self.rows |= {tier for tier in TIERS if self.leases[tier]}
        self.leases = {"a": 0, "b": 0}
        self.alive, self.standing, self.attention, self.published = False, "stopped", None, None
        self.gate, self.doubted, self.known = (), None, None

    def lose_power(self, survivor: Disk) -> None:
        self.visible, self.others = survivor, set()

    def restart(self) -> None:
        self.top = self.visible.revision
        self.write(self.visible)
        self.alive, self.published = True, (self.visible.revision, self.visible.content)
        self.seen = max(self.seen, self.visible.revision)
        self.stand(self.visible, "interrupted")

    def stand(self, disk: Disk, attention: str | None) -> None:
        self.standing = disk.state if disk.holds else "idle"
        self.attention = attention if disk.holds else None
        self.gate = disk.scope if disk.holds else ()

    def publish(self) -> None:
        assert self.known is not None
        self.published = (self.known.revision, self.known.content)
        self.seen = max(self.seen, self.known.revision)

    # --- servers

    def served(self, content: Content, scope: tuple[str, ...]) -> bool:
        return all(self.serves[tier] == content[1 + TIERS.index(tier)] for tier in scope)

    def stop(self, attention: str, code: str | None = None) -> str:
        self.attention = attention
        return code or attention

    # --- operations; each returns None when done, or the code its caller gets

    def aliases(self, tier: str, *, undoes: bool = False) -> str | None:
        assert self.known is not None
        old = self.known
        content = (tier, *old.content[1:])
        if not self.served(content, (tier,)):
            return "target_not_ready"
        try:
            self.write(Disk(self.top + 1, content, (old.revision, old.content), "completed", (), content, undoes))
        except Failed:
            return "authority_write_failed"
        except Doubt:
            return "authority_write_uncertain"
        self.publish()
        return None

    def replace_tiers(self, scope: tuple[str, ...], content: Content, *, prepares: bool, undoes: bool) -> str | None:
        assert self.known is not None
        if undoes and not self.served(content, scope):
            return "precheck_failed"
        self.gate = scope
        try:
            self.write(replace(self.known, state="held", scope=scope, proposed=content, undoes=undoes))
        except Failed:
            self.gate = ()
            return "authority_write_failed"
        except Doubt:
            return "authority_write_uncertain"
        self.standing = "held"
        return self.drain(stops=prepares)

    def drain(self, *, stops: bool) -> str | None:
        assert self.known is not None
        old, self.attention = self.known, None
        if any(self.leases[tier] for tier in old.scope):
            return self.stop("drain_timeout")
        if self.rows & set(old.scope):
            return self.stop("drain_blocked_usage")
        if stops:
            return None
        assert old.proposed is not None
        if not self.served(old.proposed, old.scope):
            return self.stop("precheck_failed")
        try:
            self.write(replace(old, revision=self.top + 1, content=old.proposed, state="committed",
                               before=(old.revision, old.content)))  # fmt: skip
        except Failed:
            return self.stop("write_failed", "authority_write_failed")
        except Doubt:
            return "authority_write_uncertain"
        self.standing = "committed"
        self.publish()
        return self.verify()

    def verify(self) -> str | None:
        assert self.known is not None
        self.attention = None
        if not self.served(self.known.content, self.known.scope):
            return self.stop("verify_failed", "identity_mismatch")
        return self.end("completed")

    def cancel(self) -> str | None:
        assert self.known is not None
        self.attention = None
        if not self.served(self.known.content, self.known.scope):
            return self.stop("cancel_target_unverified")
        return self.end("cancelled")

    def end(self, state: str) -> str | None:
        assert self.known is not None
        try:
            self.write(replace(self.known, state=state))
        except Failed:
            return self.stop("write_failed", "authority_write_failed")
        except Doubt:
            return "authority_write_uncertain"
        self.stand(self.visible, None)
        return None

    def undo(self, *, accepts_unready: bool) -> str | None:
        """Of a committed transaction, or of a commit in doubt."""
        doubted = self.doubted if self.standing == "uncertain" else self.known
        assert doubted is not None
        assert doubted.before is not None
        in_doubt = self.standing == "uncertain"
        self.attention = None
        _, content = doubted.before
        if not in_doubt and not accepts_unready and not self.served(content, doubted.scope):
            return self.stop("precheck_failed")
        back = replace(doubted, revision=self.top + 1, content=content, proposed=content, undoes=True,
                       before=(doubted.revision, doubted.content))  # fmt: skip
        try:
            self.write(back)
        except Failed:
            return self.stop("write_uncertain" if in_doubt else "write_failed", "authority_write_failed")
        except Doubt:
            return "authority_write_uncertain"
        self.standing = "committed"
        self.publish()
        if in_doubt or accepts_unready:
            self.attention = "interrupted" if in_doubt else "verify_pending"
            return None
        return self.verify()

    def reassert(self) -> str | None:
        chosen, code, attention = self.visible, None, "interrupted"
        assert self.published is not None
        if self.gate and not chosen.holds and not self.served(self.published[1], self.gate):
            assert self.doubted is not None
            chosen = self.doubted
            before = chosen.state == "held"
            attention = "cancel_target_unverified" if before else "verify_failed"
            code = "cancel_target_unverified" if before else "identity_mismatch"
        try:
            self.write(chosen)
        except Failed:
            return self.stop("write_uncertain", "authority_write_failed")
        except Doubt:
            return "authority_write_uncertain"
        self.publish()
        self.stand(chosen, attention)
        return code
