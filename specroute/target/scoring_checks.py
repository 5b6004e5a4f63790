"""The probe's questions about scoring: in which dialects, from what cache, and how many at once.

Calibrates a target of its own on all dialects there are, and asks it on. Knows no profile and no
config.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from specroute.context import Committed, Prompt
from specroute.errors import ProviderError, StatusError
from specroute.target.calibration import calibrate
from specroute.target.dialects import DIALECTS
from specroute.target.learned import Trusted
from specroute.target.probe import Finding, Probe, Probed
from specroute.target.scoring import score
from specroute.target.target import Target
from specroute.target.view import BadEvidence, View

SENTENCE = "The quick brown fox jumps over the lazy dog and runs away."
LONG_REPEATS = 40
"""Of the sentence, to a prompt whose reading takes time."""
REPEATS = 3
TOGETHER = 4
"""Rounds at once, in requests of their own and in one."""
DRAFTED = 4
"""Tokens that each of them scores, where it does so by ids."""


async def scoring(probe: Probe) -> list[Finding]:
    """Which dialects of scoring agree with what the target itself generates?"""
    found: list[Finding] = []
    seen = Probed([*probe.found, *found]).capabilities(probe.target.capabilities)
    caps = replace(seen, score=tuple(DIALECTS), joint_rounds=True)
    trial = Target(probe.target.ref, probe.http, caps, probe.target.tokenizer)
    await calibrate(trial, probe.vocabularies, probe.book, probe.deadline())
    learned = trial.learned
    trusted = [pair for pair in (learned.dialect, learned.sampler) if pair is not None]
    probe.trial = trial
    if learned.dialect is not None:
        probe.scored = (trial, learned.dialect)
    names = [dialect.name for dialect, _ in trusted]
    how = ", ".join(f"{dialect.name} by {form}" for dialect, form in trusted)
    told = names if learned.calibrated else None  # It failed for reasons of its own.
    found.append(Finding("score", told, f"agrees: {how}" if names else learned.reason))
    for name, why in learned.refused.items():
        found.append(Finding(f"not scored by {name}", None, why))
    by_ids = any(form == "ids" for _, form in trusted)
    if names:
        found.append(
            Finding("scores_by_ids", by_ids, "a vocabulary with the server's ids is known")
        )
    return found


async def cache_kept(probe: Probe) -> list[Finding]:
    """Does scoring read the server's prefix cache? The same long prompt, twice."""
    if probe.scored is None:
        return []
    trial, using = probe.scored
    try:
        views = [
            await _scored(probe, trial, using, f"{SENTENCE} " * LONG_REPEATS) for _ in range(2)
        ]
    except (BadEvidence, StatusError) as error:
        return [Finding("echo_keeps_cache", None, f"a long prompt could not be scored: {error}")]
    cached, sent = views[1].usage.cached_tokens, views[1].usage.prompt_tokens or 0
    how = f"{cached} of {sent} prompt tokens cached when scored again"
    return [Finding("echo_keeps_cache", None if cached is None else cached > sent / 2, how)]


async def rounds_together(probe: Probe) -> list[Finding]:
    """Can rounds of several requests share one, and is that quicker than one each, at once?"""
    trial = probe.trial
    if trial is None or not (trial.learned.dialect or trial.learned.sampler):
        return []
    learned = trial.learned
    using = next(
        (u for u in (learned.dialect, learned.sampler) if u and u[0].name in learned.joins), None
    )
    if using is None:
        return [Finding("joint_rounds", False, "a list of two rounds was not answered as each is")]
    joins, seconds = set(learned.joins), dict[bool, list[float]]({False: [], True: []})

    async def one(n: int) -> None:
        await _scored(probe, trial, using, f"{n}. {SENTENCE} ", DRAFTED)

    try:
        for shared in (False, True) * REPEATS:
            learned.joins = joins if shared else set()
            clock = probe.deadline().clock
            began = clock()
            await asyncio.gather(*map(one, range(TOGETHER)))
            seconds[shared].append(clock() - began)
    except (BadEvidence, ProviderError) as error:
        return [Finding("joint_rounds", None, f"rounds could not be timed: {error}")]
    finally:
        learned.joins = joins
    alone, joined = min(seconds[False]), min(seconds[True])
    how = (
        f"{TOGETHER} rounds at once: {1e3 * joined:.0f} ms in one request, {1e3 * alone:.0f} in own"
    )
    return [Finding("joint_rounds", joined <= alone and not trial.joint.off, how)]


async def _scored(
    probe: Probe, trial: Target, using: Trusted, text: str, drafted: int | None = None
) -> View:
    """The sentence scored after ``text``; by ids, where they are known, its first ``drafted``."""
    vocabulary = trial.learned.vocabulary
    prompt = Prompt(({"role": "user", "content": text},), text)
    draft: Any = SENTENCE
    if using[1] == "ids" and vocabulary is not None:
        prompt = Prompt(None, None, vocabulary.encode(text))
        draft = vocabulary.encode(SENTENCE)[:drafted]
    return await score(
        trial,
        using,
        prompt,
        Committed("", ()),
        draft,
        logprobs=1,
        sampling={"temperature": 0},
        book=probe.book,
        deadline=probe.deadline(),
        purpose="probe",
    )
