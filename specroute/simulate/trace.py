"""A world read from a recorded trace (``record = "traces.jsonl"``).

Replayed are the recorded prompts' and answers' lengths, the plain pace, scoring times, prices, and
which drafted tokens were right, as the drafters' shadow lines or the rounds themselves show. What a
request did not show for itself (a plain one no scoring time, a speculated one nothing of the other
drafter) is taken from the request nearest to it that did. Knows no policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from specroute.errors import ConfigError
from specroute.simulate.scenario import VERIFY_PER_TOKEN_S, Drafter
from specroute.simulate.world import runs_of

T = TypeVar("T")

VERSION = 1
_SURE = 0.9
"""What the drafter is taken to think of each of its tokens: traces don't tell."""
_UNTIMED_DRAFT_S = 0.004


@dataclass(frozen=True, slots=True)
class _Request:
    """One recorded request, as far as it tells."""

    id: str
    target: str
    context: int
    tokens: int
    ttft_s: float | None
    tpot_s: float | None
    round_s: float | None
    """A scoring request's seconds, its tokens' own left out."""
    prices: tuple[float, float, float | None] | None
    hits: Mapping[str, tuple[bool, ...]]
    """By drafter: whether it was right at each position, where that is known of all of them."""
    traffic: str = ""
    whole_s: float | None = None
    """Of a plain answer that wasn't streamed: all its seconds."""


class Recorded:
    """The world of a trace."""

    temperature: float | None = None

    def __init__(self, requests: Sequence[_Request], drafters: Sequence[Drafter]) -> None:
        self._requests = requests
        self.requests, self.seed = len(requests), 0
        self.targets = (requests[0].target,)
        self.drafters = tuple(drafters)
        self.shadow = True
        self._ttft = _filled([r.ttft_s for r in requests])
        self._tpot = _filled([r.tpot_s for r in requests])
        self._round = _filled([r.round_s for r in requests], self._ttft)
        self._hits = {
            d.name: _filled([r.hits.get(d.name) for r in requests]) for d in self.drafters
        }
        self._runs: dict[tuple[int, str], list[int]] = {}

    def traffic(self, i: int) -> str:
        return self._requests[i].traffic

    def context(self, i: int) -> int:
        return self._requests[i].context

    def tokens(self, i: int) -> int:
        return self._requests[i].tokens

    def tpot(self, i: int, target: str) -> float:
        return self._tpot[i]

    def ttft(self, i: int, n: int, target: str) -> float:
        return self._ttft[i]

    def round_s(self, i: int, n: int, k: int, target: str) -> float:
        return self._round[i] + k * VERIFY_PER_TOKEN_S

    def prices(self, target: str) -> tuple[float, float, float | None] | None:
        return self._requests[0].prices

    def runs(self, i: int, drafter: Drafter, target: str) -> Sequence[int]:
        """Of the request's own hits, repeated or cut to its answer's length."""
        key = (i, drafter.name)
        found = self._runs.get(key)
        if found is None:
            hits = self._hits[drafter.name][i]
            n = self._requests[i].tokens
            found = self._runs[key] = runs_of((hits * (n // len(hits) + 1))[:n])
        return found

    def confidences(self, i: int, drafter: Drafter, target: str) -> Sequence[float]:
        return [_SURE] * self.tokens(i)


def read_trace(path: Path) -> Recorded:
    """The world of a trace file; :class:`ConfigError` with the line for one that can't be read.

    Requests of the target that most are for, complete ones with a known length; in their order.
    """
    lines: list[dict[str, Any]] = []
    shadows: dict[str, dict[str, tuple[bool, ...]]] = {}
    seconds: dict[str, list[float]] = {}
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"the trace {path} can't be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            kind, version = data["kind"], data["v"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}, line {number}: no line of a trace: {error!r}") from error
        if version != VERSION:
            raise ConfigError(f"{path}, line {number}: version {version!r}, expected {VERSION}")
        if kind == "shadow":
            hits = tuple(c == "1" for c in data["hits"])
            if hits:
                shadows.setdefault(data["id"], {})[data["drafter"]] = hits
            if data.get("draft_s") is not None:
                seconds.setdefault(data["drafter"], []).append(data["draft_s"])
        elif kind == "request" and data.get("complete") and data.get("answer_tokens"):
            lines.append(data)
    if not lines:
        raise ConfigError(f"the trace {path} has no complete request of a known length")
    target = _most(line["target"] for line in lines)
    requests = [_read(line, shadows) for line in lines if line["target"] == target]
    for each in lines:
        for drafted, _, _, _, draft_s in each.get("rounds") or ():
            if drafted and draft_s is not None and each.get("drafter"):
                seconds.setdefault(each["drafter"], []).append(draft_s / drafted)
    names = sorted({name for request in requests for name in request.hits})
    if not names:
        raise ConfigError(
            f"the trace {path} shows no draft's tokens: record with shadowing on, or with "
            "speculation"
        )
    drafters = [Drafter(n, median(seconds[n]) if n in seconds else _UNTIMED_DRAFT_S) for n in names]
    requests = _parted(requests)
    if all(request.tpot_s is None or request.ttft_s is None for request in requests):
        raise ConfigError(f"the trace {path} has no plain answer whose pace is known")
    return Recorded(requests, drafters)


def _read(
    line: Mapping[str, Any], shadows: Mapping[str, Mapping[str, tuple[bool, ...]]]
) -> _Request:
    plain = line["method"] == "plain"
    rounds = line.get("rounds") or ()
    timed = [v - d * VERIFY_PER_TOKEN_S for d, _, _, v, _ in rounds if v is not None]
    hits = dict(shadows.get(line["id"], {}))
    drafter = line.get("drafter")
    if drafter and rounds and drafter not in hits:
        found = _hits(rounds)
        if found:
            hits[drafter] = found
    usd_in, usd_out, prices = line.get("usd_in"), line.get("usd_out"), None
    if usd_in is not None and usd_out is not None:
        prices = (usd_in, usd_out, line.get("usd_cached"))
    return _Request(
        line["id"],
        line["target"],
        line.get("prompt_tokens") or line.get("about_prompt_tokens") or 0,
        line["answer_tokens"],
        line.get("ttft_s") if plain else None,
        line.get("tpot_s") if plain else None,
        max(median(timed), 1e-4) if timed else None,
        prices,
        hits,
        line.get("traffic") or "",
        line.get("total_s") if plain and line.get("tpot_s") is None else None,
    )


def _parted(requests: Sequence[_Request]) -> list[_Request]:
    """With the seconds of answers that weren't streamed parted into a start and a pace. The start
    is as streamed ones had it; else a scoring request's time, which is a call of one token; else as
    any further token."""
    known = [r.ttft_s for r in requests if r.ttft_s is not None and r.tpot_s is not None]
    known = known or [r.round_s for r in requests if r.round_s is not None]
    found = []
    for request in requests:
        if request.whole_s is not None and request.tokens > 1:
            each = request.whole_s / request.tokens
            start = min(median(known), request.whole_s) if known else each
            tpot = (request.whole_s - start) / (request.tokens - 1)
            request = replace(request, ttft_s=start, tpot_s=tpot)
        found.append(request)
    return found


def _hits(rounds: Iterable[Sequence[Any]]) -> tuple[bool, ...]:
    """Of one request's rounds: the accepted tokens, then the rejected one. Of the token that a
    fully accepted round got as a bonus nothing is known: it is left out."""
    found: list[bool] = []
    for _, accepted, judged, _, _ in rounds:
        found += [True] * accepted + [False] * (judged > accepted)
    return tuple(found)


def _filled(values: Sequence[T | None], instead: Sequence[T] | None = None) -> list[T]:
    """Each value, or that of the nearest one that has one; ``instead`` where none has."""
    known = [i for i, value in enumerate(values) if value is not None]
    if not known:
        assert instead is not None
        return list(instead)
    found = []
    for i, value in enumerate(values):
        nearest = value if value is not None else values[min(known, key=lambda j: abs(j - i))]
        assert nearest is not None
        found.append(nearest)
    return found


def _most(values: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: counts[value])
