"""Keys go to the host they belong to, and are shown nowhere."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from specroute.cli import app
from specroute.config import load, parse, plain_config, provider_for
from specroute.config.view import effective, rows
from specroute.errors import ConfigError

CANARY = "sk-canary-4f9a8b7c6d5e"
ENV = {"LAB_API_KEY": CANARY, "OPENAI_API_KEY": CANARY}
LAB = {
    "profile": "vllm",
    "base_url": "http://h:1/v1",
    "env_key": "LAB_API_KEY",
    "headers": {"Authorization": f"Bearer {CANARY}", "X-Team": CANARY},
    "query": {"api-key": CANARY, "region": CANARY},
}


def test_a_config_shows_no_key_in_any_form() -> None:
    """repr, str and the redacted view hold neither keys nor headers."""
    config = load({"providers": {"lab": LAB}}, environ=ENV)
    assert config.providers["lab"].key() == CANARY
    plain = plain_config("http://h/v1", CANARY, headers={"X": CANARY}, environ={})
    for shown in (
        repr(config),
        str(config),
        f"{config.providers['lab']}",
        json.dumps(effective(config)),
        str(list(rows(config))),
        str(list(rows(parse({"providers": {"g": {"base_url": f"http://h/{CANARY}/v1"}}})))),
        repr(plain),
        json.dumps(effective(plain)),
    ):
        assert CANARY not in shown


def test_the_command_shows_no_key(tmp_path, monkeypatch) -> None:
    """``specroute config`` redacts, as a table and as JSON."""
    file = tmp_path / "specroute.toml"
    file.write_text(
        f"""
        version = 1
        [providers.lab]
        base_url = "http://h:1/v1"
        env_key = "LAB_API_KEY"
        headers = {{ Authorization = "Bearer {CANARY}" }}
        query = {{ token = "{CANARY}" }}
        """
    )
    monkeypatch.setenv("LAB_API_KEY", CANARY)
    for more in ([], ["--json"]):
        result = CliRunner().invoke(app, ["config", "--file", str(file), *more])
        assert result.exit_code == 0, result.output
        assert CANARY not in result.output
        assert "LAB_API_KEY" in result.output
        assert "Authorization" in result.output


LEAKS = [
    {"providers": {"lab": {**LAB, "env_key": CANARY}}},
    {"providers": {"lab": {**LAB, "api_key": CANARY}}},
    {"providers": {"lab": {**LAB, "token": CANARY}}},
    {"providers": {"lab": {**LAB, "base_url": f"http://user:{CANARY}@h/v1"}}},
    {"providers": {"lab": {**LAB, "base_url": f"http://{CANARY}@h/v1"}}},
    {"providers": {"lab": {**LAB, "base_url": f"http://h/v1?key={CANARY}"}}},
    {"providers": {"lab": {**LAB, "base_url": f"h/{CANARY}"}}},
    {"providers": {"lab": {**LAB, "headers": {"X": [CANARY]}}}},
    {"providers": {"lab": {**LAB, "headers": CANARY}}},
    {"providers": {"lab": {**LAB, "headers": {"X": f"{CANARY}\n"}}}},
    {"providers": {"lab": {**LAB, "query": [CANARY]}}},
    {"providers": {"lab": {**LAB, "profile": CANARY}}},
    {"providers": {"lab": {**LAB, "timeouts": {"total": CANARY}}}},
    {"models": {"m": {"targets": [CANARY]}}},
    {"models": {"m": {"targets": ["openai:x"], "drafts": [CANARY]}}},
    {"models": {"m": {"targets": ["openai:x"], "policy": CANARY}}},
    {"drafts": {"d": {"kind": CANARY}}},
    {"default_provider": CANARY},
    {"version": CANARY},
]


@pytest.mark.parametrize("data", LEAKS, ids=range(len(LEAKS)))
def test_no_error_shows_a_key(data) -> None:
    """A key in the wrong place is refused without being repeated."""
    for environ in (ENV, {}):
        with pytest.raises(ConfigError) as caught:
            parse(data, environ=environ)
        assert CANARY not in str(caught.value)
        assert CANARY not in repr(caught.value)


def test_a_key_that_looks_like_none_is_kept_out_of_errors_too() -> None:
    """Whatever the environment holds under a key's name is struck from messages."""
    with pytest.raises(ConfigError) as caught:
        parse({"default_provider": "opensesame"}, environ={"MY_API_KEY": "opensesame"})
    assert "opensesame" not in str(caught.value)


def test_keys_in_a_config_are_refused_with_the_way_out() -> None:
    """``api_key`` inline says what to write instead."""
    with pytest.raises(ConfigError, match="put it into an environment variable"):
        parse({"providers": {"lab": {**LAB, "api_key": CANARY}}}, environ=ENV)


MOVED = [
    {"openai": {"base_url": "http://evil.example/v1"}},
    {"openai": {"base_url": "https://api.openai.com.evil.example/v1"}},
    {"openai": {"base_url": "http://api.openai.com/v1"}},
    {"openai": {"base_url": "https://api.openai.com:8443/v1"}},
    {"mine": {"profile": "openai", "base_url": "https://evil.example/v1"}},
    {"azure": {"base_url": "https://evil.openai.azure.com/openai/v1"}},
]


@pytest.mark.parametrize("providers", MOVED)
def test_a_profiles_key_doesnt_follow_a_new_address(providers) -> None:
    """A file that moves a known provider has to name the key itself."""
    environ = {"OPENAI_API_KEY": CANARY, "AZURE_OPENAI_API_KEY": CANARY}
    with pytest.raises(ConfigError, match=r"isn't sent to .* unless this table says so"):
        parse({"providers": providers}, environ=environ)
    ((name, table),) = providers.items()
    config = parse({"providers": {name: {**table, "env_key": ""}}}, environ=environ)
    assert config.providers[name].key() is None


def test_a_profiles_key_goes_to_the_profiles_own_addresses() -> None:
    """Regional hosts and other paths of the same provider are its own."""
    for url in ("https://api.openai.com/v1", "https://eu.api.openai.com/v1/"):
        config = parse({"providers": {"openai": {"base_url": url}}}, environ=ENV)
        assert config.providers["openai"].key() == CANARY


@pytest.mark.parametrize(
    ("base_url", "environ", "profile", "address", "key"),
    [
        (None, {"OPENAI_API_KEY": "a"}, "openai", "https://api.openai.com/v1", "a"),
        (
            None,
            {"OPENAI_API_KEY": "a", "OPENAI_BASE_URL": "http://h/v1/"},
            "generic",
            "http://h/v1",
            "a",
        ),
        ("http://h/v1", {"OPENAI_API_KEY": "a"}, "generic", "http://h/v1", "a"),
        ("http://h/v1", {}, "generic", "http://h/v1", None),
        (
            "https://api.groq.com/openai/v1",
            {"OPENAI_API_KEY": "a", "GROQ_API_KEY": "b"},
            "groq",
            "https://api.groq.com/openai/v1",
            "b",
        ),
    ],
)
def test_a_plain_client_finds_its_key(base_url, environ, profile, address, key) -> None:
    """As openai's own client does, but one provider's key is never sent to another."""
    config = plain_config(base_url, environ=environ)
    (provider,) = config.providers.values()
    assert (provider.profile, provider.base_url, provider.key()) == (profile, address, key)
    assert config.default_provider == provider.name


def test_a_plain_client_at_a_known_provider_wants_that_providers_key() -> None:
    """OpenAI's key isn't sent to Groq; the error names Groq's variable."""
    config = plain_config("https://api.groq.com/openai/v1", environ={"OPENAI_API_KEY": "a"})
    with pytest.raises(ConfigError, match="GROQ_API_KEY"):
        provider_for(config, "groq", {})


def test_a_plain_clients_bad_address_is_a_clear_error() -> None:
    """The same rules as in a file; a password isn't repeated."""
    with pytest.raises(ConfigError, match="base_url: expected a base_url like"):
        plain_config("localhost:8000", environ={})
    with pytest.raises(ConfigError) as caught:
        plain_config(f"http://me:{CANARY}@h/v1", environ={})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("value", ["", "  ", "two words", "line\nbreak"])
def test_a_variable_that_holds_no_key_is_as_good_as_unset(value: str) -> None:
    """Empty or broken values would only fail later, at the server."""
    with pytest.raises(ConfigError, match="LAB_API_KEY is"):
        parse({"providers": {"lab": LAB}}, environ={"LAB_API_KEY": value})


def test_toml_errors_dont_quote_the_file() -> None:
    """A decoder's message can't carry a key."""
    with pytest.raises(tomllib.TOMLDecodeError) as caught:
        tomllib.loads(f'env_key = "{CANARY}')
    assert CANARY not in str(caught.value)
