"""`RefusedError`: a request that is not served, as vLLM says so."""

import json
from http import HTTPStatus


class RefusedError(Exception):
    """An HTTP error with vLLM's error object (`serve/exception_handling`, 0.32.0)."""

    def __init__(
        self,
        message: str,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        error_type: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.param = param

    def body(self) -> bytes:
        """The JSON body that says why."""
        error = {
            "message": str(self),
            "type": self.error_type,
            "param": self.param,
            "code": self.status.value,
        }
        return json.dumps({"error": error}).encode()


def malformed(field: str, kind: str, said: str, value: object) -> RefusedError:
    """A body that does not have the API's form, in the words of vLLM's validation errors."""
    shown = value if isinstance(value, str | int | float | None) else type(value).__name__
    text = str(shown)
    detail = {"type": kind, "loc": f"body.{field}", "msg": said, "input": text[:200]}
    return RefusedError(
        f"1 validation error:\n  {detail}", error_type="Bad Request", param=f"body.{field}"
    )
