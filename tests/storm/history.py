"""What a storm leaves behind, and what must be true of it. Pure: no process, no clock, no file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(slots=True)
class Asked:
    """One request, as its client saw it. Times are seconds since the epoch."""

    id: str
    alias: str
    stream: bool
    sent_at: float
    connected_at: float = 0.0
    """Not after its connection was made: one that is older than a kill does not outlive it."""
    head_at: float | None = None
    """When the head of the response was there."""
    ended_at: float = 0.0
    status: int | None = None
    revision: int | None = None
    model: str | None = None
    code: str | None = None
    tokens: list[int] = field(default_factory=list)
    complete: bool = False
    left: bool = False
    """The client went away by itself."""
    trouble: str | None = None
    """What the client's library said when there was no whole answer."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A revision that somebody was told, and when: not before `began`, and not after `ended`."""

    began: float
    ended: float
    revision: int
    sha256: str | None
    where: str


@dataclass(slots=True)
class History:
    """Everything that was written down during one storm."""

    authority_id: str
    limits: Mapping[str, int]
    """Tier -> its `max_concurrency`, which no change of the storm touches."""
    asked: list[Asked] = field(default_factory=list)
    observed: list[Observation] = field(default_factory=list)
    projections: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """Revision -> the routes that the operator saw under it."""
    commits: list[tuple[float, int]] = field(default_factory=list)
    """When an apply was sent, and the revision of which its receipt said that it had committed it."""
    holds: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    """From when on at most these tiers can have been held."""
    closed: list[tuple[float, float, frozenset[str]]] = field(default_factory=list)
    """Between which moments a transaction certainly held these tiers: from a view that said so to the next apply."""
    quiesced: list[tuple[float, float, str]] = field(default_factory=list)
    """The same for the operator's bit of a tier, which the next kill ends as well: nothing stores it."""
    kills: list[tuple[float, float]] = field(default_factory=list)
    """When the gateway was killed, and when the next one listened."""
    on_disk: list[tuple[float, int]] = field(default_factory=list)
    """The revision in the authority file right after each kill."""
    faults: list[str] = field(default_factory=list)
    """What was wrong at once: an answer with an unknown code, a start that failed, a file that does not parse."""


def judge(
    history: History, rows: Sequence[Mapping[str, Any]], served: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Every contradiction between the clients, the operator, the model servers and the ledger.

    Args:
        rows: The ledger's rows, in order.
        served: Model -> what its server saw of the POST requests.
    """
    return [
        *history.faults,
        *_counter(history),
        *_content(history, rows),
        *_durable(history),
        *_answers(history),
        *_held(history, rows),
        *_closed(history, rows, served),
        *_books(history, rows, served),
        *_ends(history, rows, served),
        *_generations(history, rows, served),
        *_concurrency(history, rows, served),
    ]


def _counter(history: History) -> Iterable[str]:
    """INV-2: one counter that never falls; each read fits between the reads and commits around it (linearizable)."""
    events = sorted(history.observed, key=lambda one: one.began)
    ends = sorted(history.observed, key=lambda one: one.ended)
    floor, at = 0, 0
    where = ""
    for one in events:
        while at < len(ends) and ends[at].ended < one.began:
            if ends[at].revision > floor:
                floor, where = ends[at].revision, ends[at].where
            at += 1
        if one.revision < floor:
            yield f"INV-2: {one.where} was told revision {one.revision} after {where} had been told {floor}"
    sent = {revision: began for began, revision in history.commits}
    for one in history.observed:
        if one.revision in sent and one.ended < sent[one.revision]:
            yield f"INV-2: {one.where} was told revision {one.revision} before its apply was sent"


def _content(history: History, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """INV-3, INV-11: a revision has one content, wherever it is shown; equal contents have equal hashes."""
    shown: dict[int, set[str]] = defaultdict(set)
    for one in history.observed:
        if one.sha256 is not None:
            shown[one.revision].add(one.sha256)
    for row in rows:
        if row["route_revision"] is not None:
            shown[row["route_revision"]].add(row["effective_route_sha256"])
            if row["authority_id"] != history.authority_id:
                yield f"INV-3: row {row['id']} has another authority"
    for revision, contents in shown.items():
        if len(contents) != 1:
            yield f"INV-3: revision {revision} was shown with {len(contents)} hashes"
    by_content: dict[str, set[str]] = defaultdict(set)
    for revision, projection in history.projections.items():
        for sha256 in shown.get(revision, ()):
            by_content[repr(projection)].add(sha256)
    for hashes in by_content.values():
        if len(hashes) != 1:
            yield "INV-3: the same routes have two hashes"
    by_hash = Counter(sha256 for hashes in by_content.values() for sha256 in hashes)
    if any(contents > 1 for contents in by_hash.values()):
        yield "INV-3: different routes have one hash"


def _durable(history: History) -> Iterable[str]:
    """INV-1, as far as a kill can show it: what was told before a kill is in the file after it."""
    for at, revision in history.on_disk:
        told = max((one.revision for one in history.observed if one.ended <= at), default=0)
        if told > revision:
            yield f"INV-1: revision {told} had been told, and the file after the kill has {revision}"


def _target(history: History, revision: int, alias: str) -> tuple[str, str] | None:
    """The tier and the model behind an alias under a revision."""
    projection = history.projections.get(revision)
    if projection is None:
        return None
    tier: str = projection["aliases"][alias]["tier"]
    return tier, projection["tiers"][tier]["model"]


def _killed(history: History, one: Asked, before_s: float = 0.05) -> bool:
    """Whether a kill may have met a request, or came at most so long after its end."""
    return any(
        min(one.connected_at, one.sent_at) <= back and one.ended_at >= killed - before_s
        for killed, back in history.kills
    )


def _answers(history: History) -> Iterable[str]:
    """What a client got belongs to the revision in its head, whole."""
    for one in history.asked:
        if one.status is None:
            if not one.left and not _killed(history, one):
                yield f"{one.id}: no answer, and no kill: {one}; kills {history.kills}"
            continue
        if one.revision is None:
            yield f"INV-11: {one.id}: an answer without a revision"
            continue
        target = _target(history, one.revision, one.alias)
        if target is None:
            yield f"INV-11: {one.id}: revision {one.revision} was never seen by the operator"
        elif one.model is not None and one.model != target[1]:
            yield f"INV-11: {one.id}: served by {one.model}, but revision {one.revision} says {target[1]}"
        if one.complete and one.tokens != list(range(len(one.tokens))):
            yield f"{one.id}: tokens {one.tokens}"


def _held(history: History, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """INV-19: `held` is only said of a tier that a transaction may have held at that moment."""
    tiers = {row["id"]: row["tier"] for row in rows}
    for one in history.asked:
        if one.code != "held":
            continue
        possible: set[str] = set()
        for (begins, scope), (ends, _) in zip(
            history.holds, [*history.holds[1:], (float("inf"), frozenset())], strict=True
        ):
            if begins <= one.ended_at and ends >= one.sent_at:
                possible |= scope
        tier = tiers.get(one.id)
        if tier is None and one.revision is not None and (target := _target(history, one.revision, one.alias)):
            tier = target[0]
        if tier not in possible:
            yield f"INV-19: {one.id} was refused as held on {tier}, but only {sorted(possible)} can have been"


def _closed(
    history: History, rows: Sequence[Mapping[str, Any]], served: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterable[str]:
    """INV-7, INV-8, INV-10: what was sent after a tier was closed reaches no server of it before somebody opens it."""
    tiers = {row["id"]: row["tier"] for row in rows}
    sent = {one.id: one.sent_at for one in history.asked}
    closed = [(begins, ends, scope, "held") for begins, ends, scope in history.closed]
    for begins, ends, tier in history.quiesced:
        first_kill = min((killed for killed, _ in history.kills if killed >= begins), default=ends)
        closed.append((begins, min(ends, first_kill), frozenset({tier}), "quiesced"))
    for model, entries in served.items():
        for entry in entries:
            for begins, ends, scope, how in closed:
                if tiers.get(entry["id"]) not in scope:
                    continue
                if begins < sent.get(entry["id"], begins) and entry["received_at"] < ends:
                    name = "INV-7" if how == "held" else "INV-10"
                    yield f"{name}: {entry['id']} was sent while its tier was {how}, and reached {model}"


def _books(
    history: History, rows: Sequence[Mapping[str, Any]], served: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterable[str]:
    """INV-21: whatever reached a server has a row, which says what the client was told and where it went."""
    by_id: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_id[row["id"]].append(row)
        if row["outcome"] is None:
            yield f"{row['id']}: unresolved at the end"
    asked = {one.id: one for one in history.asked}
    for model, entries in served.items():
        for entry in entries:
            found = by_id.get(entry["id"], [])
            if len(found) != 1:
                yield f"INV-21: {entry['id']} reached {model} and has {len(found)} rows"
                continue
            [row] = found
            missing = [
                name for name in ("tier", "tier_generation", "route_revision", "admission_seq") if row[name] is None
            ]
            if missing:
                yield f"INV-21: {entry['id']} reached {model}, and its row lacks {missing}"
                continue
            target = _target(history, row["route_revision"], row["alias"])
            if target != (row["tier"], model):
                yield f"INV-4: {entry['id']} reached {model}; its row's revision says {target}, tier {row['tier']}"
            if (
                not _built(history, row["tier"], row["route_revision"])
                <= row["tier_generation"]
                <= row["route_revision"]
            ):
                yield f"INV-21: {entry['id']}: generation {row['tier_generation']} under {row['route_revision']}"
    arrivals = Counter(entry["id"] for entries in served.values() for entry in entries)
    ends = {entry["id"]: entry["ended"] for entries in served.values() for entry in entries}
    for one in history.asked:
        for row in by_id.get(one.id, ()):
            if one.revision is not None and row["route_revision"] != one.revision:
                yield f"INV-11: {one.id}: told {one.revision}, booked {row['route_revision']}"
            if row["outcome"] == "refused" and arrivals[one.id]:
                yield f"INV-21: {one.id} was refused and yet reached a server"
            if row["retries"] is not None and arrivals[one.id] > 1 + row["retries"]:
                yield f"{one.id} reached servers {arrivals[one.id]} times"
        if one.status == 200 and not arrivals[one.id]:
            yield f"{one.id}: answered, but no server saw it"
        excused = one.complete or one.left or _killed(history, one)
        if one.status == 200 and not excused and ends.get(one.id) not in _BROKE_OFF:
            yield f"{one.id}: cut, although its server did not break off and nobody was killed"
        if one.status in (502, 504) and not _killed(history, one) and ends.get(one.id) not in (*_BROKE_OFF, "error"):
            yield f"{one.id}: {one.code}, although its server did not fail"
    for name in by_id.keys() - asked.keys():
        yield f"{name}: a row of a request that nobody sent"


_BROKE_OFF = ("reset", "truncated", "broken")
_LAST_WORDS_S = 2.0
"""An end is on the disk milliseconds after its client saw it; a disk that is busy with other things may take longer."""


def _built(history: History, tier: str, revision: int) -> int:
    """The least generation that a tier can have under a revision: it was built anew wherever its definition changed."""
    least = 1
    known = sorted(one for one in history.projections if one <= revision)
    for before, after in pairwise(known):
        if history.projections[before]["tiers"].get(tier) != history.projections[after]["tiers"].get(tier):
            least = before + 1
    return least


def _ends(
    history: History, rows: Sequence[Mapping[str, Any]], served: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterable[str]:
    """What a row says of its end is what client and server saw, and no end is lost without a kill."""
    calls = {entry["id"]: entry for entries in served.values() for entry in entries}
    by_id = {row["id"]: row for row in rows}
    for one in history.asked:
        row, call = by_id.get(one.id), calls.get(one.id)
        killed, soon = _killed(history, one), _killed(history, one, _LAST_WORDS_S)
        if row is None:
            if one.status is not None and not soon:
                yield f"INV-21: {one.id} was answered with {one.status} and has no row"
            continue
        outcome, seen = row["outcome"], None if call is None else call["ended"]
        stayed = not (one.left or killed)
        fits = {
            "interrupted": soon,
            "refused": call is None,
            "completed": seen == "complete" and (one.complete or not stayed),
            "client_gone": not stayed,
            "upstream_reset": seen in ("reset", "truncated"),
            "upstream_error": seen in ("error", "broken"),
            None: True,  # said above
        }
        if not fits.get(outcome, False):
            yield f"{one.id}: booked as {outcome}, but its server saw {seen} and its client {one}"
            continue
        told, booked = (one.status, one.code), (row["status"], row["error_code"])
        begun = one.status == row["status"] == 200  # what ends a stream that has begun is not in its head
        if outcome != "interrupted" and stayed and not begun and told != booked:
            yield f"{one.id}: booked with {booked}, told {told}"
        if outcome == "completed" and call is not None:
            wanted = (call["prompt_tokens"], call["tokens"]) if call["usage_sent"] else (None, None)
            if (row["prompt_tokens"], row["completion_tokens"]) != wanted:
                yield f"{one.id}: booked {row['prompt_tokens']} and {row['completion_tokens']} tokens, sent {wanted}"
            if one.complete and one.model is not None and len(one.tokens) != call["tokens"]:
                yield f"{one.id}: {len(one.tokens)} tokens came, and {call['tokens']} were sent"


def _generations(
    history: History, rows: Sequence[Mapping[str, Any]], served: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterable[str]:
    """INV-4: a server that was replaced had finished everything before the replacement could be seen."""
    revisions = sorted(history.projections)
    ends = sorted((one.revision, one.ended) for one in history.observed)
    first: dict[int, float] = {}
    soonest = float("inf")
    known = {revision for revision, _ in ends}
    for revision, ended in reversed(ends):  # the first moment at which this revision or a later one had been seen
        soonest = min(soonest, ended)
        first[revision] = soonest
    replaced: dict[tuple[str, int], float] = {}
    for tier in history.limits:
        for index, revision in enumerate(revisions):
            definition = history.projections[revision]["tiers"].get(tier)
            for later in revisions[index + 1 :]:
                if history.projections[later]["tiers"].get(tier) != definition:
                    if later in known:
                        replaced[tier, revision] = first[later]
                    break
    by_id = {row["id"]: row for row in rows}
    for model, entries in served.items():
        for entry in entries:
            row = by_id.get(entry["id"])
            if row is None or entry["ended"] != "complete" or row["outcome"] == "interrupted":
                continue
            at = replaced.get((row["tier"], row["route_revision"]))
            if at is not None and entry["ended_at"] > at:
                yield f"INV-4: {entry['id']} ended on {model} after its replacement had been seen"


def _concurrency(
    history: History, rows: Sequence[Mapping[str, Any]], served: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterable[str]:
    """INV-23: no generation of a tier had more requests at its server than its limit, whatever the revision."""
    by_id = {row["id"]: row for row in rows}
    left = {one.id: one.ended_at for one in history.asked if one.left}
    edges: dict[tuple[int, str, str], list[tuple[float, int]]] = defaultdict(list)
    for model, entries in served.items():
        for entry in entries:
            row = by_id.get(entry["id"])
            if row is None or entry["ended_at"] is None:
                continue
            # a server notices a client that left only some time after the gateway has let go
            ended = min(entry["ended_at"], left.get(entry["id"], entry["ended_at"]))
            if ended > entry["received_at"]:
                edges[row["run"], row["tier"], model] += [(entry["received_at"], 1), (ended, -1)]
    for (_, tier, model), changes in edges.items():
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        if most > history.limits[tier]:
            yield f"INV-23: {most} requests at once at {model}, and tier {tier} allows {history.limits[tier]}"
