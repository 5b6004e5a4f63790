"""A provider as the draft: what it is asked, how its answer becomes a proposal, how it fails."""

import pytest

from specroute.context import Committed, Prompt
from specroute.draft.remote import AHEAD, RemoteDrafter, in_context
from specroute.errors import ConnectFailed, DraftError
from specroute.profiles import Capabilities
from specroute.types import Usage
from specroute.vocabulary import load_vocabulary

CHAT = ({"role": "user", "content": "hi"},)
USAGE = {"prompt_tokens": 12, "completion_tokens": 3}


class Provider:
    """Answers with given texts and remembers what it was asked."""

    def __init__(self, *texts, chat=True, finish="length"):
        self.texts, self.chat, self.finish = list(texts), chat, finish
        self.asked = []

    async def __call__(self, path, payload):
        self.asked.append((path, dict(payload)))
        text = self.texts.pop(0)
        shape = {"message": {"content": text}} if self.chat else {"text": text}
        return {"choices": [{**shape, "finish_reason": self.finish}], "usage": USAGE}


def prefill(body, text, dialect):
    return {
        **body,
        "messages": [*body["messages"], {"role": "assistant", "content": text, dialect: True}],
    }


def drafter(post, continued=prefill, clock=lambda: 0.0, **capabilities):
    capabilities = {"prefill": "prefix", **capabilities}
    return RemoteDrafter("mini", "tiny-1", post, Capabilities(**capabilities), continued, clock)


async def propose(drafter, committed, k=4, vocabulary=None, prompt=None):
    session = await drafter.open(prompt or Prompt(CHAT, None), vocabulary)
    return await session.propose(committed, k, 0.7)


async def test_a_chat_is_continued_by_prefill():
    """The committed text is the prefill, K the token limit, and the usage is handed on."""
    post = Provider(" you today?")
    proposal = await propose(
        drafter(post, max_tokens_param="max_completion_tokens"), Committed("How are")
    )
    assert (proposal.text, proposal.ids, proposal.q) == (" you today?", None, None)
    assert proposal.usage == Usage(12, 3)
    body = {
        "model": "tiny-1",
        "temperature": 0,
        "stream": False,
        "messages": [*CHAT, {"role": "assistant", "content": "How are", "prefix": True}],
        "max_completion_tokens": 4,
    }
    assert post.asked == [("/chat/completions", body)]


async def test_a_text_prompt_is_continued_by_completions():
    """Prompt and committed text are one prompt."""
    post = Provider(" c d", chat=False)
    prompt = Prompt(None, "a")
    proposal = await propose(drafter(post, completions=True), Committed(" b"), prompt=prompt)
    assert proposal.text == " c d"
    ((path, body),) = post.asked
    assert (path, body["prompt"], body["max_tokens"]) == ("/completions", "a b", 4)


@pytest.mark.parametrize("prompt", [Prompt(None, "a"), Prompt(None, None, (1, 2))])
async def test_a_prompt_that_can_not_be_sent(prompt):
    """Text without /completions, or ids alone, can't be drafted from."""
    with pytest.raises(DraftError, match="can't go on from this prompt"):
        await drafter(Provider(), completions=None).open(prompt, None)


@pytest.mark.parametrize(
    ("committed", "reply", "capabilities", "expected"),
    [
        pytest.param("How are", "How are you", {}, " you", id="the reply repeats the prefill"),
        pytest.param("a", "a b", {"prefill_repeats": False}, "a b", id="it never repeats"),
        pytest.param("How are ", " you", {}, "you", id="held space, given back"),
        pytest.param("How are ", "you", {}, "you", id="held space, swallowed"),
        pytest.param("", "Hello", {}, "Hello", id="nothing committed"),
    ],
)
async def test_the_reply_is_what_follows_the_committed_text(
    committed, reply, capabilities, expected
):
    """Repeated prefills and trimmed spaces are seen through."""
    post = Provider(reply)
    proposal = await propose(drafter(post, **capabilities), Committed(committed))
    assert proposal.text == expected
    assert post.asked[0][1]["messages"][-1]["content"] == (committed.rstrip() or "hi")


@pytest.mark.parametrize("missing", ["dialect", "function"])
async def test_without_prefill_one_draft_from_the_start_serves_all(missing):
    """Asked once; used while the answer follows it; then there is nothing to propose."""
    post = Provider("one two three four", finish="stop")
    if missing == "dialect":
        remote = drafter(post, prefill=None)
    else:
        remote = drafter(post, continued=None)
    session = await remote.open(Prompt(CHAT, None), None)
    first = await session.propose(Committed(), 2)
    second = await session.propose(Committed("one two th"), 9)
    third = await session.propose(Committed("one two 3"), 9)
    assert [p.text for p in (first, second, third)] == ["one two", "ree four", ""]
    assert [p.usage for p in (first, second, third)] == [Usage(12, 3), None, None]
    assert [body["max_tokens"] for _, body in post.asked] == [AHEAD]
    await session.aclose()


async def test_text_becomes_the_targets_ids_where_they_are_known(folder):
    """Encoded as it follows the committed ids, at most K of them, whole characters in the text."""
    vocabulary = load_vocabulary(folder)
    encode = vocabulary.encode
    before = encode("Your order")
    post = Provider(" was shipped", " was shipped")
    remote = drafter(post)
    whole = await propose(remote, Committed("Your order", before), 99, vocabulary)
    assert before + whole.ids == encode("Your order was shipped")
    assert whole.text == " was shipped"
    short = await propose(remote, Committed("Your order", before), 2, vocabulary)
    assert short.ids == whole.ids[:2]
    assert short.text == vocabulary.decode(short.ids)


def test_ids_that_do_not_join_are_encoded_alone(folder):
    """Where the committed ids are no canonical beginning, the draft is still valid ids."""
    vocabulary = load_vocabulary(folder)
    before = tuple(vocabulary.encode(c)[0] for c in "order")
    assert vocabulary.encode("order") != before
    assert in_context(vocabulary, before, " was") == vocabulary.encode(" was")


async def test_an_answer_that_stopped_has_ended():
    """finish_reason stop."""
    assert (await propose(drafter(Provider(" end.", finish="stop")), Committed("The"))).ended


async def test_k_of_0_asks_nothing():
    """No request leaves."""
    post = Provider()
    assert not (await propose(drafter(post), Committed("a"), k=0)).text
    assert post.asked == []


@pytest.mark.parametrize("fault", ["error", "no text"])
async def test_a_failing_provider_is_left_alone_for_a_while(fault):
    """A sentence, ten seconds of quiet for all sessions, then it is asked again."""
    asked, now = [], [0.0]

    async def post(path, payload):
        asked.append(path)
        if fault == "error":
            raise ConnectFailed("refused", provider="p")
        return {"choices": []}

    remote = drafter(post, clock=lambda: now[0])
    session = await remote.open(Prompt(CHAT, None), None)
    with pytest.raises(DraftError, match="draft 'mini' failed"):
        await session.propose(Committed("a"), 4)
    with pytest.raises(DraftError, match="not tried again for 10 s"):
        await session.propose(Committed("a"), 4)
    with pytest.raises(DraftError, match="not tried again"):
        await remote.open(Prompt(CHAT, None), None)
    assert len(asked) == 1
    now[0] = 10.0
    with pytest.raises(DraftError, match="draft 'mini' failed"):
        await session.propose(Committed("a"), 4)
    assert len(asked) == 2
