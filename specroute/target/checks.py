"""The questions of the probe: each is one function that makes a few small calls.

Knows what is asked and how the answers are read; what scoring is asked, ``scoring_checks`` does.
Knows no profile and no config.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from specroute.errors import StatusError
from specroute.request import CHAT, COMPLETIONS
from specroute.target import prefill
from specroute.target.probe import Check, Finding, Probe, Reply
from specroute.target.scoring_checks import (
    LONG_REPEATS,
    REPEATS,
    SENTENCE,
    cache_kept,
    rounds_together,
    scoring,
)
from specroute.target.stream import pieces
from specroute.types import Usage

QUESTION = "List the months of the year, separated by commas."
STRANGE = "Zebra!"
ANSWER_TOKENS = 16
LOGPROB_LIMITS = (20, 5, 1)
SAME = 0.1
"""Nats within which two calls' log-probabilities of one place are the same."""
ESTIMATE = {"prompt": 5500, "completion": 450, "calls": 64}
"""About what a probe uses, for the caller to show beforehand."""


async def chat_answer(probe: Probe) -> list[Finding]:
    """Does /chat/completions answer, and by which name does it take a token limit?"""
    reply = await probe.chat(QUESTION, ANSWER_TOKENS)
    if not reply.ok and probe.tokens_param == "max_tokens":
        probe.tokens_param = "max_completion_tokens"
        reply = await probe.chat(QUESTION, ANSWER_TOKENS)
    if not reply.ok:
        return [Finding("chat", False, reply.said)]
    probe.answer = reply.text
    return [
        Finding("chat", True, f"answered {reply.text[:30]!r}"),
        Finding("max_tokens_param", probe.tokens_param, "accepted"),
    ]


async def _completions(probe: Probe) -> list[Finding]:
    """Is /completions there, with id prompts and lists of prompts?"""
    one = {"max_tokens": 4, "temperature": 0}
    text = await probe.post(COMPLETIONS, {"prompt": SENTENCE, **one})
    if not text.ok:
        return [Finding("completions", False, text.said)]
    ids = await probe.post(COMPLETIONS, {"prompt": [100, 101, 102], **one})
    both = await probe.post(COMPLETIONS, {"prompt": [SENTENCE, QUESTION], **one})
    return [
        Finding("completions", True, f"continued with {text.text[:30]!r}"),
        Finding("id_prompts", ids.ok, ids.said),
        Finding("list_prompts", both.ok and len(both.choices) == 2, both.said),
    ]


async def _logprobs(probe: Probe) -> list[Finding]:
    """How many chat logprobs, with ids, and before or after temperature?"""
    found: list[Finding] = []
    most = 0
    for n in LOGPROB_LIMITS:
        reply = await probe.chat(QUESTION, 2, logprobs=True, top_logprobs=n)
        if reply.ok:
            tops = [len(e.get("top_logprobs") or ()) for e in reply.shown]
            most = max(tops, default=0)
            break
    found.append(Finding("chat_max_logprobs", most, f"{most} alternatives came back"))
    if not most:
        return found
    named = await probe.chat(
        QUESTION,
        2,
        logprobs=True,
        top_logprobs=1,
        return_tokens_as_token_ids=True,
        return_token_ids=True,
    )
    if named.shown and str(named.shown[0].get("token")).startswith("token_id:"):
        found.append(Finding("token_ids_param", "return_tokens_as_token_ids", "ids came back"))
    if named.choices and named.choices[0].get("token_ids"):
        found.append(Finding("answer_ids_param", "return_token_ids", "ids came beside the answer"))
    one, half, none = [await _tops(probe, most, temperature) for temperature in (1.0, 0.5, 0.0)]
    gap = _gap(one, half)
    if gap is not None and max(one.values()) < -0.01:
        kind = "raw" if gap < SAME else "processed"
        how = f"T 1 and T 0.5 differ by {gap:.2f} nats"
        at_none = _gap(one, none)
        if kind == "processed" and at_none is not None and at_none < SAME:
            kind, how = "tempered", f"{how}, T 1 and T 0 by {at_none:.2f}"
        found.append(Finding("logprobs", kind, how))
    return found


async def _tops(probe: Probe, most: int, temperature: float) -> dict[Any, float]:
    """The first generated token's alternatives, drawn at that temperature."""
    reply = await probe.chat(QUESTION, 1, logprobs=True, top_logprobs=most, temperature=temperature)
    tops = reply.shown[0].get("top_logprobs") if reply.shown else None
    return {top.get("token"): top.get("logprob") for top in tops or ()}


def _gap(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    """Nats by which two statements of the same alternatives differ at most; ``None``: no common."""
    gaps = [abs(a[token] - b[token]) for token in a if token in b and min(a[token], b[token]) > -20]
    return max(gaps, default=None)


async def _template(probe: Probe) -> list[Finding]:
    """Will the server render a chat prompt?"""
    messages = [{"role": "user", "content": QUESTION}]
    ids = await probe.post(
        "/tokenize", {"messages": messages, "add_generation_prompt": True}, root=True
    )
    if ids.ok and isinstance(ids.data.get("tokens"), list) and ids.data["tokens"]:
        limit = ids.data.get("max_model_len")
        return [
            Finding("template", "tokenize", f"{len(ids.data['tokens'])} ids"),
            Finding("max_model_len", limit, "as /tokenize states it"),
        ]
    text = await probe.post("/apply-template", {"messages": messages}, root=True)
    if text.ok and isinstance(text.data.get("prompt"), str):
        found = [Finding("template", "apply-template", f"{text.data['prompt'][:30]!r}")]
        cut = await probe.post("/tokenize", {"content": SENTENCE, "add_special": True}, root=True)
        if cut.ok and isinstance(cut.data.get("tokens"), list) and cut.data["tokens"]:
            found.append(Finding("tokenize", "content", f"{len(cut.data['tokens'])} ids"))
        return found
    return [Finding("template", None, f"/tokenize {ids.said}, /apply-template {text.said}")]


async def top_n(probe: Probe) -> list[Finding]:
    """How many logprobs does /completions give?"""
    for n in LOGPROB_LIMITS:
        reply = await probe.post(
            COMPLETIONS, {"prompt": SENTENCE, "max_tokens": 1, "temperature": 0, "logprobs": n}
        )
        if reply.ok:
            most = _alternatives(reply)
            return [Finding("echo_max_logprobs", most, f"{most} alternatives came back")]
    return []


def _alternatives(reply: Reply) -> int:
    """Alternatives at the first generated token, in either layout."""
    shown = reply.choices[0].get("logprobs") if reply.choices else None
    if not isinstance(shown, dict):
        return 0
    tops = shown.get("top_logprobs")
    if isinstance(shown.get("content"), list) and shown["content"]:
        tops = [shown["content"][0].get("top_logprobs")]
    return len(tops[0]) if isinstance(tops, list) and tops and tops[0] else 0


async def prefill_kept(probe: Probe) -> list[Finding]:
    """Is a trailing assistant message continued: in which dialect, repeated, trimmed?"""
    words = probe.answer.split(" ")
    if len(words) < 4:
        return [Finding("prefill", None, "its own answer is too short to try")]
    half = " ".join(words[: len(words) // 2])
    rest = probe.answer[len(half) :]
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    # The one without flags first: a server that needs none ignores them.
    for dialect in sorted(probe.prefills, key=lambda name: name != "trailing_assistant"):
        # Only a server that repeats the prefill would say a word that isn't the model's own.
        strange = await probe.chat(
            "", ANSWER_TOKENS, **prefill.continued(asked, f"{STRANGE} {half}", dialect)
        )
        repeats = strange.text.startswith(STRANGE)
        reply = await probe.chat("", ANSWER_TOKENS, **prefill.continued(asked, half, dialect))
        text = reply.text.removeprefix(half) if repeats else reply.text
        start = rest.strip()[:8]
        if reply.ok and start and text.strip().startswith(start):
            return [
                Finding("prefill", dialect, f"went on with {text[:20]!r}"),
                Finding("prefill_repeats", repeats, f"{reply.text[:20]!r}"),
                await _trims(probe, dialect, half, start),
            ]
    return [Finding("prefill", "none", "no dialect went on as its own answer does")]


async def _trims(probe: Probe, dialect: str, half: str, start: str) -> Finding:
    """Is a space at the prefill's end lost? Then it is said again."""
    asked = {"messages": [{"role": "user", "content": QUESTION}]}
    reply = await probe.chat("", ANSWER_TOKENS, **prefill.continued(asked, f"{half} ", dialect))
    text = reply.text.removeprefix(f"{half} ").removeprefix(half)
    said = {f" {start}": True, start: False}
    found = next((value for begin, value in said.items() if text.startswith(begin)), None)
    return Finding("prefill_trims", found, f"after a space it went on with {text[:20]!r}")


async def _prediction(probe: Probe) -> list[Finding]:
    """Is ``prediction`` taken, and does usage count it?"""
    reply = await probe.chat(
        QUESTION, ANSWER_TOKENS, prediction={"type": "content", "content": probe.answer}
    )
    details = (reply.data.get("usage") or {}).get("completion_tokens_details") or {}
    counted = isinstance(details, dict) and details.get("accepted_prediction_tokens")
    if counted:
        return [Finding("prediction", True, f"{counted} tokens accepted")]
    return [Finding("prediction", False, "ignored" if reply.ok else reply.said)]


async def _caching(probe: Probe) -> list[Finding]:
    """Does usage show cached prompt tokens, and what does reading a prompt again cost?"""
    long = f"{SENTENCE} " * LONG_REPEATS + QUESTION
    replies = [await probe.chat(long, 1) for _ in range(2)]
    cached = [Usage.from_wire(r.data.get("usage")).cached_tokens for r in replies]
    found = [Finding("cached_tokens", cached[1] is not None, f"cached_tokens: {cached[1]}")]
    if len(replies) == 2 and all(r.ok for r in replies):
        gained = replies[0].seconds - replies[1].seconds
        found.append(Finding("reprefill_s", round(max(gained, 0.0), 4), "first minus second call"))
    return found


async def _pace(probe: Probe) -> list[Finding]:
    """Usage on streams, TTFT and TPOT, the round trip, and disagreement with itself at T = 0."""
    found: list[Finding] = []
    firsts: list[float] = []
    steps: list[float] = []
    texts: list[str] = []
    counted: bool | None = None
    for _ in range(REPEATS):
        deadline = probe.deadline()
        body: dict[str, Any] = {
            "model": probe.target.ref.model,
            "messages": [{"role": "user", "content": QUESTION}],
            probe.tokens_param: ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        if counted is not False:
            body["stream_options"] = {"include_usage": True}
        times: list[float] = []
        text = ""
        try:
            async for piece in pieces(
                probe.http, CHAT, body, target=str(probe.target.ref), purpose="probe",
                book=probe.book, deadline=deadline,
            ):  # fmt: skip
                if piece.text:
                    times.append(deadline.clock())
                    text += piece.text
                if piece.usage is not None:
                    counted = True
        except StatusError:
            if counted is None:
                counted = False
                continue
            raise
        counted = bool(counted)
        if times:
            firsts.append(times[0] - deadline.started)
            texts.append(text)
        if len(times) > 1:
            steps.append((times[-1] - times[0]) / (len(times) - 1))
    found.append(Finding("stream_usage", counted, "stream_options.include_usage"))
    if firsts:
        found.append(Finding("ttft_s", round(statistics.median(firsts), 4), f"of {len(firsts)}"))
    if steps:
        found.append(Finding("tpot_s", round(statistics.median(steps), 5), "per piece of text"))
    if texts:
        differ = sum(text != texts[0] for text in texts[1:])
        share = f"{differ} of {len(texts) - 1} repeats differ"
        found.append(Finding("disagrees_with_itself", differ / max(len(texts) - 1, 1), share))
    smallest = [await probe.chat(".", 1) for _ in range(REPEATS)]
    seconds = [r.seconds for r in smallest if r.ok]
    if seconds:
        found.append(Finding("r_s", round(min(seconds), 4), "the quickest one-token call"))
    return found


CHECKS: tuple[Check, ...] = (
    chat_answer,
    _completions,
    _logprobs,
    _template,
    top_n,
    scoring,
    prefill_kept,
    _prediction,
    _caching,
    cache_kept,
    rounds_together,
    _pace,
)
