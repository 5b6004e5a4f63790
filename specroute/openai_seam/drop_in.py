"""What ``AsyncSpecRoute`` and ``SpecRoute`` have in common: an openai client that a router answers.

Knows openai's clients: where their requests, retries, errors and stream decoder can be taken over.
openai's own code does the rest (``.parse()``, ``.stream()``, raw responses). The objects are
openai's, made the short way (``objects``) where that gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import httpx2
import openai
from openai import NotGiven, not_given

from specroute import errors, openai_errors
from specroute.config import Config, PolicyConfig, load, parse_policy
from specroute.exchange import OnReport
from specroute.http import wire
from specroute.openai_seam import objects
from specroute.openai_seam.client_config import (
    PLAIN_ARGUMENTS,
    ConfigSource,
    config_for,
    config_of_plain,
    elsewhere,
    load_config,
    located,
    shown_base_url,
    translated,
)
from specroute.openai_seam.seam import AsyncSeam, SyncSeam
from specroute.openai_seam.stream_decoder import StrictDecoder
from specroute.reloading import Watcher
from specroute.router import Router
from specroute.store import Store, make_store
from specroute.transport import HINT, HINTS, PROVIDER, Hints

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    class _Client(openai.AsyncOpenAI):
        """Stands for either of openai's clients."""
else:
    _Client = object

T = TypeVar("T")

PLACEHOLDER_KEY = "specroute"
"""openai's constructor wants a key; with a config the providers' own keys are used instead."""

_FIELDS = ("model", "stream", "stream_options", "specroute", "n", "prompt")


def _routers(config: Config, *, direct: bool) -> Callable[[httpx2.AsyncClient, Store], Router]:
    return lambda upstream, store: Router(config, http_client=upstream, direct=direct, store=store)


class DropIn(_Client):
    """Goes before openai's class in the bases; ``_seam_class`` is what it sends with."""

    _seam_class: type[AsyncSeam] | type[SyncSeam]

    def __init__(
        self,
        *,
        api_key: Any = None,
        organization: str | None = None,
        project: str | None = None,
        base_url: str | httpx2.URL | NotGiven | None = not_given,
        timeout: float | httpx2.Timeout | NotGiven | None = not_given,
        max_retries: int = openai.DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        default_query: Mapping[str, object] | None = None,
        http_client: Any = None,
        config: ConfigSource | None = None,
        on_report: OnReport | None = None,
        watch: bool = False,
        _policy: PolicyConfig | None = None,
        _inherited: Config | None = None,
        **options: Any,
    ) -> None:
        shared = http_client if isinstance(http_client, self._seam_class) else None
        given = [
            name
            for name, value in {"api_key": api_key, "base_url": base_url, **options}.items()
            if name in PLAIN_ARGUMENTS and value is not None and not isinstance(value, NotGiven)
        ]
        name = type(self).__name__
        loaded = None if shared else _inherited or config_for(config, given, name)
        routed = None if shared is None else shared.connections.routers.peek()
        configured = loaded is not None or (routed is not None and not routed.direct)
        if configured:
            base_url = shown_base_url(loaded) if loaded is not None else base_url
            api_key = PLACEHOLDER_KEY
        if routed is not None and routed.direct and elsewhere(routed, base_url):
            # The same connections; the provider is another, and so is what is known of it.
            seam, shared = self._seam_class(None, shared), None  # type: ignore[arg-type]
        else:
            seam = shared or self._seam_class(http_client)
        super().__init__(
            api_key=api_key,
            organization=organization,
            project=project,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
            default_query=default_query,
            http_client=seam,  # type: ignore[arg-type]
            **options,
        )
        self._on_report = on_report
        self._policy = _policy
        if configured:
            # What openai read from the environment belongs to OpenAI, not to these providers.
            self.organization = organization
            self.project = project
            self._custom_headers = dict(default_headers or {})
        if shared is None:
            by = loaded or config_of_plain(str(self.base_url), self.api_key or None)
            seam.connections.answer_with(_routers(by, direct=not configured), make_store(by.store))
            if configured:
                seam.connections.source = located(config)
        if watch:
            self._watch()

    @classmethod
    def from_config(cls, source: ConfigSource | None = None, **options: Any) -> Self:
        """A client by a config: a path, a dict, a ``Config``, or (``None``) the file found by the
        usual look-up. ``options`` are the constructor's. Raises :class:`specroute.ConfigError`."""
        config = source if isinstance(source, Config) else load_config(source)
        made = cls(config=config, **{**options, "watch": False})
        made._seam.connections.source = located(source)
        if options.get("watch"):
            made._watch()
        return made

    def reload(self, config: ConfigSource | None = None) -> Config:
        """Take a new config; ``None``: the file or dict of the old one, read again.

        It is checked first. Then requests that begin from now on go by it, those under way end by
        the old one. Measurements, calibrations and loaded drafts stay where what they are of has
        not changed; what nobody needs any more is freed after its last request. Holds for every
        client made from this one by :meth:`with_options`, on every event loop.

        Raises :class:`specroute.ConfigError`, with every problem, and then nothing has changed.
        ``[store]`` can't be changed so.
        """
        connections = self._seam.connections
        if config is None:
            config = connections.source
            if config is None:
                raise openai_errors.ConfigError(
                    "this client has no config that could be read again: pass the new one to "
                    "reload()"
                )
        found = config if isinstance(config, Config) else load_config(config)
        translated(lambda: connections.reload(found, _routers(found, direct=False)))
        return found

    def _watch(self) -> None:
        path = self._seam.connections.source
        if not isinstance(path, Path):
            raise openai_errors.ConfigError(
                "watch=True: only a config file can be watched; call reload() with what is new"
            )
        connections = self._seam.connections

        def use(config: Config) -> None:
            connections.reload(config, _routers(config, direct=False))

        connections.watch(Watcher(path, lambda: load(path), use))

    @property
    def router(self) -> Router:
        """The router that answers on the running event loop, or else the one used last; shared
        with every client made by :meth:`with_options`."""
        return self._seam.connections.routers.peek()

    @property
    def _seam(self) -> AsyncSeam | SyncSeam:
        seam = self._client
        assert isinstance(seam, AsyncSeam | SyncSeam)
        return seam

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.router.config.source!r})"

    def copy(
        self,
        *,
        policy: str | Mapping[str, Any] | None = None,
        on_report: OnReport | None = None,
        http_client: Any = None,
        _extra_kwargs: Mapping[str, Any] = {},
        **options: Any,
    ) -> Self:
        """openai's ``copy``: the same client with some options changed; connections are shared.

        ``policy``: a preset's name or a table over a preset, for every call of the copy. With
        ``http_client`` the copy has connections of its own. Raises
        :class:`specroute.ConfigError` for a wrong policy, or for ``api_key``, ``base_url`` and
        the like on a client that has a config.
        """
        extra: dict[str, Any] = {
            "on_report": on_report or self._on_report,
            "_policy": self._policy if policy is None else translated(lambda: parse_policy(policy)),
            **_extra_kwargs,
        }
        if not self.router.direct:
            given = [
                name
                for name, value in options.items()
                if name in PLAIN_ARGUMENTS and value is not None and value is not not_given
            ]
            if given:
                raise openai_errors.ConfigError(
                    f"with_options({given[0]}=…): this client's providers and keys come from its "
                    "config; change them there, or make a client without one"
                )
            if http_client is not None:
                extra["_inherited"] = self.router.config
        return super().copy(http_client=http_client, _extra_kwargs=extra, **options)

    with_options = copy

    # openai's own steps, taken over

    def _build_request(
        self, options: FinalRequestOptions, *, retries_taken: int = 0
    ) -> httpx2.Request:
        asked: str | None = None
        if options.files is not None:
            options, asked = self._form(options)
        request = super()._build_request(options, retries_taken=retries_taken)
        fields: dict[str, Any] | None = None
        data, more = options.json_data, options.extra_json
        if isinstance(data, Mapping):
            fields = {name: data[name] for name in _FIELDS if name in data}
        if more is not None:
            fields = fields or {}
            fields.update((name, more[name]) for name in _FIELDS if name in more)
        if options.files is not None:
            fields, replayable = {}, _replayable(options.files)
            if asked is not None:
                fields["model"] = asked
        else:
            replayable = options.content is None or isinstance(options.content, bytes)
        request.extensions[HINTS] = Hints(
            path=_encoded_path(options.url),
            fields=fields or {},
            max_retries=options.get_max_retries(self.max_retries),
            replayable=replayable,
            policy=self._policy,
            on_report=self._on_report,
        )
        return request

    def _form(self, options: FinalRequestOptions) -> tuple[FinalRequestOptions, str | None]:
        """A form names its model in a part of its own: there it becomes the target's name now,
        since nobody rewrites the parts later. Returns the name that was asked for, too."""
        data = options.json_data
        asked = data.get("model") if isinstance(data, Mapping) else None
        router = self.router
        if not isinstance(asked, str) or not isinstance(data, Mapping) or router.direct:
            return options, None
        try:
            name = router.routes.resolve(asked).target.model
        except errors.SpecRouteError:
            return options, asked  # Said, or passed on, by whoever routes it.
        if name == asked:
            return options, asked
        changed = options.model_copy()
        changed.json_data = {**data, "model": name}
        return changed, asked

    def _prepare_url(self, url: str) -> httpx2.URL:
        # The same few URLs are asked for again and again, and parsing one is not cheap.
        key = (self._base_url, url)
        known = _urls.get(key)
        if known is None:
            known = super()._prepare_url(url)
            if len(_urls) < 512:
                _urls[key] = known
        return known

    def _should_retry(self, response: httpx2.Response) -> bool:
        return False  # Retried already, under the request's one deadline.

    def _make_status_error(
        self, err_msg: str, *, body: object, response: httpx2.Response
    ) -> openai.APIStatusError:
        key = response.request.headers.get("authorization", "").removeprefix("Bearer ")

        def redact(text: str) -> str:
            return wire.redact(self.router.redact(text), (key,))

        error = openai_errors.status_error(
            redact(err_msg),
            response=response,
            body=wire.change_texts(body, redact),
            provider=response.extensions.get(PROVIDER, ""),
        )
        hint = response.extensions.get(HINT)
        if hint is not None:
            error.add_note(hint)
        return error

    def _process_response_data(
        self, *, data: object, cast_to: type[T], response: httpx2.Response
    ) -> T:
        if not self._strict_response_validation:
            found = objects.made(cast_to, data)
            if found is not None:
                return cast(T, found)
        return super()._process_response_data(data=data, cast_to=cast_to, response=response)

    def _make_sse_decoder(self) -> StrictDecoder:
        return StrictDecoder(self.base_url)


_PATH = re.compile(r"[A-Za-z0-9_./~:@%-]*")

_urls: dict[tuple[httpx2.URL, str], httpx2.URL] = {}


def _encoded_path(url: str) -> str:
    """The path of a call as it is sent, without its query."""
    if _PATH.fullmatch(url):
        return url
    return httpx2.URL(url).raw_path.partition(b"?")[0].decode("ascii")


def _replayable(files: Any) -> bool:
    """Whether a multipart body can be sent again: bytes, or files that can be rewound."""
    entries = files.items() if isinstance(files, Mapping) else files
    for _, entry in entries:
        content = entry[1] if isinstance(entry, tuple) and len(entry) > 1 else entry
        if isinstance(content, bytes | bytearray | str):
            continue
        seekable = getattr(content, "seekable", None)
        if seekable is None or not seekable():
            return False
    return True
