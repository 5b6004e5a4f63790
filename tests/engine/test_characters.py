"""A hand-over inside a character: its bytes are spread over several tokens."""

from __future__ import annotations

import pytest

from specroute.answer import Answer
from specroute.reference.running import ReferenceServer
from specroute.reference.script import Script
from tests.engine.answers import EchoDrafter, ask, script
from tests.engine.world import World, speculating
from tests.support.scripted import ScriptVocabulary

TEXT = "one, 茶具在签收 two 🫖, é three"
"""Most of its characters are no tokens: each of their bytes is one."""


async def test_the_plain_stream_goes_on_with_the_whole_character() -> None:
    """After every number of drafted tokens that a first round may keep."""
    spec = script(TEXT)
    with ReferenceServer(spec) as server:
        world = World(spec)
        for k in (1, 2, 3, 4, 5, 6, 18, 19, 20, 21, 22):
            policy = {"preset": "fixed", "num_speculative_tokens": k, "max_rounds": 1}
            drafter = EchoDrafter(spec)
            async with speculating(world, server, drafter=drafter, policy=policy) as client:
                seen = await ask(client, max_tokens=60)
                other = client.with_options(policy={"preset": "fixed", "method": "plain"})
                plain = await ask(other, max_tokens=60)
            assert seen.report is not None
            assert seen.report.rounds == 1
            assert seen.report.exactness == "exact-greedy"
            assert seen.content == plain.content


@pytest.mark.parametrize("kept", range(12))
def test_what_is_inside_a_character_is_taken_back(kept: int) -> None:
    """All of its tokens, and nothing of the text before it."""
    script_ = Script(script(TEXT))
    vocabulary = ScriptVocabulary(script_)
    ids = vocabulary.encode(TEXT)
    whole = Answer(max_tokens=None, stop=(), vocabulary=vocabulary)
    whole.push_ids(ids[:kept])
    text, inside = whole.text, whole.inside_character
    whole.drop_unfinished()
    assert not whole.inside_character
    assert whole.text == text
    assert whole.ids is not None
    assert vocabulary.decode(whole.ids) == text
    assert whole.tokens == len(whole.ids)
    assert (whole.tokens < kept) == inside
    assert whole.push_ids(ids[whole.tokens :]).text == TEXT[len(text) :]


def test_a_token_that_ends_one_character_and_begins_another_leaves_text_alone() -> None:
    """Its text was shown: the ids can't be taken back without it."""

    class Halves:
        eos_ids = frozenset[int]()
        pieces = ("你".encode() + b"\xe5", b"\xa5\xbd")

        def decode(self, ids: list[int]) -> str:
            return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    answer = Answer(max_tokens=None, stop=(), vocabulary=Halves())  # type: ignore[arg-type]
    assert answer.push_ids((0,)).text == "你"
    answer.drop_unfinished()
    assert answer.ids is None
    assert answer.push_text("好", tokens=1).text == "好"
    assert answer.text == "你好"
