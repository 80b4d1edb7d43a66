"""The line of every key of a TOML text, which neither tomllib nor tomlkit tells."""

import tomllib
from typing import Any

KeyPath = tuple[str | int, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, where each key of a valid TOML text is written.

    A path holds key names, and indexes for elements of arrays: `("row", 0, "limits")`. A table
    that is implied and has no header of its own stands at the line that first implies it.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    """Walks the text once. tomllib has accepted it before, so nothing is checked again."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}
        self._last_of_array: dict[KeyPath, int] = {}

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip_blank():
            if self._text.startswith("[[", self._at):
                table = self._header(2)
            elif self._text[self._at] == "[":
                table = self._header(1)
            else:
                self._pair(table)
        return self._lines

    def _header(self, brackets: int) -> KeyPath:
        self._at += brackets
        *parents, last = self._key("]")
        self._at += brackets
        path: KeyPath = ()
        for name in parents:
            path = self._into(self._note((*path, name)))
        path = self._note((*path, last))
        if brackets == 1:
            return path
        self._last_of_array[path] = self._last_of_array.get(path, -1) + 1
        return self._note(self._into(path))

    def _into(self, path: KeyPath) -> KeyPath:
        """A header names the last element of an array of tables by the array's name."""
        last = self._last_of_array.get(path)
        return path if last is None else (*path, last)

    def _pair(self, table: KeyPath) -> None:
        path = table
        for name in self._key("="):
            path = self._note((*path, name))
        self._at += 1
        self._value(path)

    def _key(self, end: str) -> tuple[str, ...]:
        """The dotted key up to `end`; a quoted part may hold any character."""
        start = self._at
        while self._text[self._at] != end:
            if self._text[self._at] in "\"'":
                self._string()
            else:
                self._at += 1
        nested: Any = tomllib.loads(self._text[start : self._at].strip() + " = 0")
        names = []
        while isinstance(nested, dict):
            ((name, nested),) = nested.items()
            names.append(name)
        return tuple(names)

    def _value(self, path: KeyPath) -> None:
        self._skip_blank()
        first = self._text[self._at]
        if first == "{":
            self._members(path, "}")
        elif first == "[":
            self._members(path, "]")
        elif first in "\"'":
            self._string()
        else:
            while self._at < len(self._text) and self._text[self._at] not in ",]}#\n":
                self._at += 1

    def _members(self, path: KeyPath, end: str) -> None:
        """The members of an inline table or an array, without its brackets."""
        self._at += 1
        index = 0
        while self._skip_blank() and self._text[self._at] != end:
            if end == "}":
                self._pair(path)
            else:
                self._value(self._note((*path, index)))
                index += 1
            self._skip_blank()
            if self._text[self._at] == ",":
                self._at += 1
        self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        triple = quote * 3
        end = triple if self._text.startswith(triple, self._at) else quote
        self._at += len(end)
        while not self._text.startswith(end, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(end)
        # Up to two more quotes may stand before the closing three: they belong to the string.
        while len(end) == 3 and self._text.startswith(quote, self._at):
            self._at += 1

    def _skip_blank(self) -> bool:
        """Past white space and comments; false at the end of the text."""
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                newline = self._text.find("\n", self._at)
                self._at = len(self._text) if newline < 0 else newline
            elif self._text[self._at] in " \t\n":
                self._at += 1
            else:
                return True
        return False

    def _note(self, path: KeyPath) -> KeyPath:
        # `_at` only grows: newlines are counted once.
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self._lines.setdefault(path, self._line)
        return path
