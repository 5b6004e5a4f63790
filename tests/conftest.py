"""Nothing that a developer's own probes found may colour a test."""

import os

os.environ["SPECROUTE_CACHE_DIR"] = ""
