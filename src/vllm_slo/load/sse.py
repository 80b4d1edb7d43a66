"""Server-sent events from arbitrary reads: bytes in, data payloads out.

After the WHATWG specification, https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""


class SseDecoder:
    """Splits a byte stream, however it was cut into reads, into server-sent events.

    Works on bytes, so that a read may end inside a character. Comments and the fields `id` and
    `retry` are dropped; lines end in LF, CR or CRLF; a byte order mark at the start is skipped.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._type = b""
        self._is_first_line = True
        self._skip_lf = False

    def feed(self, read: bytes) -> list[tuple[bytes, bytes]]:
        """The events that `read` completes, in order, as (event type, data) pairs.

        The type is empty where the server named none. An event is complete at its blank line.
        """
        if self._skip_lf and read:
            # The CR that ended the last read was the first half of a CRLF.
            read = read.removeprefix(b"\n")
            self._skip_lf = False
        if read:
            self._skip_lf = read.endswith(b"\r")
        complete: list[tuple[bytes, bytes]] = []
        for piece in read.splitlines(keepends=True):
            self._line += piece
            if not piece.endswith((b"\n", b"\r")):
                break
            line = bytes(self._line).rstrip(b"\r\n")
            self._line.clear()
            if self._is_first_line:
                line = line.removeprefix(b"\xef\xbb\xbf")
                self._is_first_line = False
            if line:
                self._field(line)
            else:
                complete += self._dispatch()
        return complete

    def rest(self) -> list[tuple[bytes, bytes]]:
        """What a stream that ended without a last blank line leaves: at most one event."""
        if self._line:
            self._field(bytes(self._line))
            self._line.clear()
        return self._dispatch()

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._type = value.removeprefix(b" ")

    def _dispatch(self) -> list[tuple[bytes, bytes]]:
        events = [(self._type, b"\n".join(self._data))] if self._data else []
        self._data = []
        self._type = b""
        return events
