"""Nothing that a developer's own probes found may colour a test; nothing of the machine's slows it.

Servers here are on loopback and speak no TLS: a folder without certificates spares every client
the machine's own, whose reading takes longer than most tests.
"""

import os
from pathlib import Path

os.environ["SPECROUTE_CACHE_DIR"] = ""
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
os.environ.pop("SSL_CERT_FILE", None)
