"""What a demo runs on: its options, its config, and its target.

Knows the reference server's start and end. Shows nothing but that it is starting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PACE = "tpot=40ms,rtt=10ms,prefill=10000"
PRICES = {"input": 3.0, "output": 15.0}
"""Dollars per million tokens, as a hosted model of that size may cost;"""
OWN = {"input": 0.0, "output": 0.0}
"""and on a server of one's own, where a further request costs nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The options, as read."""

    base_url: str | None
    model: str | None
    env_key: str | None
    profile: str
    draft: str | None
    policy: str
    prompts: int
    max_tokens: int
    pace: str

    @property
    def paced(self) -> bool:
        """Whether the target is our own server at a simulated pace."""
        return self.base_url is None


@dataclass(frozen=True, slots=True)
class Side:
    """One speculating client of the demo: the target's prices as it knows them."""

    prices: Mapping[str, float]


def sides(plan: Plan) -> dict[str, Side]:
    """The demo's clients, by name: on the paced server one that pays for tokens, and one as on a
    server of one's own, where seconds alone decide. Prices of a server that isn't ours are its
    profile's matter."""
    if not plan.paced:
        return {"speculative": Side({})}
    return {
        "own server, $0": Side(OWN),
        f"at ${PRICES['input']:g}/${PRICES['output']:g}": Side(PRICES),
    }


@contextmanager
def target(plan: Plan, console: Console) -> Iterator[tuple[str, str]]:
    """(base_url, model) of the target; the reference server is started and stopped here."""
    if plan.base_url is not None and plan.model is not None:
        yield plan.base_url, plan.model
        return
    from specroute.reference.bundled import target_dir
    from specroute.reference.running import ReferenceServer

    with console.status("starting the reference server …"):
        server = ReferenceServer(
            target_dir(), pace=plan.pace, names=["target"], process=True, threads=1
        )
        running = server.__enter__()
    try:
        yield running.base_url, "target"
    finally:
        server.__exit__(None, None, None)


def config(
    plan: Plan, base_url: str, model: str, prices: Mapping[str, float] = PRICES
) -> dict[str, Any]:
    """The demo's own config, as an app would write it. ``prices``: the paced server's."""
    # Nothing is asked of the server beside what is measured.
    provider: dict[str, Any] = {"profile": plan.profile, "base_url": base_url, "probe": False}
    provider["env_key"] = plan.env_key or ""
    if plan.paced:
        provider.update(profile="reference", prices=dict(prices))
    drafts: dict[str, Any] = {}
    name = "ngram"
    if plan.draft != "ngram" and (plan.paced or plan.draft is not None):
        from specroute.reference.bundled import draft_dir

        name = "draft"
        drafts[name] = {"kind": "local", "model": plan.draft or str(draft_dir()), "device": "auto"}
    return {
        "version": 1,
        "providers": {"lab": provider},
        "drafts": drafts,
        "models": {
            "demo": {
                "targets": [f"lab:{model}"],
                "drafts": [name],
                "policy": _policy(plan.policy),
            }
        },
    }


def _policy(text: str) -> Any:
    method, colon, k = text.partition(":")
    if not colon:
        return text
    if not k.isdigit():
        raise typer.BadParameter(f"--policy {text!r}: expected a preset or method:K, as score:6")
    return {"preset": "fixed", "method": method, "num_speculative_tokens": int(k)}


def key_of(plan: Plan) -> str:
    """The key for the plan's server."""
    import os

    if plan.env_key is None:
        return "none"
    key = os.environ.get(plan.env_key)
    if not key:
        raise typer.BadParameter(f"--env-key: the variable {plan.env_key} is not set")
    return key
