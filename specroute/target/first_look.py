"""The first look at a server: of the probe what methods need, beside the first use of a target.

Runs once per host and model, and only where its findings can be kept; calibration has found out by
then how prompts are scored. Knows which checks those are, how much they may use and what is kept;
how each is made, ``checks`` knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import TYPE_CHECKING

from specroute import probed
from specroute.errors import ProviderError
from specroute.target.checks import (
    ANSWER_TOKENS,
    LOGPROB_LIMITS,
    QUESTION,
    chat_answer,
    prefill_kept,
    top_n,
)
from specroute.target.probe import Check, Finding, Probe

if TYPE_CHECKING:
    from specroute.book import Book
    from specroute.http.deadline import Deadline
    from specroute.target.target import Target

log = logging.getLogger("specroute")

PASSING = {408, 409, 425, 429, 502, 503, 504}
"""Statuses that say nothing of what the server can do."""
AGAIN = 2
"""Times that the same question is asked again."""
UNKNOWN_PREFILLS = ("trailing_assistant", "continue_final_message")
"""What is tried where the profile knows nothing of prefill."""
CALLS = 1 + len(LOGPROB_LIMITS) + AGAIN + 2 * len(UNKNOWN_PREFILLS) + 1
BUDGET = {
    "calls": CALLS,
    "prompt": 60 * CALLS,
    "completion": (CALLS - len(LOGPROB_LIMITS)) * ANSWER_TOKENS + len(LOGPROB_LIMITS),
}
"""The most that it uses, but for what a chat template adds to each prompt."""


async def steady(probe: Probe) -> list[Finding]:
    """How often does the target differ from its own answer at T = 0?"""
    texts = [(await probe.chat(QUESTION, ANSWER_TOKENS)).text for _ in range(AGAIN)]
    differ = sum(text != probe.answer for text in texts)
    how = f"{differ} of {AGAIN} repeats differ"
    return [Finding("disagrees_with_itself", differ / AGAIN, how)]


def wanted(target: Target, base_url: str) -> bool:
    """Whether there is somewhere to keep the findings, and none are kept yet."""
    if probed.folder() is None or not target.learned.calibrated:
        return False
    return probed.load(base_url, target.ref.model) is None


async def look(
    target: Target,
    base_url: str,
    stated: Collection[str],
    book: Book,
    deadline: Callable[[], Deadline],
) -> None:
    """Find out, keep, and use over the profile, but for what the config has ``stated``.

    A server that fails in the middle of it is looked at again another time.
    """
    log.info(
        "a first look at %s: at most %d calls, about %d prompt and %d generated tokens; "
        "probe = false in its provider's table leaves it out",
        target.ref,
        *BUDGET.values(),
    )
    run = Probe(target, (), book, deadline)
    caps = target.capabilities
    run.prefills = (caps.prefill,) if caps.prefill else UNKNOWN_PREFILLS
    checks: list[Check] = [chat_answer, steady]
    if caps.completions:
        checks.append(top_n)
    if caps.prefill or "prefill" not in stated:  # A stated "none" stays.
        checks.append(prefill_kept)
    try:
        seen = await run.run(checks)
    except ProviderError as error:
        log.info("the first look at %s was broken off: %s", target.ref, error)
        return
    if run.refusals & PASSING or not seen.get("chat"):
        log.info(
            "the first look at %s was not clear: it is looked at again another time", target.ref
        )
        return
    findings = [finding for finding in seen.findings if finding.value is not None]
    probed.save(base_url, target.ref.model, [asdict(finding) for finding in findings])
    known = {f.field: f.value for f in findings if f.field not in stated}
    target.capabilities = probed.overlaid(target.capabilities, known)
