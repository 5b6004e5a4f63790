"""The probe sees what a server does, whatever its profile says, and its result is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specroute import probed
from specroute.cli import app
from specroute.profiles import Capabilities
from specroute.reference.running import ReferenceServer

SCRIPT = {
    "name": "months",
    "vocabulary": ["January", "February", "March", "April", "May", "June", "July", ",", " "],
    "default": {"May": 1.0, "June": 0.5, ",": 0.4, " ": 0.3, "July": 0.2, "April": 0.1},
    "answers": [
        {
            "when": "List the months",
            "text": "January, February, March, April, May, June, July",
            "p": 0.9,
        }
    ],
}


def _probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str = "vllm", **server: Any
) -> dict[str, Any]:
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    with ReferenceServer(SCRIPT, **server) as running:
        file = tmp_path / "specroute.toml"
        file.write_text(
            f'version = 1\n[providers.lab]\nprofile = "{profile}"\n'
            f'base_url = "{running.base_url}"\nenv_key = ""\n'
        )
        shown = CliRunner().invoke(app, ["probe", "lab:months", "--file", str(file), "--json"])
        assert shown.exit_code == 0, shown.output
        found: dict[str, Any] = json.loads(shown.stdout)
        charged = sum(r.prompt_tokens for r in running.log if r.path.startswith("/v1"))
        # Streams without usage leave the sum unknown, which is said, not guessed.
        known = "stream_usage" not in server.get("disable", ())
        assert found["spent"]["prompt_tokens"] == (charged if known else None)
    return found


def _seen(found: dict[str, Any]) -> dict[str, Any]:
    return {f["field"]: f["seen"] for f in found["findings"]}


@pytest.mark.parametrize(
    ("server", "field", "value"),
    [
        ({}, "completions", True),
        ({}, "echo_keeps_cache", False),
        ({"disable": ["cached_tokens"]}, "echo_keeps_cache", None),
        ({}, "prefill_trims", False),
        ({"prefill_trims": True}, "prefill_trims", True),
        ({"disable": ["completions"]}, "completions", False),
        ({"disable": ["id_prompts"]}, "id_prompts", False),
        ({"disable": ["list_prompts"]}, "list_prompts", False),
        ({"ignore": ["echo"]}, "score", ["prompt_logprobs"]),
        ({"disable": ["echo", "prompt_logprobs", "completions"]}, "score", []),
        ({"disable": ["tokenize"]}, "template", "apply-template"),
        ({"disable": ["stream_usage"]}, "stream_usage", False),
        ({"prefill": ["trailing_assistant"]}, "prefill", "trailing_assistant"),
        ({"prefill": ["partial"]}, "prefill", "partial"),
        ({"prefill": []}, "prefill", "none"),
        ({"prefill_repeats": True}, "prefill_repeats", True),
        ({"quirks": ["scaled_logprobs"]}, "logprobs", "processed"),
        ({}, "logprobs", "raw"),
        ({"disable": ["logprobs"]}, "chat_max_logprobs", 0),
        ({"max_logprobs": 5}, "chat_max_logprobs", 5),
    ],
    ids=str,
)
def test_it_sees_what_the_server_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: dict[str, Any],
    field: str,
    value: Any,
) -> None:
    """A capability that is switched off, ignored or odd is found, and the bill adds up."""
    assert _seen(_probe(tmp_path, monkeypatch, **server))[field] == value


def test_what_was_seen_is_used_over_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept probe refines a profile; the config's own word and an old probe don't yield to it."""
    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    profile = Capabilities(chat_max_logprobs=20, prefill="partial", id_prompts=True)
    probed.save(
        "http://h:1/v1",
        "m",
        [
            {"field": "chat_max_logprobs", "value": 5, "how": ""},
            {"field": "prefill", "value": "none", "how": ""},
            {"field": "template", "value": None, "how": ""},
            {"field": "ttft_s", "value": 0.1, "how": ""},
        ],
    )
    refined = probed.refined(profile, "http://h:1/v1", "m", {"prefill"})
    assert (refined.chat_max_logprobs, refined.prefill, refined.template) == (5, "partial", None)
    assert probed.refined(profile, "http://h:1/v1", "other", ()) == profile
    monkeypatch.setattr(probed, "MAX_AGE_S", -1.0)
    assert probed.refined(profile, "http://h:1/v1", "m", ()) == profile


def test_the_methods_follow_from_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that nothing stands in the way of, and one that only answers."""
    able = _probe(tmp_path, monkeypatch)["methods"]
    assert {name: verdict.partition(",")[0] for name, verdict in able.items()} == {
        "plain": "yes",
        "score": "yes",
        "prefix": "yes",
        "predict": "yes",
    }
    bare = ["completions", "prompt_logprobs", "prediction", "generate"]
    unable = _probe(tmp_path, monkeypatch, disable=bare, prefill=[])["methods"]
    assert {name: verdict[:2] for name, verdict in unable.items()} == {
        "plain": "ye",
        "score": "no",
        "prefix": "no",
        "predict": "no",
    }
