"""``specroute serve``: the same core behind HTTP, for apps in any language.

``app`` is the web application, ``forward`` one request's way through the router, ``keys`` who may
ask, ``metrics`` what a monitor sees, ``run`` the server process.
"""

from specroute.serve.app import make_app

__all__ = ["make_app"]
