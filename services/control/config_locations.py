"""Where the fields of a config.pbtxt stand in its text.

The protobuf parser forgets positions once a text is accepted, and an error in an
unaccepted text has a position but no field. A small scanner of the text format
answers both: field to position, and position to field.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.model_config_fields import FieldPath

_TOKEN: Final = re.compile(
    r"""
    \s+ | \#[^\n]*
    | (?P<string> "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'? )
    | (?P<mark> [{}<>\[\]:,;] )
    | (?P<word> [^\s{}<>\[\]:,;\#"']+ )
    """,
    re.VERBOSE,
)
_CLOSING: Final = {"{": "}", "<": ">"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a text; both numbers begin at 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One written value.

    Attributes:
        position: Of its field's name, or of the value itself inside a list.
        text: What is written, without quotes; "" for a message.
        fields: Of a message, by name, in the order of writing.
    """

    position: Position
    text: str = ""
    fields: Mapping[str, tuple["Node", ...]]

    def find(self, path: FieldPath) -> Position | None:
        """Return where the field is written.

        Args:
            path: Seen from this node. Where it leads to something that is not
                written, the innermost written field around it counts.

        Returns:
            None if not even the outermost field is written.
        """
        node, found, i = self, None, 0
        while i < len(path):
            nodes = node.fields.get(str(path[i]))
            if not nodes:
                break
            node, i = nodes[0], i + 1
            if i < len(path):
                node, taken = _entry(nodes, path[i])
                i += taken
            found = node.position
            # Only the entries of maps have a field of this name.
            node = node.fields.get("value", (node,))[0]
        return found


def _entry(nodes: tuple[Node, ...], part: str | int) -> tuple[Node, int]:
    # A number counts entries, a string may be the key of a map's entry;
    # otherwise it names a field of the only entry.
    if isinstance(part, int):
        return (nodes[part], 1) if part < len(nodes) else (nodes[0], 1)
    for node in nodes:
        if any(key.text == part for key in node.fields.get("key", ())):
            return node, 1
    return nodes[0], 0


def scan(text: str) -> Node:
    """Return the fields of a text that the protobuf parser accepted."""
    return _Scanner(text).root()


def path_at(text: str, position: Position) -> FieldPath:
    """Return the field that is being written at ``position``.

    Args:
        text: A text that the protobuf parser did not accept.
        position: The first thing that it did not accept.

    Returns:
        The path with a number after each name; () outside of all fields.
    """
    lines = text.split("\n")[: position.line]
    if len(lines) == position.line:
        lines[-1] = lines[-1][: position.column - 1]
    scanner = _Scanner("\n".join(lines))
    scanner.root()
    return scanner.open_path


class _Scanner:
    """Reads a text once; never refuses it."""

    def __init__(self, text: str) -> None:
        self.open_path: FieldPath = ()
        self._path: list[str | int] = []
        self._line_starts = [0] + [m.end() for m in re.finditer(r"\n", text)]
        self._tokens = [m for m in _TOKEN.finditer(text) if m.lastgroup]
        self._next = 0
        self._at_end = False

    def root(self) -> Node:
        return Node(position=Position(line=1, column=1), fields=self._fields(""))

    def _peek(self) -> str:
        if self._next < len(self._tokens):
            return self._tokens[self._next].group()
        if not self._at_end:
            self._at_end, self.open_path = True, tuple(self._path)
        return ""

    def _kind(self) -> str | None:
        # Unlike _peek: the end of the text says nothing about the open field.
        at_end = self._next >= len(self._tokens)
        return None if at_end else self._tokens[self._next].lastgroup

    def _take(self) -> re.Match[str]:
        self._next += 1
        return self._tokens[self._next - 1]

    def _position(self, offset: int) -> Position:
        line = bisect_right(self._line_starts, offset)
        return Position(line=line, column=offset - self._line_starts[line - 1] + 1)

    def _fields(self, closing: str) -> dict[str, tuple[Node, ...]]:
        fields: dict[str, list[Node]] = {}
        while token := self._peek():
            match = self._take()
            if token == closing:
                break
            if match.lastgroup == "word":
                nodes = fields.setdefault(token, [])
                self._path += [token, len(nodes)]
                self._values(nodes, self._position(match.start()))
                del self._path[-2:]
        return {name: tuple(nodes) for name, nodes in fields.items()}

    def _values(self, nodes: list[Node], position: Position) -> None:
        if self._peek() == ":":
            self._take()
        if self._peek() != "[":
            nodes.append(self._value(position))
            return
        self._take()
        while (token := self._peek()) not in ("", "]"):
            if token in _CLOSING or self._kind() != "mark":
                start = self._tokens[self._next].start()
                nodes.append(self._value(self._position(start)))
                self._path[-1] = len(nodes)
            else:
                self._take()
        if token:
            self._take()

    def _value(self, position: Position) -> Node:
        token = self._peek()
        if token in _CLOSING:
            self._take()
            fields = self._fields(_CLOSING[token])
            return Node(position=position, fields=fields)
        text = ""
        if self._kind() == "word":
            text = self._take().group()
        while self._kind() == "string":
            text += self._take().group()[1:-1]
        return Node(position=position, text=text, fields={})
