"""Two real models with different tokenizers through the client: the target's answers, unchanged.

Random weights say random bytes: most characters are split over tokens, and many bytes are none.
"""

import pytest

from specroute import AsyncSpecRoute, report
from specroute.draft.local import LocalDrafter
from specroute.reference.running import ReferenceServer
from specroute.speculation.speculator import Speculator
from specroute.vocabulary import load_vocabulary
from tests.support.tiny import TEXT, save_model, save_sentencepiece, save_tokenizer

QUESTIONS = [
    "where is my order?",
    "您的订单",
    "🎉 def main():",
    "e\u0301 and é",
    " ",
    "two\n\n  lines ",
]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    save_model(save_tokenizer(folder), seed=7)
    with ReferenceServer(folder) as server:
        yield folder, server


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    """Another byte-level training, and a SentencePiece one that has the target's chat template."""
    made = tmp_path_factory.mktemp
    other = save_tokenizer(made("b"), text=TEXT[::-1], vocab_size=330)
    pieces = save_sentencepiece(made("sp"))
    (pieces / "chat_template.jinja").write_text((other / "chat_template.jinja").read_text())
    size = load_vocabulary(pieces).size
    return {
        "b": save_model(other, vocab_size=330, seed=7),
        "sp": save_model(pieces, vocab_size=size, seed=7, eos=2),
    }


def client_of(server, drafter, tokenizer):
    model = {
        "targets": [f"lab:{server.model}"],
        "drafts": ["other"],
        "tokenizer": str(tokenizer),
        "policy": {"preset": "fixed", "method": "score", "num_speculative_tokens": 4},
    }
    config = {
        "version": 1,
        "providers": {"lab": {"profile": "reference", "base_url": server.base_url}},
        "drafts": {"other": {"kind": "ngram"}},
        "models": {"m": model},
    }
    client = AsyncSpecRoute(config=config)
    router = client.router
    router.speculation = Speculator(
        router.config, router.http, router.supervisor, drafters={"other": drafter}
    )
    return client


@pytest.mark.parametrize("way", ["tli", "slem"])
@pytest.mark.parametrize("draft", ["b", "sp"])
async def test_greedy_answers_are_the_plain_ones(target, drafts, draft, way):
    """Text, finish reason and token count; drafts were judged, by ids."""
    folder, server = target
    drafter = LocalDrafter("other", str(drafts[draft]), device="cpu", way=way)
    async with client_of(server, drafter, folder) as client:
        assert await client.warm_up() == []
        plain = client.with_options(policy={"preset": "fixed", "method": "plain"})
        judged = 0
        for question in QUESTIONS:
            call = {
                "model": "m",
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 24,
                "temperature": 0,
            }
            expected = await plain.chat.completions.create(**call)
            answer = await client.chat.completions.create(**call)
            assert answer.choices[0].message.content == expected.choices[0].message.content
            assert answer.choices[0].finish_reason == expected.choices[0].finish_reason
            assert answer.usage.completion_tokens == expected.usage.completion_tokens
            if report(answer).method == "score":
                judged += report(answer).accepted + report(answer).rejected
                assert report(answer).exactness == "exact-greedy"
    assert judged > len(QUESTIONS)
    await drafter.aclose()
