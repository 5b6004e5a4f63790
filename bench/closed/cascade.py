"""``cascade``: dollars against plain, by the reference server's own bill, beside the formula."""

from __future__ import annotations

from typing import Any

from bench.closed.outcome import Outcome
from specroute import AsyncSpecRoute, Report, report
from specroute.reference.running import ReferenceServer

TITLE = "cascade: prompt 1000, answer 500 tokens, output at 5 times the input's price"
FORMULA = {0.5: (0.82, 1.14), 0.75: (0.65, 1.00), 0.9: (0.54, 0.92), 1.0: (0.43, 0.43)}
"""Share kept: dollars against plain, with cached input at a tenth and without a cache."""
WORDS = [f"w{i} " for i in range(1000)]
ANSWER = WORDS[:499]


def script(kept: float = 1.0) -> dict[str, Any]:
    """Answers in 499 tokens and an end token; a draft is right in its first ``kept``."""
    right = round(kept * 500)
    said = [*ANSWER[:right], *WORDS[500 : 999 - right]]
    return {
        "name": "words",
        "vocabulary": [*WORDS, "p "],
        "answers": [{"when": "p ", "text": "".join(said)}],
    }


def config(target: ReferenceServer, draft: ReferenceServer, cached: float) -> dict[str, Any]:
    prices = {"input": 2.0, "output": 10.0, "cached_input": 2.0 * cached}
    by_text = {"score": ["echo"], "id_prompts": False, "template": "apply-template"}
    return {
        "version": 1,
        "providers": {
            "big": {
                "profile": "reference",
                "base_url": target.base_url,
                "capabilities": by_text,
                "prices": prices,
            },
            "small": {
                "profile": "reference",
                "base_url": draft.base_url,
                "prices": {"input": 0.0, "output": 0.0},
            },
        },
        "drafts": {"mini": {"kind": "remote", "provider": "small", "model": "words"}},
        "models": {
            "m": {
                "targets": ["big:words"],
                "drafts": ["mini"],
                "policy": {"preset": "fixed", "method": "cascade"},
            }
        },
    }


async def run(rounds: int) -> Outcome:
    found = Outcome()
    asked = 0
    for kept, formula in FORMULA.items():
        for cached, expected in zip((0.1, 1.0), formula, strict=True):
            with ReferenceServer(script()) as target, ReferenceServer(script(kept)) as draft:
                async with AsyncSpecRoute(config=config(target, draft, cached)) as client:
                    await client.warm_up()
                    plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
                    asked += 2
                    a = await _ask(plain, WORDS[asked])
                    b = await _ask(client, WORDS[asked + 1])
            ratio = (b[1].cost_usd or 0) / (a[1].cost_usd or 1)
            found.rows.append(
                {
                    "kept": f"{kept:.0%}",
                    "cached input": f"{cached:g} of the price",
                    "kept tokens": f"{b[1].accepted}/{b[1].drafted}",
                    "billed in / cached / out": f"{b[1].billed_prompt_tokens} / "
                    f"{b[1].billed_cached_tokens} / {b[1].billed_completion_tokens}",
                    "plain $/1000": f"{1000 * (a[1].cost_usd or 0):.2f}",
                    "cascade $/1000": f"{1000 * (b[1].cost_usd or 0):.2f}",
                    "against plain": f"{ratio:.3f}",
                    "formula": f"{expected:.2f}",
                }
            )
            name = f"{kept:.0%} kept, cached input at {cached:g}"
            found.held[f"{name}: within 5 % of the formula"] = abs(ratio / expected - 1) <= 0.05
            found.held[f"{name}: the plain answer"] = a[0] == b[0]
    found.notes.append("The draft is a remote one whose tokens cost nothing here.")
    return found


async def _ask(client: AsyncSpecRoute, first: str) -> tuple[str, Report]:
    """A prompt that the server has not seen: it begins with another word each time."""
    answer = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": first + "p " * 996}],
        temperature=0,
        max_tokens=700,
    )
    return answer.choices[0].message.content or "", report(answer)
