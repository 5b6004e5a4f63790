"""The bundled pair of models: present, small, loadable offline, and in agreement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specroute.reference import acceptance_check, bundled
from specroute.reference.corpus import TRAFFIC, held_out

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WEIGHTS = bundled.target_dir().parent
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The target's tokenizer."""
    return transformers.AutoTokenizer.from_pretrained(bundled.target_dir())


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    """Both models, computing in fp32."""
    return {
        role: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for role, folder in (("target", bundled.target_dir()), ("draft", bundled.draft_dir()))
    }


def test_weights_stay_small() -> None:
    """Both folders together are at most 12 MB."""
    size = sum(path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file())
    assert size <= 12 * MEGABYTE


def test_a_missing_model_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without weights the error names the folder and the command that trains them."""
    monkeypatch.setattr(bundled, "files", lambda package: tmp_path)
    with pytest.raises(FileNotFoundError, match=r"specroute\.reference\.train --out"):
        bundled.draft_dir()


def test_description_is_plain() -> None:
    """The description calls the models toys and gives the agreement on each class."""
    text = bundled.describe()
    assert "toys" in text
    assert all(f"{bundled.ACCEPTANCE[name]:.2f} on {name}" in text for name in TRAFFIC)


def test_stored_in_fp16(models: dict[str, Any]) -> None:
    """fp32 weights are exactly representable in fp16: that is how they are stored."""
    for model in models.values():
        for weight in model.parameters():
            assert weight.dtype == torch.float32
            assert torch.equal(weight, weight.half().float())


def test_one_vocabulary(tokenizer: Any, models: dict[str, Any]) -> None:
    """Target and draft share their tokenizer, 4096 tokens, and the end of text."""
    other = transformers.AutoTokenizer.from_pretrained(bundled.draft_dir())
    assert tokenizer.get_vocab() == other.get_vocab()
    assert {len(tokenizer)} == {model.config.vocab_size for model in models.values()}
    assert {tokenizer.eos_token_id} == {
        model.generation_config.eos_token_id for model in models.values()
    }


def test_text_survives_the_tokenizer(tokenizer: Any) -> None:
    """Encoding and decoding gives back English, Chinese, code and odd bytes, and adds nothing."""
    for text in ("Order N4301: $73.", "订单N6886：保温杯。", "def f(x):\n    return x\n", "é🙂\t "):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids) == text
        assert ids == tokenizer(text, add_special_tokens=False).input_ids
        assert tokenizer.bos_token_id not in ids


def test_special_tokens_are_single_ids(tokenizer: Any) -> None:
    """Each marker is one id of its own, written once by the template."""
    markers = ("<|bos|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
    ids = [tokenizer(marker).input_ids for marker in markers]
    assert [len(found) for found in ids] == [1, 1, 1, 1]
    assert len({found[0] for found in ids}) == 4
    assert tokenizer.eos_token == "<|im_end|>"


def test_chat_template(tokenizer: Any) -> None:
    """ChatML, with an open assistant turn on request, or the last message left open."""
    question = [{"role": "user", "content": "Hi"}]

    def render(messages: list[dict[str, str]], **options: bool) -> str:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))

    plain = "<|bos|><|im_start|>user\nHi<|im_end|>\n"
    opened = plain + "<|im_start|>assistant\n"
    assert render(question) == plain
    assert render(question, add_generation_prompt=True) == opened
    answer = [*question, {"role": "assistant", "content": "Hello A"}]
    assert render(answer, continue_final_message=True) == opened + "Hello A"
    assert render(answer) == opened + "Hello A<|im_end|>\n"


def test_prompts_are_about_150_tokens(tokenizer: Any) -> None:
    """Held-out prompts of both classes average 100 to 200 tokens."""
    for traffic in TRAFFIC:
        prompts = held_out(traffic, 40)
        lengths = [
            len(tokenizer(tokenizer.apply_chat_template(messages, tokenize=False)).input_ids)
            for messages in prompts
        ]
        assert 100 < sum(lengths) / len(lengths) < 200
        assert max(lengths) < 300


def test_answers_end_by_themselves(tokenizer: Any, models: dict[str, Any]) -> None:
    """Greedy customer-service answers stop at the end marker, names taken from the prompt."""
    for messages in held_out("customer-service", 2):
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = models["target"].generate(**prompt, do_sample=False, max_new_tokens=200)[0]
        answer = ids[prompt["input_ids"].shape[1] :].tolist()
        assert answer[-1] == tokenizer.eos_token_id
        assert 20 < len(answer) < 160


def test_draft_and_target_agree_as_described() -> None:
    """A small sample agrees with the stated acceptance: high on service, lower on code."""
    found = {
        traffic: acceptance_check.measure(
            traffic, bundled.target_dir(), bundled.draft_dir(), prompts=3, max_tokens=50
        )["rounds"][0]["alpha"]
        for traffic in TRAFFIC
    }
    for traffic, alpha in found.items():
        assert alpha == pytest.approx(bundled.ACCEPTANCE[traffic], abs=0.2)
    assert found["customer-service"] > found["python-code"]


@pytest.mark.parametrize(
    ("matches", "k", "accepted", "rejected", "survival"),
    [
        ([[True] * 5], 4, 4, 0, (1, 1, 1, 1)),  # one full round and its bonus token
        ([[False] * 3], 2, 0, 3, (0, 0)),  # three rounds, each corrected at once
        ([[True, False, True, True]], 3, 3, 1, (1, 0.5, 0)),  # the end cuts the second round
        ([[True], [False]], 1, 1, 1, (0.5,)),
    ],
)
def test_replay_counts_judged_tokens(
    matches: list[list[bool]], k: int, accepted: int, rejected: int, survival: tuple[float, ...]
) -> None:
    """Rounds start after each correction or bonus; unjudged tokens count nowhere."""
    found = acceptance_check.replay(matches, k)
    assert (found.accepted, found.rejected, found.survival) == (accepted, rejected, survival)


def test_loops_are_noticed() -> None:
    """Three equal runs of eight tokens are a loop, two aren't."""
    run = list(range(8))
    assert acceptance_check.loops(run * 3)
    assert not acceptance_check.loops(run * 2)
