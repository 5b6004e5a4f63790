"""``judge`` and ``race`` on a slow closed chat API with a cheap remote draft."""

from __future__ import annotations

import json
import statistics
from typing import Any

from bench.closed import task
from bench.closed.outcome import Outcome, ratio
from specroute import AsyncSpecRoute
from specroute.reference.running import ReferenceServer

TITLE = "judge, race: target at TTFT 600 ms, TPOT 60 ms (under load), draft at 150 ms, 8 ms"
PACE, DRAFT_PACE = "ttft=600ms,tpot=60ms", "ttft=150ms,tpot=8ms"
PRICES = {"target": {"input": 2.5, "output": 15.0}, "draft": {"input": 0.15, "output": 0.6}}
ANSWER = (
    "Thank you for writing to us. Your order was sent on Monday and will reach you within three "
    "days. You can follow it with the number in the mail that we sent you. If it has not come by "
    "Friday, write to us again and we will send another one at once, without any cost for you."
)
GOOD = ANSWER.replace("within three days", "in about three days").replace(
    "another one", "a new one"
)
BAD = "We have no order under that name, so please check the number and the day that you bought it."
VERDICT = "It is given below in numbered"


def scripts(good: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """(target, draft): the target accepts a good draft whole and refuses a bad one."""
    verdict = json.dumps({"accepted": 4 if good else 0, "correction": ""})
    return (
        {
            "name": "big",
            "answers": [{"when": VERDICT, "text": verdict}, {"when": "", "text": ANSWER}],
        },
        {"name": "mini", "answers": [{"when": "", "text": GOOD if good else BAD}]},
    )


async def run(rounds: int) -> Outcome:
    found = Outcome()
    for method in ("judge", "race"):
        for good in (True, False):
            big, mini = scripts(good)
            with (
                ReferenceServer(big, pace=PACE, disable=task.CLOSED) as target,
                ReferenceServer(mini, pace=DRAFT_PACE) as draft,
            ):
                async with AsyncSpecRoute(config=_config(target, draft, method)) as client:
                    plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
                    await task.ask(plain, "Where is my order?")
                    pairs = [
                        (
                            await task.ask(plain, "Where is my order?"),
                            await task.ask(client, "Where is my order?"),
                        )
                        for _ in range(min(rounds, 5))
                    ]
            _row(found, method, good, pairs)
    found.notes.append(
        "A bad draft costs judge the draft and a verdict before the plain call. It costs race "
        "money, and the first text waits until the first words have decided. The script's tokens "
        "are the answers' words, so judge's question counts a token a character here: about five "
        "times what it costs a real tokenizer."
    )
    return found


def _row(found: Outcome, method: str, good: bool, pairs: list[Any]) -> None:
    gain = ratio([a.seconds for a, _ in pairs], [b.seconds for _, b in pairs])
    dollars = [
        statistics.median(run.report.cost_usd or 0 for run in runs)
        for runs in zip(*pairs, strict=True)
    ]
    kind = "good draft" if good else "bad draft"
    found.rows.append(
        {
            "method": method,
            "": kind,
            "plain s": f"{statistics.median(a.seconds for a, _ in pairs):.2f}",
            "ours s": f"{statistics.median(b.seconds for _, b in pairs):.2f}",
            "plain / ours (95 %)": str(gain),
            "first text, plain / ours s": f"{statistics.median(a.ttft_s for a, _ in pairs):.2f} / "
            f"{statistics.median(b.ttft_s for _, b in pairs):.2f}",
            "plain $/1000": task.per_thousand(dollars[0]),
            "ours $/1000": task.per_thousand(dollars[1]),
        }
    )
    wanted = GOOD if good else ANSWER
    found.held[f"{method}, {kind}: the answer"] = all(b.text == wanted for _, b in pairs)
    if good:
        found.held[f"{method}, {kind}: at least 1.5x"] = gain.value >= 1.5
    elif method == "race":
        found.held[f"{method}, {kind}: at most 3 % slower"] = 1 / gain.value <= 1.03


def _config(target: ReferenceServer, draft: ReferenceServer, method: str) -> dict[str, Any]:
    policy = {"preset": "fixed", "method": method, "exactness": "heuristic"}
    made = task.config(target, policy)
    made["providers"]["api"]["prices"] = PRICES["target"]
    made["providers"]["cheap"] = {
        "profile": "reference",
        "base_url": draft.base_url,
        "prices": PRICES["draft"],
    }
    made["drafts"] = {"d": {"kind": "remote", "provider": "cheap", "model": "mini"}}
    made["models"]["m"].update(targets=["api:big"], drafts=["d"])
    return made
