"""A config table becomes a drafter, and only the kind that was asked for is loaded."""

import subprocess
import sys

import pytest

from specroute.config import DraftConfig, ProviderConfig
from specroute.context import Committed, Prompt
from specroute.draft.factory import make_drafter
from specroute.draft.ngram import NgramDrafter
from specroute.draft.remote import RemoteDrafter
from specroute.errors import ConfigError


class Http:
    """Stands where the provider's HTTP client stands."""

    provider = ProviderConfig("lab", "vllm", "http://127.0.0.1:1/v1")

    async def post_json(self, path, payload, deadline, *, purpose):
        self.deadline = deadline
        reply = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]}
        return type("JsonReply", (), {"data": reply})()


async def test_each_kind(folder):
    """ngram, local and remote, from their tables."""
    from specroute.draft.local import LocalDrafter

    http = Http()
    ngram = make_drafter(DraftConfig("n", "ngram"), lambda name: http)
    local = make_drafter(DraftConfig("l", "local", str(folder), device="cpu"), lambda name: http)
    remote = make_drafter(DraftConfig("r", "remote", "m", "lab"), lambda name: http)
    assert [type(d) for d in (ngram, local, remote)] == [NgramDrafter, LocalDrafter, RemoteDrafter]
    prompt = Prompt(({"role": "user", "content": "hi"},), None)
    for drafter in (ngram, local, remote):
        await drafter.load()
        session = await drafter.open(prompt, drafter.vocabulary)
        await session.propose(Committed(), 3)
        await session.aclose()
        await drafter.aclose()
    assert http.deadline.timeouts.total == 20


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DraftConfig("d", "local"), r"drafts\.d\.model is missing"),
        (DraftConfig("d", "remote", "m"), r"drafts\.d\.provider is missing"),
        (DraftConfig("d", "cloud", "m"), r"drafts\.d\.kind is 'cloud', expected one of"),
    ],
)
def test_an_incomplete_table_says_what_it_lacks(config, message):
    """The message names the key."""
    with pytest.raises(ConfigError, match=message):
        make_drafter(config, lambda name: Http())


def test_torch_is_loaded_by_the_worker_only():
    """Importing every drafter and making a local one loads neither torch nor transformers."""
    code = (
        "import sys, specroute.draft.local, specroute.draft.ngram, specroute.draft.remote\n"
        "from specroute.config import DraftConfig\n"
        "from specroute.draft.factory import make_drafter\n"
        "make_drafter(DraftConfig('l', 'local', 'x'), None)\n"
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
