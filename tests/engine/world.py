"""A small known world: an order-1 chain over 24 tokens behind the reference server, and drafts."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from specroute import AsyncSpecRoute
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from specroute.speculation.speculator import Speculator
from tests.support.scripted import ScriptVocabulary, TableDrafter

WORDS = [*"abcdefghijklmnopqrstuv", " "]


def chain(seed: int = 3, end: float = 0.02) -> dict[str, Any]:
    """A script: every token's successors are drawn once; ``end``: the share of the end token."""
    rng = random.Random(seed)

    def row() -> dict[str, float]:
        weights = {w: rng.expovariate(1) ** 3 + 0.01 for w in WORDS}
        return {**weights, "</s>": sum(weights.values()) * end}

    return {
        "name": "chain",
        "vocabulary": [*WORDS, "</s>"],
        "eos": "</s>",
        "default": row(),
        "rows": [{"after": [w], "next": row()} for w in WORDS],
    }


class World:
    """The script's own probabilities, by id."""

    def __init__(self, spec: Mapping[str, Any] | None = None) -> None:
        self.spec = dict(spec or chain())
        self.script = Script(self.spec)
        self.vocabulary = ScriptVocabulary(self.script)
        (self.eos,) = self.script.eos
        self.tokens = [*range(len(self.spec["vocabulary"]))]

    def p(self, last: int) -> dict[int, float]:
        """The next token's raw distribution after ``last``."""
        row = self.script.row([last])
        return {t: math.exp(row.logprob(t)) for t in self.tokens if row.logprob(t) > -1e9}

    def shaped(self, last: int, *, temperature: float, top_p: float = 1, top_k: int = 0) -> Any:
        """The same under sampling settings, computed here from their definition."""
        p = {t: v ** (1 / temperature) for t, v in self.p(last).items()}
        total = sum(p.values())
        ranked = sorted(((v / total, -t) for t, v in p.items()), reverse=True)
        if top_k:
            ranked = ranked[:top_k]
            mass = sum(v for v, _ in ranked)
            ranked = [(v / mass, t) for v, t in ranked]
        kept, mass = [], 0.0
        for v, t in ranked:
            kept.append((v, -t))
            mass += v
            if mass >= top_p:
                break
        return {t: v / mass for v, t in kept}

    def drafter(self, kind: str = "good", **options: Any) -> TableDrafter:
        """``good``: the target's rows, slightly off; ``bad``: unrelated; ``greedy-ish``: peaked."""
        rng = random.Random(11)
        q: dict[int, dict[int, float]] = {}
        for last in [*self.tokens, -1]:
            row = self.p(last if last >= 0 else self.tokens[0])
            if kind == "good":
                row = {t: v * rng.uniform(0.5, 1.5) for t, v in row.items()}
            elif kind == "bad":
                row = {t: rng.expovariate(1) + 0.01 for t in self.tokens}
            elif kind == "peaked":
                best = max(row, key=lambda t: row[t])
                row = {t: (0.9 if t == best else 0.1 / len(row)) for t in row}
            q[last] = row
        return TableDrafter(self.vocabulary, q, **options)


@asynccontextmanager
async def speculating(
    world: World,
    server: ReferenceServer,
    *,
    method: str = "score",
    k: int = 4,
    drafter: TableDrafter | None = None,
    policy: Mapping[str, Any] | None = None,
    provider: Mapping[str, Any] | None = None,
    shadow: float = 0.0,
    store: Mapping[str, Any] | None = None,
    daily_usd: float | None = None,
    **client: Any,
) -> AsyncIterator[AsyncSpecRoute]:
    """A client whose model ``m`` speculates on the server's script with a table drafter.

    Scoring is by echo alone, unless ``provider`` says otherwise (``{"capabilities": {}}``: as the
    profile has it).
    """
    policy = policy or {"preset": "fixed", "method": method, "num_speculative_tokens": k}
    config = {
        "version": 1,
        "providers": {
            "lab": {
                "profile": "reference",
                "base_url": server.base_url,
                **(provider or {}),
                "capabilities": (provider or {}).get("capabilities", {"score": ["echo"]}),
            }
        },
        "drafts": {"table": {"kind": "ngram"}},
        "models": {"m": {"targets": ["lab:chain"], "drafts": ["table"], "policy": policy}},
        # What a draft is asked for is counted: no more than the requests' own.
        "shadow": {"share": shadow},
        "store": dict(store or {}),
        "budgets": {} if daily_usd is None else {"daily": {"usd": daily_usd}},
    }
    async with AsyncSpecRoute(config=config, **client) as made:
        router = made.router
        made.drafter = drafter or world.drafter()  # type: ignore[attr-defined]
        router.speculation = Speculator(
            router.config, router.http, router.supervisor, drafters={"table": made.drafter}
        )
        yield made
