"""A forked child of the test's own process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest


def in_a_child(work: Callable[[], str]) -> str:
    """What ``work`` gives in a forked child; a hang is killed and shows as such."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - shown to the parent
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    ends = time.monotonic() + 20
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > ends:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return "it hung"
        time.sleep(0.01)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read().decode()


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
