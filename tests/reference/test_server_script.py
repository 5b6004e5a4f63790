"""Scripts: exact distributions over HTTP, answers, the file format, and no torch anywhere."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specroute.reference.running import ReferenceServer
from specroute.reference.sampling import Settings, Table
from specroute.reference.script import InvalidScript, Script
from tests.reference.raw import Http

CHAIN: dict[str, Any] = {
    "vocabulary": ["a", "b", "c"],
    "default": {"a": 0.5, "b": 0.3, "c": 0.2},
    "rows": [
        {"after": ["a"], "next": {"a": 0.1, "b": 0.6, "c": 0.3}},
        {"after": ["a", "b"], "next": {"a": 0.7, "c": 0.3}},
    ],
}


def probability(script: Script, prompt: list[int], text: list[int], t: float = 1.0) -> float:
    """Of ``text`` after ``prompt``, at temperature ``t``."""
    total, ids = 1.0, list(prompt)
    for token in text:
        weights = {i: math.exp(log / t) for i, log in script.row(ids).top(9)}
        total *= weights.get(token, 0.0) / sum(weights.values())
        ids.append(token)
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_pairs_of_tokens_come_as_often_as_the_table_says(temperature: float) -> None:
    """Total variation over pairs stays under the 99.9 % quantile of exact sampling's own."""
    n = 4000
    with ReferenceServer(CHAIN) as server, Http(server) as api:
        counts: Counter[tuple[int, ...]] = Counter()
        for _ in range(n // 100):
            body = api.complete(
                prompt=[0], n=100, max_tokens=2, temperature=temperature, logprobs=0,
                return_tokens_as_token_ids=True,
            )  # fmt: skip
            for choice in body["choices"]:
                names = choice["logprobs"]["tokens"]
                counts[tuple(int(name.removeprefix("token_id:")) for name in names)] += 1
    script = Script(CHAIN)
    pairs = [(i, j) for i in range(3) for j in range(3)]
    expected = {pair: probability(script, [0], list(pair), temperature) for pair in pairs}
    assert sum(expected.values()) == pytest.approx(1)
    variation = sum(abs(counts[pair] / n - p) for pair, p in expected.items()) / 2
    assert variation < quantile(list(expected.values()), n)


def quantile(p: list[float], n: int, runs: int = 1000) -> float:
    """The 99.9 % quantile of the total variation of ``n`` exact draws from ``p``."""
    import random

    rng = random.Random(0)
    seen = []
    for _ in range(runs):
        counts = Counter(rng.choices(range(len(p)), p, k=n))
        seen.append(sum(abs(counts[i] / n - q) for i, q in enumerate(p)) / 2)
    return sorted(seen)[int(runs * 0.999)]


def test_the_longest_context_wins() -> None:
    """Orders may be mixed."""
    script = Script(CHAIN)
    assert math.exp(script.row([1]).logprob(0)) == pytest.approx(0.5)
    assert math.exp(script.row([1, 0]).logprob(1)) == pytest.approx(0.6)
    assert math.exp(script.row([0, 1]).logprob(0)) == pytest.approx(0.7)
    assert script.row([0, 1]).logprob(1) == -math.inf


def test_scoring_and_generating_see_the_same_numbers() -> None:
    """Echoed logprobs equal those that were reported on the way."""
    with ReferenceServer(CHAIN) as server, Http(server) as api:
        asked = {"logprobs": 3, "return_tokens_as_token_ids": True}
        said = api.complete(prompt=[0], max_tokens=20, **asked)["choices"][0]["logprobs"]
        ids = [0, *(int(name.removeprefix("token_id:")) for name in said["tokens"])]
        scored = api.complete(prompt=ids, echo=True, max_tokens=0, **asked)
    logprobs = scored["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][1:] == said["token_logprobs"]
    assert logprobs["top_logprobs"][1:] == said["top_logprobs"]


def test_an_edit_task_repeats_its_text_with_the_given_probability() -> None:
    """Each token of the answer has probability p, the rest is the default row's."""
    answer = {"when": "rename", "text": "y = 1\nprint(y)\n", "p": 0.9}
    script = Script({"answers": [answer], "default": {"y": 1.0}})
    ids = script.encode("<|user|>rename x<|end|><|assistant|>", False)
    said = b""
    while True:
        token, logprob = script.row(ids).top(1)[0]
        if token in script.eos:
            break
        own = script.piece(token)
        assert math.exp(logprob) == pytest.approx(1.0 if own == b"y" else 0.9)
        said += own
        ids.append(token)
    assert said.decode() == answer["text"]
    assert logprob == 0


def test_after_a_wrong_token_the_answer_goes_on_by_position() -> None:
    """One token was replaced; the rest follows."""
    script = Script(
        {"vocabulary": ["a", "b", "c", "x"], "answers": [{"when": "go", "text": "abc"}]}
    )
    ids = [*script.encode("go", False), *script.encode("x", False)]
    said = ""
    while not said.endswith("<|end|>"):
        ids.append(script.row(ids).greedy({}))
        said += script.piece(ids[-1]).decode()
    assert said == "bc<|end|>"


def test_an_answer_cut_inside_a_token_goes_on_from_there() -> None:
    """What was said is compared as text, so another cut of it is no deviation."""
    script = Script(
        {"vocabulary": ["ab", "a", "b", "c"], "answers": [{"when": "go", "text": "abc"}]}
    )
    whole = script.encode("go", False)
    assert script.piece(script.row(whole).greedy({})) == b"ab"
    cut = [*whole, script.encode("a", False)[0]]
    assert script.piece(script.row(cut).greedy({})) == b"b"


def test_text_becomes_tokens_by_longest_match_and_bytes() -> None:
    """Whatever isn't in the vocabulary is spelled in bytes, and comes back the same."""
    script = Script({"vocabulary": ["a", "ab", "你"]})
    text = "abaé你\n<|user|>"
    ids = script.encode(text, True)
    assert [script.piece(i) for i in ids[:2]] == [b"ab", b"a"]
    assert b"".join(map(script.piece, ids)).decode() == text
    assert len(ids) == 2 + 2 + 1 + 1 + 1


def test_a_file_in_toml_and_in_json(tmp_path: Path) -> None:
    """Both formats give the same script, named after the file; answers may stand in files."""
    (tmp_path / "new.py").write_text("y = 2\n")
    toml = tmp_path / "table.toml"
    toml.write_text(
        'vocabulary = ["a", "</s>"]\neos = "</s>"\ndefault = { a = 3, "</s>" = 1 }\n'
        '[[rows]]\nafter = ["a"]\nnext = { a = 1 }\n[[answers]]\nwhen = "go"\nfile = "new.py"\n'
    )
    spec = {
        "vocabulary": ["a", "</s>"],
        "eos": "</s>",
        "default": {"a": 3, "</s>": 1},
        "rows": [{"after": ["a"], "next": {"a": 1}}],
        "answers": [{"when": "go", "file": "new.py"}],
    }
    (tmp_path / "table.json").write_text(json.dumps(spec))
    for path in (toml, tmp_path / "table.json"):
        script = Script.load(path)
        assert script.name == "table"
        assert script.row([1]).top(2) == [(0, math.log(0.75)), (1, math.log(0.25))]
        assert script.row([0]).top(2) == [(0, 0.0)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"vocab": ["a"]}, "script: unknown key 'vocab'"),
        ({"vocabulary": ["a", ""]}, "vocabulary: expected a list of non-empty strings"),
        ({"vocabulary": ["a", "a"]}, "vocabulary: the same token stands there twice"),
        ({"vocabulary": ["a"], "default": {"bb": 1}}, "default: 'bb' is not in the vocabulary"),
        (
            {"vocabulary": ["a"], "default": {"a": 0}},
            "default: expected at least one positive weight",
        ),
        ({"vocabulary": ["a"], "default": {"a": -1}}, "default: expected weights ≥ 0"),
        (
            {"vocabulary": ["a"], "rows": [{"after": []}]},
            "rows[0].after: expected a list of tokens",
        ),
        ({"vocabulary": ["a"], "rows": [{"after": ["a"]}]}, "rows[0].next: expected a table"),
        ({"answers": [{"when": "a"}]}, "answers[0]: expected either `text` or `file`"),
        ({"answers": [{"text": "a", "p": 1.5}]}, "answers[0].p: expected a probability in (0, 1]"),
        ({"answers": [{"text": "a", "when": 3}]}, "answers[0].when: expected a string, got 3"),
        ({"vocabulary": ["a"], "max_len": "x"}, "max_len: expected a positive integer, got 'x'"),
    ],
)
def test_what_is_wrong_with_a_script(spec: dict[str, Any], message: str) -> None:
    """The message names the place."""
    with pytest.raises(InvalidScript) as caught:
        Script(spec)
    assert str(caught.value).startswith(message)


def test_a_script_needs_neither_torch_nor_transformers_nor_numpy() -> None:
    """The server runs where none of them is installed."""
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'numpy', 'openai', 'tokenizers'):\n"
        "    sys.modules[name] = None\n"
        "import urllib.request\n"
        "from specroute.reference.running import ReferenceServer\n"
        "with ReferenceServer({'vocabulary': ['a']}) as server:\n"
        "    print(urllib.request.urlopen(server.url + '/health').read().decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == '{"status":"ok"}\n'
    assert done.stderr == ""


class TestTable:
    """Draws and truncations, by inverse of the cumulative distribution."""

    table = Table({0: 0.1, 1: 0.4, 2: 0.2, 3: 0.2, 4: 0.1})

    def support(self, settings: Settings, bias: dict[int, float] | None = None) -> dict[int, Any]:
        """What an even grid of u draws, as shares."""
        grid = [(i + 0.5) / 2000 for i in range(2000)]
        counts = Counter(self.table.draw(settings, bias or {}, u) for u in grid)
        return {token: pytest.approx(n / 2000, abs=1e-3) for token, n in sorted(counts.items())}

    def test_untouched(self) -> None:
        """Shares are the probabilities."""
        assert self.support(Settings()) == {0: 0.1, 1: 0.4, 2: 0.2, 3: 0.2, 4: 0.1}

    def test_top_k_keeps_ties(self) -> None:
        """Two tokens tie for the second place."""
        assert self.support(Settings(top_k=2)) == {1: 0.5, 2: 0.25, 3: 0.25}

    def test_top_p(self) -> None:
        """The smallest set that reaches it."""
        assert self.support(Settings(top_p=0.6)) == {1: 2 / 3, 2: 1 / 3}

    def test_temperature(self) -> None:
        """Probabilities to the power 1/T, renormalised."""
        powers = [0.01, 0.16, 0.04, 0.04, 0.01]
        expected = {i: p / sum(powers) for i, p in enumerate(powers)}
        assert self.support(Settings(temperature=0.5)) == expected

    def test_bias(self) -> None:
        """-100 is as good as never."""
        assert self.support(Settings(), {1: -100}) == {
            0: 1 / 6, 2: 1 / 3, 3: 1 / 3, 4: 1 / 6,
        }  # fmt: skip

    def test_greedy(self) -> None:
        """The most likely; after bias, ties go to the lowest id."""
        assert self.table.greedy({}) == 1
        assert self.table.greedy({1: -100}) == 2
