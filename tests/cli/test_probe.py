"""The probe sees what a server does, whatever its profile says, and its result is used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from specroute import probed
from specroute.cli import app
from specroute.profiles import Capabilities
from specroute.reference.running import ReferenceServer
from specroute.target.calibration import QUESTION
from tests.support.proxy import Fault, Proxy

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
        ({"disable": ["list_prompts"]}, "joint_rounds", False),
        ({"quirks": ["answers_misnumbered"]}, "joint_rounds", False),
        ({"ignore": ["echo"]}, "score", ["prompt_logprobs"]),
        ({"disable": ["echo", "prompt_logprobs", "completions"]}, "score", []),
        ({"disable": ["tokenize"]}, "template", "apply-template"),
        ({"disable": ["stream_usage"]}, "stream_usage", False),
        ({"prefill": ["trailing_assistant"]}, "prefill", "trailing_assistant"),
        ({"prefill": ["partial"]}, "prefill", "partial"),
        ({"prefill": []}, "prefill", "none"),
        ({"prefill_repeats": True}, "prefill_repeats", True),
        ({"quirks": ["scaled_logprobs"]}, "logprobs", "tempered"),
        ({}, "answer_ids_param", "return_token_ids"),
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


async def test_what_a_probe_could_not_tell_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a vocabulary, or where calibration met an overloaded server, nothing is said of how it
    scores: a client may know more, or ask at a better time."""

    def busy(path: str, body: Mapping[str, Any], n: int) -> Fault | None:
        return Fault("status", status=503) if QUESTION in str(body.get("messages")) else None

    monkeypatch.setenv("SPECROUTE_CACHE_DIR", str(tmp_path))
    file = tmp_path / "specroute.toml"
    for judge, seen in ((lambda path, body, n: None, ["prompt_logprobs"]), (busy, None)):
        with ReferenceServer(SCRIPT, ignore=["echo"]) as running:
            async with Proxy(running.base_url, judge) as proxy:
                file.write_text(
                    'version = 1\n[providers.lab]\nprofile = "vllm"\nenv_key = ""\n'
                    f'base_url = "{proxy.base_url}"\n'
                )
                asked = ["probe", "lab:months", "--file", str(file), "--json"]
                shown = await asyncio.to_thread(CliRunner().invoke, app, asked)
                assert shown.exit_code == 0, shown.output
                assert _seen(json.loads(shown.stdout))["score"] == seen
                kept = probed.load(proxy.base_url, "months")
                assert kept is not None
                assert "score" not in {f["field"] for f in kept[0]}


def test_the_config_s_tokenizer_is_the_model_s(tmp_path: Path) -> None:
    """Without ``--tokenizer`` it is the one that a model of the config with this target names."""
    file = tmp_path / "specroute.toml"
    file.write_text(
        'version = 1\n[providers.lab]\nprofile = "vllm"\nbase_url = "http://127.0.0.1:9/v1"\n'
        f'[models.m]\ntargets = ["lab:months"]\ntokenizer = "{tmp_path / "gone"}"\n'
    )
    shown = CliRunner().invoke(app, ["probe", "lab:months", "--file", str(file), "--json"])
    assert shown.exit_code != 0
    assert "no tokenizer could be loaded" in str(shown.exception)
