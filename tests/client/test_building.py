"""Requests built the short way are those that httpx2 builds."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from specroute.openai_seam import building
from specroute.openai_seam.building import build_request


class Marking(httpx2.AsyncClient):
    """A user's own client, which builds requests in its own way."""

    def build_request(self, *args: Any, **kwargs: Any) -> httpx2.Request:
        request = super().build_request(*args, **kwargs)
        request.headers["x-mark"] = "1"
        return request


class Merging(httpx2.AsyncClient):
    """One that adds to every request's headers."""

    def _merge_headers(self, headers: Any = None) -> Any:
        merged = super()._merge_headers(headers)
        merged["x-mark"] = "1"
        return merged


def changed() -> httpx2.AsyncClient:
    """A client whose ``build_request`` somebody has wrapped since it was made."""
    client: Any = httpx2.AsyncClient()
    own = client.build_request

    def build(*args: Any, **kwargs: Any) -> httpx2.Request:
        request: httpx2.Request = own(*args, **kwargs)
        request.headers["x-mark"] = "1"
        return request

    client.build_request = build
    return client  # type: ignore[no-any-return]


ASKED: dict[str, Any] = {
    "headers": [("Accept", "application/json"), ("x-a", "1"), ("x-a", "2"), ("X-Name", "b")],
    "timeout": httpx2.Timeout(600, connect=5),
    "method": "post",
    "url": "http://127.0.0.1:8000/v1/chat/completions?api-version=1",
    "params": None,
    "content": b'{"model":"m"}',
    "files": None,
}


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(httpx2.AsyncClient(), id="the default"),
        pytest.param(httpx2.AsyncClient(headers={"X-A": "0", "x-own": "y"}), id="own headers"),
        pytest.param(httpx2.AsyncClient(cookies={"a": "b"}, base_url="http://b/"), id="cookies"),
        pytest.param(httpx2.AsyncClient(params={"a": "b"}), id="query parameters"),
        pytest.param(httpx2.AsyncClient(base_url="http://other/"), id="a base URL"),
        pytest.param(Marking(), id="its own build_request"),
        pytest.param(Merging(), id="its own headers"),
        pytest.param(changed(), id="a wrapped build_request"),
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="as openai asks"),
        pytest.param({"headers": [("Host", "h"), ("content-length", "13")]}, id="own length"),
        pytest.param({"url": "/v1/models"}, id="a relative URL"),
        pytest.param({"url": "http://127.0.0.1:8000/v1?x=1", "params": {"y": "2"}}, id="a query"),
        pytest.param({"content": None}, id="no body"),
        pytest.param({"content": None, "method": "get"}, id="a GET"),
        pytest.param({"timeout": 3.0}, id="one number as timeout"),
        pytest.param({"extensions": {"sni_hostname": "h"}}, id="extensions"),
        pytest.param({"content": None, "files": {"f": b"x"}, "data": {"k": "v"}}, id="a form"),
    ],
)
def test_a_request_is_as_the_client_builds_it(
    client: httpx2.AsyncClient, changes: dict[str, Any]
) -> None:
    """The same method, address, headers in their order, body and timeouts; asked twice, since an
    address is remembered."""
    asked = {**ASKED, **changes}
    if "files" in changes:
        asked["headers"] = [("Content-Type", "multipart/form-data; boundary=b")]
    expected = client.build_request(**asked)
    for _ in range(2):
        built = build_request(client, asked)
        assert built.method == expected.method
        assert built.url == expected.url
        assert built.headers.raw == expected.headers.raw
        assert built.extensions == expected.extensions
        if not changes.get("files"):
            assert built.content == expected.content


def test_an_address_is_remembered_however_many_there_were() -> None:
    """A process that has seen many addresses parses a new one once, too."""
    client = httpx2.AsyncClient()
    for n in range(2000):
        build_request(client, {**ASKED, "url": f"http://127.0.0.1:8000/v1/files/{n}"})
    asked = {**ASKED, "url": "http://127.0.0.1:8000/v1/new"}
    build_request(client, asked)
    assert asked["url"] in building._urls
    assert len(building._urls) <= building._REMEMBERED
