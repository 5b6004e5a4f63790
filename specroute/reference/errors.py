"""A refusal in OpenAI's shape. Knows status and wording; deliberately not when to refuse."""

from __future__ import annotations

from typing import Any


class Refusal(Exception):
    """The request can't be answered; ends up as ``{"error": {message, type, param, code}}``."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """The JSON answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(param: str, value: Any, expected: str) -> Refusal:
    """A 400 that shows the value, says what was expected, and names the parameter."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "…"
    return Refusal(
        400, f"{param}: expected {expected}, got {shown}", param=param, code="invalid_value"
    )
