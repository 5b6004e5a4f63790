"""``AsyncSpecRoute``: an ``openai.AsyncOpenAI`` whose requests a router answers.

Knows openai's client: where its requests, retries, errors and stream decoder can be taken over.
openai's own code does the rest (types, ``.parse()``, ``.stream()``, raw responses).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx2
import openai
from openai import DefaultAsyncHttpxClient, NotGiven, not_given

from specroute import errors, openai_errors
from specroute.config import Config, PolicyConfig, find, load, parse_policy, plain_config
from specroute.exchange import OnReport
from specroute.http import wire
from specroute.http.sse import SseDecoder
from specroute.router import Router
from specroute.transport import HINT, HINTS, PROVIDER, RETRIES, Hints, SpecRouteTransport, answer

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions
    from openai._streaming import SSEBytesDecoder

    from specroute.batch import BatchResult
    from specroute.batch.progress import OnItem

PLACEHOLDER_KEY = "specroute"
"""openai's constructor wants a key; with a config the providers' own keys are used instead."""
PLACEHOLDER_URL = "https://specroute.invalid/v1"

ConfigSource = Config | Mapping[str, Any] | str | os.PathLike[str]

T = TypeVar("T")

_FIELDS = ("model", "stream", "stream_options", "specroute")


class AsyncSpecRoute(openai.AsyncOpenAI):
    """An ``openai.AsyncOpenAI`` over any OpenAI-format provider.

    Every argument of ``AsyncOpenAI`` means the same here. ``config``: a ``specroute.toml``'s path,
    a dict of its structure, or a :class:`~specroute.config.Config`. ``on_report``: called with
    each chat or completions call's final :class:`~specroute.types.Report`; may be async.

    With ``api_key``, ``base_url`` or another of openai's credentials it is a plain client for that
    address; with none of them and no ``config`` it looks for a config file, and failing that is a
    plain client by the ``OPENAI_*`` variables. ``http_client`` becomes the client that reaches the
    providers, and is closed with this one, as openai does. asyncio only.

    Raises :class:`openai.OpenAIError` for missing credentials and for a wrong config (then also
    :class:`specroute.ConfigError`, which lists every problem).
    """

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
        http_client: httpx2.AsyncClient | None = None,
        config: ConfigSource | None = None,
        on_report: OnReport | None = None,
        _policy: PolicyConfig | None = None,
        _inherited: Config | None = None,
        **options: Any,
    ) -> None:
        shared = http_client if isinstance(http_client, _SeamClient) else None
        given = [
            name
            for name, value in {"api_key": api_key, "base_url": base_url, **options}.items()
            if name in _PLAIN_ARGUMENTS and value is not None and not isinstance(value, NotGiven)
        ]
        loaded = None if shared else _inherited or _config(config, given)
        configured = loaded is not None or (shared is not None and not shared.router.direct)
        if configured:
            base_url = _shown_base_url(loaded) if loaded is not None else base_url
            api_key = PLACEHOLDER_KEY
        if shared is not None and shared.router.direct and _elsewhere(shared.router, base_url):
            # The same connections; the provider is another, and so is what is known of it.
            seam, shared = _SeamClient(shared.upstream, shared), None
        else:
            seam = shared or _SeamClient(http_client)
        super().__init__(
            api_key=api_key,
            organization=organization,
            project=project,
            base_url=base_url,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
            default_query=default_query,
            http_client=seam,
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
            if loaded is None:
                loaded = _plain_config(str(self.base_url), self.api_key or None)
            seam.router = Router(loaded, http_client=seam.upstream, direct=not configured)

    @classmethod
    def from_config(cls, source: ConfigSource | None = None, **options: Any) -> Self:
        """A client by a config: a path, a dict, a ``Config``, or (``None``) the file found by the
        usual look-up. ``options`` are the constructor's. Raises :class:`specroute.ConfigError`."""
        config = source if isinstance(source, Config) else _load(source)
        return cls(config=config, **options)

    @property
    def router(self) -> Router:
        """The router that answers; shared with every client made by :meth:`with_options`."""
        seam = self._client
        assert isinstance(seam, _SeamClient)
        return seam.router

    async def warm_up(self) -> list[str]:
        """Load the drafts and calibrate the targets of every configured model now, instead of
        beside its first requests.

        Costs two short calls a target. Returns one sentence for each thing that is not to be had
        (a draft that doesn't load, a target whose scoring can't be trusted): such requests are
        answered plainly.
        """
        return await self.router.warm_up(self._on_report)

    async def batch(
        self,
        requests: Iterable[Mapping[str, Any]],
        *,
        concurrency: int = 32,
        method: str | None = None,
        policy: str | Mapping[str, Any] | None = None,
        journal: str | os.PathLike[str] | None = None,
        attempts: int = 4,
        timeout: float | None = None,
        progress: bool | OnItem | None = None,
    ) -> BatchResult:
        """Answer many requests; the items come in the order of ``requests``, an error for each
        that could not be answered.

        ``requests``: arguments of ``chat.completions.create`` or ``completions.create``, or lines
        of OpenAI's batch file format. ``concurrency``: requests under way at once. ``method`` (as
        in a ``fixed`` policy) or ``policy``: for every request. ``journal``: a file that remembers
        the answers, so that a run with the same file after a crash asks only for the rest; a
        prompt that was under way when the process died is asked again, no other. ``attempts``: of
        each request, with growing waits and (with ``timeout``, seconds of the first) a doubled
        timeout, the last one plain; one 429 holds back all requests for that model. A refused key
        or an exhausted quota ends a model's requests at once. ``progress``: a bar on stderr
        (``None``: if that is a terminal), or a function of each item and the counts so far.

        Raises :class:`specroute.RequestError` before anything is sent: a request that is none,
        an id used twice, a file that is no journal or is in use.
        """
        from specroute.batch import run_batch

        try:
            return await run_batch(
                self,
                requests,
                concurrency=concurrency,
                method=method,
                policy=policy,
                journal=journal,
                attempts=attempts,
                timeout=timeout,
                progress=progress,
            )
        except errors.RequestError as error:
            raise openai_errors.translate(
                error, httpx2.Request("POST", str(self.base_url))
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.router.config.source!r})"

    def copy(
        self,
        *,
        policy: str | Mapping[str, Any] | None = None,
        on_report: OnReport | None = None,
        http_client: httpx2.AsyncClient | None = None,
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
            "_policy": self._policy
            if policy is None
            else _translated(lambda: parse_policy(policy)),
            **_extra_kwargs,
        }
        if not self.router.direct:
            given = [
                name
                for name, value in options.items()
                if name in _PLAIN_ARGUMENTS and value is not None and value is not not_given
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
        error = openai_errors.status_error(
            wire.redact(self.router.redact(err_msg), (key,)),
            response=response,
            body=body,
            provider=response.extensions.get(PROVIDER, ""),
        )
        hint = response.extensions.get(HINT)
        if hint is not None:
            error.add_note(hint)
        return error

    async def _process_response(
        self, *, response: httpx2.Response, retries_taken: int = 0, **kwargs: Any
    ) -> Any:
        retries = response.extensions.get(RETRIES, retries_taken)
        return await super()._process_response(response=response, retries_taken=retries, **kwargs)

    def _make_sse_decoder(self) -> SSEBytesDecoder:
        return _StrictDecoder(self.base_url)


_PLAIN_ARGUMENTS = frozenset(
    {
        "api_key",
        "admin_api_key",
        "workload_identity",
        "provider",
        "base_url",
        "data_residency",
    }
)


_PATH = re.compile(r"[A-Za-z0-9_./~:@%-]*")

_urls: dict[tuple[httpx2.URL, str], httpx2.URL] = {}


class _SeamClient(httpx2.AsyncClient):
    """The httpx2 client that openai sends with: builds as the upstream client builds, and lets the
    router answer. A request that did not come from ``AsyncSpecRoute`` goes upstream as it is."""

    router: Router

    def __init__(
        self, upstream: httpx2.AsyncClient | None, parent: _SeamClient | None = None
    ) -> None:
        if upstream is not None and not isinstance(upstream, httpx2.AsyncClient):
            raise TypeError(
                "http_client must be an httpx2.AsyncClient (openai.DefaultAsyncHttpxClient or "
                f"openai.DefaultAioHttpClient make one), got {type(upstream).__module__}."
                f"{type(upstream).__name__}"
            )
        self._owned = upstream is None
        self._parent = parent  # Whose connections these are: kept, since it closes them at its end.
        self.upstream = upstream or DefaultAsyncHttpxClient()
        timeout = httpx2.Timeout(5.0) if self._owned else self.upstream.timeout
        # Never asked to send: `send` is taken over.
        super().__init__(transport=_Nowhere(), timeout=timeout)

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        return self.upstream.build_request(*args, **kwargs)

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> Any:
        hints = request.extensions.get(HINTS)
        if hints is None:
            return await self.upstream.send(request, stream=stream, **options)
        if self.is_closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        follow = options.pop("follow_redirects", None)
        hints.follow_redirects = self.upstream.follow_redirects if follow is None else follow
        hints.send_options = options
        return await answer(self.router, request, hints, stream=stream)

    @property
    def is_closed(self) -> bool:
        return self.upstream.is_closed

    async def aclose(self) -> None:
        router = getattr(self, "router", None)
        if router is not None:
            await router.aclose()
        if self._parent is not None:
            await self._parent.aclose()
        if not self.upstream.is_closed:
            await self.upstream.aclose()

    def __del__(self) -> None:
        if not getattr(self, "_owned", False) or self.upstream.is_closed:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # No loop runs: nothing can be awaited any more.
        router = getattr(self, "router", None)
        if router is not None and not loop.is_closed():
            router.supervisor.spawn(self.upstream.aclose(), name="end of a dropped client")


class _Nowhere(httpx2.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise RuntimeError("requests are sent through the router")


class _Event:
    """What openai's stream reads of an event."""

    __slots__ = ("_url", "data", "event", "id", "retry")

    def __init__(self, name: str | None, data: str, url: httpx2.URL) -> None:
        self.event = name
        self.data = data
        self.id: str | None = None
        self.retry: int | None = None
        self._url = url

    def json(self) -> Any:
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise openai_errors.BadAnswer(
                errors.BadAnswer(f"a stream event is not JSON: {self.data[:80]!r}", provider=""),
                httpx2.Request("POST", self._url),
            ) from error


class _StrictDecoder:
    """openai's stream decoding with our decoder: empty events are no events, and one that is no
    JSON is a typed error."""

    def __init__(self, url: httpx2.URL) -> None:
        self._url = url

    def iter_bytes(self, iterator: Iterable[bytes]) -> Any:
        raise NotImplementedError("AsyncSpecRoute streams asynchronously")

    async def aiter_bytes(self, iterator: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        decoder = SseDecoder()
        url = self._url
        try:
            async for chunk in iterator:
                for event in decoder.feed(chunk):
                    if event.payload:
                        name = event.name.decode("utf-8", "replace") if event.name else None
                        yield _Event(name, event.payload.decode("utf-8"), url)
        except UnicodeDecodeError as error:
            raise openai_errors.BadAnswer(
                errors.BadAnswer("a stream event is not UTF-8", provider=""),
                httpx2.Request("POST", url),
            ) from error


def _config(source: ConfigSource | None, given: list[str]) -> Config | None:
    """The config of a new client; ``None``: a plain one."""
    if source is not None:
        if given:
            raise openai_errors.ConfigError(
                f"AsyncSpecRoute(config=…, {given[0]}=…): the config says where requests go and "
                f"with which key; give either the one or {given[0]}"
            )
        if isinstance(source, Config):
            return source
        return _load(source)
    if given:
        return None
    path = _translated(find)
    return None if path is None else _load(path)


def _plain_config(base_url: str, api_key: str | None) -> Config:
    """The config of a plain client. openai's constructor has seen to its credentials, which need
    not be a key that is known here (a function, an admin key, an identity)."""
    config = _translated(lambda: plain_config(base_url, api_key))
    providers = {n: replace(p, env_key=None) for n, p in config.providers.items()}
    return replace(config, providers=providers)


def _elsewhere(router: Router, base_url: str | httpx2.URL | NotGiven | None) -> bool:
    """Whether a copy with ``base_url`` calls another address than the plain client it is of."""
    if base_url is None or isinstance(base_url, NotGiven):
        return False
    known = next(iter(router.config.providers.values())).base_url
    return str(base_url).rstrip("/") != known


def _encoded_path(url: str) -> str:
    """The path of a call as it is sent, without its query."""
    if _PATH.fullmatch(url):
        return url
    return httpx2.URL(url).raw_path.partition(b"?")[0].decode("ascii")


def _load(source: Mapping[str, Any] | str | os.PathLike[str] | None) -> Config:
    path = source if source is None or isinstance(source, Mapping) else Path(source)
    return _translated(lambda: load(path))


def _translated(make: Callable[[], T]) -> T:
    try:
        return make()
    except errors.ConfigError as error:
        if isinstance(error, openai.OpenAIError):
            raise
        raise openai_errors.ConfigError(error.problems, error.source) from None


def _shown_base_url(config: Config) -> str:
    """What ``client.base_url`` shows: the default provider's, else the only sensible other."""
    name = config.default_provider
    if name is None and config.models:
        name = next(iter(config.models.values())).targets[0].provider
    if name is None and config.providers:
        name = next(iter(config.providers))
    provider = config.providers.get(name) if name is not None else None
    return PLACEHOLDER_URL if provider is None else provider.base_url


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


__all__ = ["AsyncSpecRoute", "SpecRouteTransport"]
