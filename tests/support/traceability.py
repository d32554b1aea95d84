"""What is required of live routes, in a line each, and which tests say that they show it.

The tests say it with markers; they are read from the source, so that nothing has to be imported or run.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.cli import ROOT

REQUIREMENTS = """\
R1 a route changes in the running process: same process, same listener, other connections untouched
R2 requests outside the scope are never cut, delayed or refused, whatever the authority's disk does
R3 the gateway is the same with an authority, plus the fence
R4 no process is started or signalled, and nothing is connected to but the configured servers
R5 the authority needs the standard library and POSIX files, and refuses to start where they are missing
R6 without the key there is no file, no field, no header and no path of the authority
R7 the key is an absolute path with a plain last name
R8 the boot file is never written
R9 the boot file is read once
R10 a snapshot cannot be changed
R11 readers see one snapshot or another, never a mixture
R12 revisions only rise, across restarts, rollbacks and rebases
R13 the hash depends on content alone, and on all of it that routes
R14 the canonical form is one byte string per meaning
R15 a request keeps the snapshot and the tier that it was admitted with
R16 its lease lasts until its client has the last byte
R17 every way to end a request releases its lease once
R18 whoever resolved a tier before its replacement does not get to the old server after it
R19 config_sha256 stays the identity of the boot file
R20 every live view and every record carries the fence
R21 records keep the revision that they began under
R22 an alias update moves existing aliases to existing tiers and nothing else
R23 the target is what it was at the preview
R24 the target proves ready at the apply
R25 the target admits requests at the apply
R26 an alias update drains nobody
R27 durable, then published, then answered
R28 a tier may be left without an alias
R29 a tier that does not change keeps its limit across revisions
R30 a replacement patches the replaceable fields of existing tiers
R31 the scope is explicit, stored, and all that is gated
R32 the hold is durable before it is acted on
R33 the hold is independent of the operator's bit
R34 from the hold on nothing new is bound to the scope
R35 leases are drained
R36 usage rows are drained after the leases
R37 a drain forces nothing
R38 the drain is proved again at the commit
R39 the commit is one write: the next revision with its hold
R40 published only after the commit is durable
R41 published before it is verified, and still held
R42 the served identity is exact
R43 the identity is proved before the readmission, freshly
R44 the readmission is durable before the gate opens
R45 traffic elsewhere goes on in every state
R46 the target is checked before the commit
R47 new addresses cannot send a credential elsewhere or come back to the router
R48 a replaced tier is a new generation with nothing of the old one
R49 every management call ends in bounded time, whoever listens to it
R50 a tier admits if neither the operator nor a transaction says no
R51 the operator's readmission does not lift a hold
R52 a transaction leaves the operator's bit alone
R53 the two drains do not block each other
R54 the two files of the two bits are independent
R55 a refusal says which of the two it was
R56 one file is the authority; leftovers are never read
R57 the file has exactly its members
R58 the file and everything in it is bounded
R59 previous is what was superseded, once
R60 the file belongs to its boot routes
R61 the receipt is enough to go on after a restart
R62 reading offline is labelled unfenced
R63 one lock for the life of the process
R64 the lock does not leak to other programs
R65 custody of the directory and everything above it
R66 custody of the file
R67 modes do not depend on the umask
R68 the file is replaced, never edited
R69 a write is done, certainly not done, or unknown
R70 a file that somebody else changed is left alone
R71 a start makes what it sees durable before it serves it
R72 a start validates everything and repairs nothing
R73 file systems that promise nothing are refused
R74 no file, no start
R75 an unsafe file, no start
R76 a hold is in force before the first connection
R77 an open transaction is not continued by a start
R78 initialisation is a verb of its own
R79 serving never initialises
R80 a rebase is explicit and goes forward
R81 a failure stays within its scope
R82 after a failure only a new recovery preview counts
R83 the ways out are listed, and none is chosen
R84 undoing goes forward
R85 a rollback can be rolled back
R86 cancelling ends at the commit
R87 cancelling proves the original first
R88 cancelling needs the base that it started from
R89 an unknown outcome publishes nothing and is asserted anew
R90 one receipt, one previous
R91 an operator credential of its own
R92 no change without a preview
R93 a preview is bound to what it shows
R94 a preview expires by the earlier clock
R95 a preview is used once, and its answer can be asked for again
R96 caches, bodies and waits are bounded
R97 the start row carries the generation, and reveals an older authority file
R98 a migration leaves old values as they are
R99 unresolved old rows block the migration
R100 unresolved rows without a generation block every drain, and no alias update
R101 reconciling is explicit and needs proof
R102 an authority needs the usage ledger
R103 prepare drains and stops before any commit
R104 a managed resume needs evidence
R105 prepare, unload and load, resume, drain again, commit, verify, readmit
R106 nothing claims to know weights
R107 nothing authorizes anything
R108 names, credentials, listeners and protocols need a restart
R109 tiers with metadata of their server, replicas and automatic limits are not replaced
R110 servers that also do something other than chat are excluded
R111 servers of tiers outside the scope are excluded
R112 nothing acts without a request
R113 nothing is rolled back, retried or promoted by itself
R114 tests use synthetic servers and injected faults only
R115 no text claims what only a real deployment can show
R116 metrics and one log line per transition
R117 every call for a change leaves a record of metadata
R118 a stop in any phase leaves what is on disk
"""
SCENARIOS = """\
S1 aliases flip under streams
S2 a tier is replaced while the others serve
S3 a slow reader outlives the drain
S4 a managed promotion
S5 another model at the verification, rolled back
S6 a dead server at the verification, fixed
S7 cancel, and a cancel that is refused
S8 a kill while held
S9 a kill after the commit
S10 the power-cut image of every write
S11 a full disk at every write
S12 a directory fsync that fails at every write
S13 two operators
S14 operator bit x phases
S15 previews that are late, repeated, altered, of another run
S16 unsafe files and paths
S17 two routers, one lock
S18 a changed boot file
S19 no key, no difference
S20 unresolved rows from before generations
S21 exclusions
S22 clocks that jump
S23 an fsync that stalls
S24 an idle authority writes nothing
S25 a storm
"""
INVARIANTS = """\
INV-1 a revision that was told survives
INV-2 revisions never fall
INV-3 a revision has one content
INV-4 a lease is of the generation that was published when it was given
INV-5 nothing runs in the scope at the commit
INV-6 one generation of a tier has leases
INV-7 an open receipt on disk has closed gates
INV-8 a lease in the scope needs a durable end of the transaction
INV-9 a gate opens after a fresh exact identity
INV-10 each bit is changed by its owner only
INV-11 one answer, one snapshot
INV-12 a crash leaves a record that was written
INV-13 one writer
INV-14 a file that was written can be started from
INV-15 the boot file never changes
INV-16 what failed to be synchronised is never taken for durable
INV-17 one preview, one chain of transitions
INV-18 after a failure, writes come from a new recovery preview only
INV-19 held is said of the scope only
INV-20 leases end at zero
INV-21 whatever was sent has its row
INV-22 no write without a request
INV-23 no generation exceeds its limit
INV-24 no secret and no content in files, logs, answers, metrics
"""
SHARED = "support/machine_gate.py"
"""A body of tests with markers that several files run."""
KINDS = {"req": REQUIREMENTS, "scenario": SCENARIOS, "invariant": INVARIANTS}


def wanted(kind: str) -> dict[str, str]:
    """Everything of a kind that a test must show."""
    return {name: text for name, _, text in (line.partition(" ") for line in KINDS[kind].splitlines())}


def _marks(path: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, name, test) of every marker in a file.

    Raises:
        ValueError: A marker whose arguments cannot be read off the page.
    """
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for mark in node.decorator_list:
            if not (isinstance(mark, ast.Call) and isinstance(mark.func, ast.Attribute) and mark.func.attr in KINDS):
                continue
            for argument in mark.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise ValueError(f"{path.name}, {node.name}: write the names of {mark.func.attr} out")
                yield mark.func.attr, argument.value, node.name


def shown(root: Path = ROOT / "tests") -> Mapping[str, Mapping[str, list[tuple[str, str]]]]:
    """Kind -> name -> (file, test) of the tests that say that they show it."""
    found: dict[str, dict[str, list[tuple[str, str]]]] = {kind: defaultdict(list) for kind in KINDS}
    for path in (*sorted(root.rglob("test_*.py")), root / SHARED):
        for kind, name, test in _marks(path):
            found[kind][name].append((path.relative_to(root.parent).as_posix(), test))
    return found


def tables() -> str:
    """The tables of the page."""
    lines = []
    found = shown()
    for kind, title in (("req", "Requirements"), ("scenario", "Scenarios"), ("invariant", "Invariants")):
        lines += [f"## {title}", "", "| | what | tests |", "|---|---|---|"]
        for name, text in wanted(kind).items():
            by_file: dict[str, list[str]] = defaultdict(list)
            for file, test in found[kind].get(name, ()):
                by_file[file].append(test.removeprefix("test_").replace("_", " "))
            cell = "; ".join(
                f"[{file.rpartition('/')[2].removesuffix('.py')}](../{file}): {', '.join(tests)}"
                for file, tests in by_file.items()
            )
            lines.append(f"| {name} | {text} | {cell} |")
        lines.append("")
    return "\n".join(lines)
