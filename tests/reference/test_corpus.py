"""The text that the bundled models are trained and judged on."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from specroute.reference import corpus, customer_service, python_code

SPLIT = 300  # conversations looked at


@pytest.mark.parametrize("traffic", corpus.TRAFFIC)
def test_same_seed_gives_the_same_text(traffic: str) -> None:
    """Held-out prompts and training conversations depend on their seed alone."""
    assert corpus.held_out(traffic, 20, seed=3) == corpus.held_out(traffic, 20, seed=3)
    assert corpus.held_out(traffic, 20, seed=3) != corpus.held_out(traffic, 20, seed=4)
    first, second = (
        list(islice(corpus.training_conversations(traffic, seed=3), 20)) for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("traffic", corpus.TRAFFIC)
def test_held_out_prompts_are_chat_messages_that_await_an_answer(traffic: str) -> None:
    """A prompt is a system and a user message of plain text, and prompts differ."""
    prompts = corpus.held_out(traffic, 60)
    assert len(prompts) == 60
    assert {tuple(m["role"] for m in messages) for messages in prompts} == {("system", "user")}
    assert all(m["content"].strip() for messages in prompts for m in messages)
    assert len({json.dumps(messages) for messages in prompts}) == 60


def test_training_conversations_end_with_an_answer() -> None:
    """Every training conversation alternates after its system message and ends with an answer."""
    for traffic in corpus.TRAFFIC:
        for messages in islice(corpus.training_conversations(traffic), SPLIT):
            assert messages[0]["role"] == "system"
            turns = [message["role"] for message in messages[1:]]
            assert turns == ["user", "assistant"] * (len(turns) // 2)


def test_customer_service_mixes_english_and_chinese() -> None:
    """Half of the held-out prompts are Chinese."""
    prompts = corpus.held_out("customer-service", 40)
    chinese = [not messages[0]["content"][:2].isascii() for messages in prompts]
    assert chinese == [False, True] * 20


def test_no_customer_buys_the_same_item_in_training_and_held_out() -> None:
    """Pairs of customer and item in held-out orders never occur in training orders."""
    training = {_pair(m) for m in islice(customer_service.conversations(0), 20 * SPLIT)}
    held_out = {_pair(m) for m in corpus.held_out("customer-service", SPLIT)}
    assert training & held_out == set()
    assert len(held_out) > 100


def test_held_out_wordings_never_occur_in_training() -> None:
    """Held-out questions are partly in wordings that no training conversation uses."""
    seen = "\n".join(
        message["content"]
        for messages in islice(customer_service.conversations(0), 10 * SPLIT)
        for message in messages
    )
    asked = "\n".join(m[-1]["content"] for m in corpus.held_out("customer-service", SPLIT))
    remarks = [
        remark["held_out"]
        for language in customer_service.LANGUAGES
        for remark in customer_service.phrase_book(language)["contexts"]
        if remark["held_out"]
    ]
    assert [remark for remark in remarks if remark in seen] == []
    assert any(remark in asked for remark in remarks)


def test_every_phrase_fits_every_order() -> None:
    """Each sentence of both phrase books formats with an order's fields."""
    for language in customer_service.LANGUAGES:
        book = customer_service.phrase_book(language)
        for intent in book["intents"]:
            assert set(intent["answers"]) <= set(book["statuses"])
            assert len(intent["questions"]) >= 5
            assert len(intent["held_out"]) >= 2
    text = json.dumps(list(islice(customer_service.conversations(1), SPLIT)), ensure_ascii=False)
    assert "{shop}" not in text
    assert "{order}" not in text


def test_answers_vary() -> None:
    """Answers are not one fixed template: nearly all of them differ, names and numbers aside."""
    answers = [
        messages[-1]["content"] for messages in islice(customer_service.conversations(0), SPLIT)
    ]
    assert len(set(answers)) > 0.98 * SPLIT
    openings = {answer[:12] for answer in answers}
    assert len(openings) > SPLIT / 5


def test_held_out_files_are_not_trained_on() -> None:
    """Shipped snippets are from held-out files, and training reads none of those."""
    shipped = set(python_code.shipped_names())
    assert len(shipped) > 40
    assert all(python_code.is_held_out(name) for name in shipped)
    assert shipped & set(python_code.training_files()) == set()


def test_more_code_prompts_than_shipped_are_refused() -> None:
    """Asking for too many code prompts is an error that gives both numbers."""
    with pytest.raises(ValueError, match=r"100000 .* are shipped"):
        corpus.held_out("python-code", 100_000)


def test_unknown_traffic_is_refused() -> None:
    """An unknown class of traffic is an error that lists the known ones."""
    with pytest.raises(ValueError, match="customer-service, python-code"):
        corpus.held_out("poetry", 1)
    with pytest.raises(ValueError, match="customer-service, python-code"):
        corpus.training_conversations("poetry")


def test_training_texts_cover_both_classes() -> None:
    """The tokenizer's texts hold Chinese service and Python code."""
    texts = list(corpus.training_texts())
    assert any("订单" in text for text in texts)
    assert any("def " in text for text in texts)


def _pair(messages: list[dict[str, str]]) -> tuple[str, str]:
    """The customer and the item of a conversation, read from its system message."""
    system = messages[0]["content"]
    for language in customer_service.LANGUAGES:
        book = customer_service.phrase_book(language)
        record = system.splitlines()[2]
        separator, marker = (": ", "Customer: ") if language == "en" else ("：", "顾客：")
        if marker in record:
            item = record.split(separator)[1].split("，" if language == "zh" else ", ")[0]
            name = record.split(marker)[1].split("。" if language == "zh" else ".")[0]
            assert item in book["items"]
            assert name in book["names"]
            return name, item
    raise AssertionError(system)
