"""What each framework's script starts from: clients for a server, and how it tells its results.

Runs in the frameworks' own environment, so it imports nothing of the test suite.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pydantic

from specroute import AsyncSpecRoute, Reports, SpecRoute

STRUCTURED, STREAMED = "Name a city and its country.", "Where is my order?"


class City(pydantic.BaseModel):
    name: str
    country: str


def config() -> dict[str, Any]:
    """A model with a draft, at the server that the command line names."""
    return {
        "version": 1,
        "providers": {"lab": {"profile": "reference", "base_url": sys.argv[1]}},
        "models": {
            "smart": {
                "targets": ["lab:smart"],
                "drafts": ["ngram"],
                "policy": {"preset": "fixed", "method": "prefix", "num_speculative_tokens": 8},
            }
        },
    }


def clients() -> tuple[AsyncSpecRoute, SpecRoute]:
    return AsyncSpecRoute(config=config()), SpecRoute(config=config())


def tell(structured: City, streamed: str, reports: Reports) -> None:
    """Print what came, for the test to compare."""
    print(
        json.dumps(
            {
                "structured": structured.model_dump(),
                "streamed": streamed,
                "reports": [r.as_dict() for r in reports],
            }
        )
    )
