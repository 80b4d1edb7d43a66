"""A TCP port on 127.0.0.1 for a server that binds it later, and who listens there."""

import socket
from pathlib import Path

HOST = "127.0.0.1"
_LISTEN = "0A"  # TCP_LISTEN in the kernel's tcp_states.h


class ReservedPort:
    """Holds a free port bound but not listening, until the server has it.

    The kernel gives a port that is bound to nobody else who asks for any free one. A server that
    sets SO_REUSEADDR or SO_REUSEPORT, as vLLM does, binds the same port and listens on it; only
    what listens gets connections.

    Raises:
        OSError: `port` is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((HOST, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()


def is_free(port: int) -> bool:
    """Whether a server could bind the port now, as one that shares it with nobody."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of a server that has ended linger in TIME_WAIT: they are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def listens_only(port: int, pids: set[int]) -> bool:
    """Whether every socket that listens on 127.0.0.1:port belongs to one of these processes.

    False where none listens.
    """
    inodes = _listening_inodes(port)
    return bool(inodes) and inodes <= _socket_inodes(pids)


def _listening_inodes(port: int) -> set[str]:
    address = f"0100007F:{port:04X}"  # little-endian hexadecimal of 127.0.0.1
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[1] == address and row[3] == _LISTEN}


def _socket_inodes(pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        try:
            links = [handle.readlink() for handle in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        found |= {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}
    return found
