"""The page on drafting: its example is a config, its command runs and shows what it says."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from specroute.config import parse
from specroute.draft.factory import KINDS
from tests.support.tiny import TEXT, save_model, save_tokenizer

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "drafting.md").read_text(encoding="utf-8")


def test_the_example_is_a_config():
    """It can be pasted, and shows every kind."""
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
    config = parse(tomllib.loads(example), "example", {"OPENAI_API_KEY": "k"}, versioned=True)
    assert {draft.kind for draft in config.drafts.values()} == set(KINDS)


def test_drafting_is_faster_than_generate():
    """At batch 1, same model, same ids: at least 1.5 times the tokens per second."""
    command = [sys.executable, "bench/draft_speed.py", "--tokens", "32", "--repeats", "5", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["identical"]
    assert found["ways"]["drafter, one go"]["ratio"] >= 1.5
    assert found["ways"]["drafter, rounds of 8"]["ratio"] >= 1.5


def test_both_ways_across_vocabularies_are_measured(folder, tmp_path):
    """The page's command on two tiny models: every figure is there, and is a share."""
    other = save_model(save_tokenizer(tmp_path, text=TEXT[::-1], vocab_size=330), vocab_size=330)
    command = [sys.executable, "bench/cross_vocabulary.py", "--tokens", "5", "--json"]
    command += ["--draft", str(other), "--target", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert set(found["ways"]) == {"tli", "slem"}
    for way in found["ways"].values():
        assert way["drafted"] >= way["accepted"] >= 0
        assert 0 <= way["sampled_alpha"] <= 1
    assert 256 < found["shared"]["tokens"] < 330
