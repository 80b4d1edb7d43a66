"""`Fields`: the body of a request, read field by field."""

import json
from collections.abc import Mapping
from typing import Any

from vllm_slo.sim.serve.refusal import RefusedError, malformed

_LARGEST = 2**63 - 1


class Fields:
    """A JSON object whose fields are read by type; a null is a field that is not there.

    Raises:
        RefusedError: (from every method) the value is not what the API takes.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    @classmethod
    def of(cls, body: bytes) -> "Fields":
        """The fields of a JSON text."""
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            at = getattr(error, "pos", 0)
            raise malformed(str(at), "json_invalid", f"JSON decode error: {error}", "") from None
        if not isinstance(values, dict):
            raise malformed(
                "", "model_attributes_type", "Input should be a valid dictionary", values
            )
        return cls(values)

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def whole(self, name: str, *, least: int = -_LARGEST - 1) -> int | None:
        """A whole number of 64 bits, `least` at least."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise malformed(name, "int_type", "Input should be a valid integer", value)
        if value < least:
            said = f"Input should be greater than or equal to {least}"
            raise malformed(name, "greater_than_equal", said, value)
        if value > _LARGEST:
            said = f"Input should be less than or equal to {_LARGEST}"
            raise malformed(name, "less_than_equal", said, value)
        return value

    def truth(self, name: str) -> bool:
        """True or false; false where it is not there."""
        value = self._values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise malformed(name, "bool_type", "Input should be a valid boolean", value)
        return value

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise malformed(name, "string_type", "Input should be a valid string", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings."""
        value = self._values.get(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise malformed(name, "list_type", "Input should be a string or a list of them", value)
        return tuple(value)

    def nested(self, name: str) -> "Fields":
        """The fields of an object inside; none where it is not there."""
        value = self._values.get(name)
        if value is None:
            return Fields({})
        if not isinstance(value, dict):
            raise malformed(name, "dict_type", "Input should be a valid dictionary", value)
        return Fields(value)

    def refuse(self, name: str, *, unless: tuple[object, ...] = (None,)) -> None:
        """Refuses a field that asks for what the simulator has not got."""
        value = self._values.get(name)
        if not any(value is one or (value == one and type(value) is type(one)) for one in unless):
            raise RefusedError(
                f"`{name}` is not supported by the simulator: its tokens are counted, and have no "
                "probabilities and no meaning. Leave it out.",
                param=name,
            )
