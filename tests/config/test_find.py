"""Where a config comes from, what ``-c`` lays over it, and where each value came from."""

from pathlib import Path

import pytest

from specroute.config import find, load
from specroute.config.view import rows
from specroute.errors import ConfigError

ENV: dict[str, str] = {"OPENAI_API_KEY": "k"}


@pytest.fixture(autouse=True)
def no_user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder of the user's own, empty."""
    folder = tmp_path / "home"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("SPECROUTE_CONFIG", raising=False)
    (folder / "specroute").mkdir(parents=True)
    return folder / "specroute"


def write(path: Path, model: str, head: str = "") -> Path:
    table = f"{head}." if head else ""
    top = f"[{head}]\n" if head else ""
    path.write_text(f'{top}version = 1\n[{table}models.{model}]\ntargets = ["openai:x"]\n')
    return path


def test_look_up_order(tmp_path: Path, no_user_folder: Path) -> None:
    """Argument, variable, ./specroute.toml, [tool.specroute], the user's folder."""
    here = tmp_path / "work"
    here.mkdir()

    def found(source: Path | None = None, **env: str) -> str:
        return next(iter(load(source, environ={**ENV, **env}, cwd=here).models))

    assert find(environ={}, cwd=here) is None
    user = no_user_folder / "specroute.toml"
    write(user, "user")
    assert found() == "user"
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert found() == "user"
    write(here / "pyproject.toml", "project", "tool.specroute")
    assert found() == "project"
    write(here / "specroute.toml", "local")
    assert found() == "local"
    write(here / "other.toml", "variable")
    assert found(SPECROUTE_CONFIG="other.toml") == "variable"
    write(here / "third.toml", "argument")
    assert found(Path("third.toml"), SPECROUTE_CONFIG="other.toml") == "argument"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version = 1\n[models", "not valid TOML"),
        (b"version = 1\nx = '\xff'", "not UTF-8; save it as UTF-8"),
        (b"", "version: missing; add `version = 1` as the first line"),
        (b"\xef\xbb\xbfversion = 1\nmodel = 1", "model: unknown key"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """The error says which file and what is wrong with it."""
    file = tmp_path / "specroute.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"specroute\.toml: ") as caught:
        load(file, environ=ENV)
    assert message in str(caught.value)


def test_nothing_to_read_says_where_it_looked(tmp_path: Path) -> None:
    """Without any file the error lists the places and another way."""
    with pytest.raises(ConfigError, match=r"no configuration found: .*base_url="):
        load(environ={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"SPECROUTE_CONFIG names 'nope\.toml'"):
        load(environ={"SPECROUTE_CONFIG": "nope.toml"}, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"nope\.toml: can't be read"):
        load("nope.toml", environ={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"no \[tool\.specroute\] table"):
        (tmp_path / "pyproject.toml").write_text("[project]\n")
        load("pyproject.toml", environ={}, cwd=tmp_path)


def test_overrides_are_laid_over_the_file() -> None:
    """Values are TOML, strings may go unquoted, tables come into being as needed."""
    config = load(
        {"models": {"m": {"targets": ["openai:x"], "policy": "fixed"}}},
        overrides=[
            "models.m.policy.num_speculative_tokens=8",
            "models.m.policy.method=prefix",
            'models."gpt-4.1".targets=["openai:gpt-4.1"]',
            "providers.lab.profile=vllm",
            "providers.lab.base_url=http://h:1/v1",
            "providers.lab.timeouts={ total = 9 }",
        ],
        environ=ENV,
    )
    assert config.models["m"].policy.params == {"num_speculative_tokens": 8, "method": "prefix"}
    assert config.models["m"].policy.preset == "fixed"
    assert "gpt-4.1" in config.models
    assert config.providers["lab"].timeouts.total == 9
    assert config.origins["models.m.policy.method"] == "-c"
    assert config.origins["providers.lab.timeouts.total"] == "-c"


def test_overrides_alone_are_a_config(tmp_path: Path) -> None:
    """With no file at all, ``-c`` can still say everything."""
    config = load(overrides=['models.m.targets=["openai:x"]'], environ=ENV, cwd=tmp_path)
    assert (config.source, config.origins["models.m.targets"]) == ("-c", "-c")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("models", "-c models=…: expected 'a.b=value'"),
        ("=3", "-c =…: expected 'a.b=value'"),
        ("models.gpt 4=3", "expected a dotted key before '=', got 'models.gpt 4'"),
        ("version.x=3", "version is 1, not a table"),
    ],
)
def test_an_override_that_cant_be_read(override: str, message: str) -> None:
    """The error repeats the key and never the value."""
    with pytest.raises(ConfigError) as caught:
        load({"version": 1}, overrides=[override], environ={})
    assert message in str(caught.value)


def test_the_given_dict_is_left_alone() -> None:
    """Overrides go into a copy."""
    data = {"models": {"m": {"targets": ["openai:x"], "policy": {"preset": "fixed"}}}}
    load(data, overrides=["models.m.policy.method=plain"], environ=ENV)
    assert data == {"models": {"m": {"targets": ["openai:x"], "policy": {"preset": "fixed"}}}}


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    """File, -c, profile, preset or default: each value says which."""
    (tmp_path / "specroute.toml").write_text(
        """
        version = 1
        [providers.lab]
        profile = "vllm"
        base_url = "http://h:1/v1"
        [providers.openai]
        timeouts = { total = 9 }
        [models.m]
        targets = ["lab:x"]
        policy = { preset = "fixed", method = "plain" }
        """
    )
    config = load(overrides=["models.m.policy.max_rounds=2"], environ=ENV, cwd=tmp_path)
    origins = {key: origin for key, _, origin in rows(config)}
    assert origins == origins | {
        "version": "specroute.toml",
        "providers.lab.profile": "specroute.toml",
        "providers.lab.timeouts.total": "default",
        "providers.openai.profile": "the provider's name",
        "providers.openai.base_url": "profile openai",
        "providers.openai.env_key": "profile openai",
        "providers.openai.key": "environment",
        "providers.openai.timeouts.total": "specroute.toml",
        "models.m.policy.preset": "specroute.toml",
        "models.m.policy.method": "specroute.toml",
        "models.m.policy.max_rounds": "-c",
        "models.m.policy.exactness": "preset fixed",
    }
