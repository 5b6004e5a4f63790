"""``python serve_llama.py MODEL.gguf PORT NAME``: llama.cpp's own HTTP server out of xllamacpp.

Runs in that package's environment, until it is killed.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.model_alias = sys.argv[3] if isinstance(params.model_alias, str) else {sys.argv[3]}
params.n_parallel = 4
params.n_ctx = 4 * 2048
# Threads that wait for each other would spin where the cores are busy with the draft or the tests.
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
signal.pause()
