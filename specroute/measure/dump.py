"""Measurements as JSON values and back, old ones for less. Pure: no file and no clock.

Knows the form that is kept between runs and what age does to evidence. Names of targets and drafts
are translated, so that what is kept belongs to a server and a model, not to a name in one config.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from specroute.measure.kinds import Class, Draft, Judged, Prediction, Target
from specroute.measure.lending import HALF_LIFE_S, Rounds
from specroute.measure.level import Share
from specroute.measure.measurements import Measurements

VERSION = 1
MAX_AGE_S = 30 * 24 * 3600.0
"""Older evidence is not taken over."""
MAX_ENTRIES = 4_000
"""So many are kept, the newest: about 1.5 MB, and some hundred servers' with what most have."""
START = 4.0
"""Observations that times from another machine count as, at most."""

Entry = dict[str, Any]


def dump(
    seen: Measurements, targets: Mapping[str, str], drafts: Mapping[str, str]
) -> dict[str, Any]:
    """All figures of the named targets and drafters, under the names they are kept by."""
    entries: dict[tuple[Any, ...], Entry] = {}

    def put(kind: str, key: list[Any], at: float, data: Any) -> None:
        # Two names of one thing are kept as one, by what was seen last: both are loaded from it.
        before = entries.get((kind, *key))
        if before is None or before["at"] <= at:
            entries[(kind, *key)] = {"kind": kind, "key": key, "at": at, "data": data}

    for name, t in seen.targets.items():
        if name in targets:
            cached = {purpose: share.dump() for purpose, share in t.cached.items()}
            plain: list[Any] = [
                t.ttft.dump(),
                t.tpot.dump(),
                t.failed.dump(),
                t.limited.dump(),
                cached,
            ]
            put("target", [targets[name]], t.seen_at, plain)
    for (name, traffic), c in seen.classes.items():
        if name in targets:
            factors = [c.ttft.dump(), c.tpot.dump(), c.answer.dump()]
            put("class", [targets[name], traffic], c.seen_at, factors)
    for (name, how), j in seen.judged.items():
        if name in targets:
            data: list[Any] = [
                j.law.dump(),
                j.draws.dump(),
                j.draw.dump(),
                j.drawing.dump(),
                j.anchor.reference,
            ]
            put("judge", [targets[name], how], j.seen_at, data)
    for drafter, d in seen.drafts.items():
        if drafter in drafts:
            put("draft", [drafts[drafter]], d.seen_at, [d.token.dump(), d.first.dump()])
    for (name, drafter, how, traffic), r in seen.rounds.items():
        if name in targets and drafter in drafts:
            put("rounds", [targets[name], drafts[drafter], how, traffic], r.seen_at, r.dump())
    for (name, drafter, how, temperature), r in seen.temperatures.items():
        if name in targets and drafter in drafts:
            key = [targets[name], drafts[drafter], how, temperature]
            put("temperature", key, r.seen_at, r.dump())
    for (name, drafter, traffic), p in seen.predictions.items():
        if name in targets and drafter in drafts:
            key = [targets[name], drafts[drafter], traffic]
            put("prediction", key, p.seen_at, [p.taken.dump(), p.sent.dump(), p.tpot.dump()])
    return {"version": VERSION, "entries": list(entries.values())}


def load(
    seen: Measurements,
    data: Mapping[str, Any],
    targets: Mapping[str, str],
    drafts: Mapping[str, str],
    now: float,
) -> int:
    """Take over a dump into measurements that have seen nothing yet; how many entries there were
    for these targets and drafters. ``ValueError`` for another version; an entry of another shape
    raises what it meets (``LookupError``, ``TypeError``, ``ValueError``)."""
    if data.get("version") != VERSION:
        raise ValueError(f"version {data.get('version')!r}, expected {VERSION}")
    shares: dict[int, float] = {}
    """What each class's rounds were taken over at."""
    found = 0
    for kind, key, entry, share in _young(data["entries"], now):
        if kind == "draft":
            for name in _named(drafts, key[0]):
                _load_draft(seen.drafts[name], entry, share)
                found += 1
            continue
        drafted = kind in _DRAFTED
        for target in _named(targets, key[0]):
            for drafter in _named(drafts, key[1]) if drafted else ("",):
                _load(seen, kind, [target, drafter, *key[1 + drafted :]], entry, share, shares)
                found += 1
    return found


def _named(names: Mapping[str, str], kept: Any) -> list[str]:
    """All names of one thing: two drafts may be the same model."""
    return [name for name, key in names.items() if key == kept]


def _load(
    seen: Measurements,
    kind: str,
    key: list[Any],
    entry: Entry,
    share: float,
    shares: dict[int, float],
) -> None:
    target, drafter, *rest = key
    if kind == "target":
        _load_target(seen.targets[target], entry, share)
    elif kind == "class":
        _load_class(seen.own_class(target, rest[0]), entry, share)
    elif kind == "judge":
        _load_judge(seen.judged[target, rest[0]], entry, share)
    elif kind == "rounds":
        rounds = seen.rounds_of(target, drafter, rest[0], rest[1])
        above = 1.0 if rounds.parent is None else shares.get(id(rounds.parent), 0.0)
        rounds.load(entry["data"], share, above)
        shares[id(rounds)] = share
    elif kind == "temperature":
        at = (target, drafter, rest[0], float(rest[1]))
        seen.temperatures.setdefault(at, Rounds()).load(entry["data"], share, 1.0)
    elif kind == "prediction":
        prediction = seen.predictions.setdefault((target, drafter, rest[0]), Prediction())
        taken, sent, tpot = entry["data"]
        prediction.taken.load(taken, share)
        prediction.sent.load(sent, share)
        prediction.tpot.load(tpot, share)
        prediction.seen_at = float(entry["at"])


def merged(own: Mapping[str, Any], kept: Mapping[str, Any], now: float) -> dict[str, Any]:
    """``own`` and what another process has kept meanwhile: of each key the newer entry, and of all
    the newest :data:`MAX_ENTRIES`, whatever servers a cache folder has seen come and go."""
    entries: dict[tuple[Any, ...], Entry] = {}
    for data in (kept, own):
        if data.get("version") != VERSION:
            continue
        for kind, key, entry, _ in _young(data["entries"], now):
            at = (kind, *key)
            if at not in entries or entries[at]["at"] <= entry["at"]:
                entries[at] = entry
    newest = sorted(entries.values(), key=lambda entry: float(entry["at"]), reverse=True)
    return {"version": VERSION, "entries": newest[:MAX_ENTRIES]}


def elsewhere(entry: Entry, remote: Collection[str]) -> Entry | None:
    """What an entry from another machine says here: times count as a start of a few observations,
    those of drafts only where a server makes them (``remote``, by the names they are kept by);
    all else holds everywhere."""
    kind, data = entry["kind"], entry["data"]
    if kind == "draft":
        if entry["key"][0] not in remote:
            return None
        data = [_start(data[0]), _start(data[1])]
    elif kind == "target":
        data = [_start(data[0]), _start(data[1]), *data[2:]]
    elif kind == "class":
        data = [[_start(data[0][0])], [_start(data[1][0])], *data[2:]]
    elif kind == "judge":
        law, draws, draw, drawing, reference = data
        data = [_start(law), draws, _start(draw), _start(drawing), reference]
    elif kind == "prediction":
        data = [*data[:2], _start(data[2])]
    return {**entry, "data": data}


def _start(data: list[Any]) -> list[Any]:
    """A level's, mean's or regression's dump that counts as :data:`START` observations at most."""
    sums = 4 if len(data) == 5 else 2
    weight = float(data[sums - 1])
    share = min(1.0, START / weight) if weight > 0 else 1.0
    scaled = [
        [float(v) * share for v in each] if isinstance(each, list) else float(each) * share
        for each in data[:sums]
    ]
    return [*scaled, *data[sums:]]


_DRAFTED = ("rounds", "temperature", "prediction")


def _young(entries: Any, now: float) -> Iterator[tuple[str, list[Any], Entry, float]]:
    """(kind, key, entry, the share of its weight that its age leaves); coarser classes first. What
    a clock that was ahead has dated is from now: else it would stay the newest, and as new."""
    ordered: Callable[[Entry], int] = lambda entry: len(str(entry["key"][-1]))  # noqa: E731
    for entry in sorted(entries, key=ordered):
        age = now - float(entry["at"])
        if age < 0:
            age, entry = 0.0, {**entry, "at": now}
        if age <= MAX_AGE_S:
            yield str(entry["kind"]), list(entry["key"]), entry, 0.5 ** (age / HALF_LIFE_S)


def _load_target(target: Target, entry: Entry, share: float) -> None:
    ttft, tpot, failed, limited, cached = entry["data"]
    target.ttft.load(ttft, share)
    target.tpot.load(tpot, share)
    target.failed.load(failed, share)
    target.limited.load(limited, share)
    for purpose, data in cached.items():
        found = target.cached[str(purpose)] = Share(0.95)
        found.load(data, share)
    target.seen_at = float(entry["at"])


def _load_class(own: Class, entry: Entry, share: float) -> None:
    ttft, tpot, answer = entry["data"]
    own.ttft.load(ttft, share)
    own.tpot.load(tpot, share)
    own.answer.load(answer, share)
    own.seen_at = float(entry["at"])


def _load_judge(judged: Judged, entry: Entry, share: float) -> None:
    law, draws, draw, drawing, reference = entry["data"]
    judged.law.load(law, share)
    judged.draws.load(draws, share)
    judged.draw.load(draw, share)
    judged.drawing.load(drawing, share)
    judged.anchor.reference = None if reference is None else float(reference)
    judged.seen_at = float(entry["at"])


def _load_draft(draft: Draft, entry: Entry, share: float) -> None:
    token, first = entry["data"]
    draft.token.load(token, share)
    draft.first.load(first, share)
    draft.seen_at = float(entry["at"])
