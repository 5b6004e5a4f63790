"""One log line for each finished request, its figures as fields.

Knows reports. Neither prompts nor answers nor what a provider said are in it.
"""

from __future__ import annotations

import logging

from specroute.types import Report

log = logging.getLogger("specroute.requests")

LEVELS = {"off": None, "debug": logging.DEBUG, "info": logging.INFO}
"""What ``telemetry.log`` may be."""

FIELDS = (
    "id",
    "model",
    "target",
    "method",
    "exactness",
    "drafter",
    "complete",
    "finish_reason",
    "rounds",
    "drafted",
    "accepted",
    "rejected",
    "ttft_s",
    "tpot_s",
    "total_s",
    "billed_prompt_tokens",
    "billed_cached_tokens",
    "billed_completion_tokens",
    "cost_usd",
    "plain_s",
    "plain_usd",
)
"""The report's fields that are logged, in ``record.specroute``; ``outcome`` and ``attempts`` (their
number) beside them."""


def wanted(level: str) -> bool:
    """Whether anybody would see the line."""
    number = LEVELS[level]
    return number is not None and log.isEnabledFor(number)


def log_request(report: Report, level: str) -> None:
    """``specroute.requests`` says what became of a request."""
    number = LEVELS[level]
    if number is None:
        return
    fields = {name: getattr(report, name) for name in FIELDS}
    fields["outcome"] = outcome(report)
    fields["attempts"] = len(report.attempts)
    took = "" if report.total_s is None else f" in {report.total_s:.3f} s"
    cost = "" if report.cost_usd is None else f" for {report.cost_usd:.6f} USD"
    log.log(
        number,
        "%s: %s by %s, %s%s%s",
        report.id,
        report.model,
        report.target,
        fields["outcome"],
        took,
        cost,
        extra={"specroute": fields},
    )


def outcome(report: Report) -> str:
    """``ok``, or the short name of what went wrong."""
    if report.complete:
        return "ok"
    return report.attempts[-1].outcome if report.attempts else "failed"
