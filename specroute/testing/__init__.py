"""A server that fails on demand, for testing programs that call OpenAI-format APIs.

Answers come from a toy model that always says the same, so that they can be checked character by
character; faults come from a script. Nothing here needs more than the base install, and nothing
leaves the machine. ``docs/testing.md`` shows it at work.
"""

from specroute.testing import faults
from specroute.testing.exchange import Answer, Exchange, Fault, Request
from specroute.testing.script import HEALTHY, On, Sometimes
from specroute.testing.server import DEFAULT_ANSWER, FaultServer

__all__ = [
    "DEFAULT_ANSWER",
    "HEALTHY",
    "Answer",
    "Exchange",
    "Fault",
    "FaultServer",
    "On",
    "Request",
    "Sometimes",
    "faults",
]
