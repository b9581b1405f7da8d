"""Read the Common Expression Language, as far as validation rules use it, into a small tree.

There is no maintained CEL library in the dependencies; rules are short, and what is not understood is refused here with
`UnsupportedRule` rather than guessed at.
"""

import re
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:"
    r"(?P<number>\d+\.\d+|\d+u?)"
    r"|(?P<raw>r(?:'[^']*'|\"[^\"]*\"))"
    r"|(?P<string>'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\")"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<operator>&&|\|\||==|!=|<=|>=|[-+*/%!<>?:.,()\[\]{}])"
    r")"
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_RELATIONS = ("==", "!=", "<=", ">=", "<", ">", "in")


class UnsupportedRule(ValueError):
    """An expression, or a function in it, that is not understood here."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: Any


@dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """`operand.field`."""

    operand: "Node"
    field: str


@dataclass(frozen=True, slots=True)
class Index:
    """`operand[index]`."""

    operand: "Node"
    index: "Node"


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments)`, or `target.function(arguments)`; operators are calls of their own sign."""

    function: str
    arguments: tuple["Node", ...]
    target: "Node | None" = None


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[a, b]`."""

    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    """`{a: b}`."""

    items: tuple[tuple["Node", "Node"], ...]


Node = Literal | Name | Select | Index | Call | ListOf | MapOf


def parse(text: str) -> Node:
    """Read an expression.

    Raises:
        UnsupportedRule: it cannot be read.
    """
    parser = _Parser(text)
    node = parser.expression()
    parser.finish()
    return node


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise UnsupportedRule(f"cannot read {text[position:]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent, one method per level of precedence."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _accept(self, *wanted: str) -> str:
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if text in wanted and kind in ("operator", "name"):
                self._at += 1
                return text
        return ""

    def _expect(self, wanted: str) -> None:
        if not self._accept(wanted):
            raise UnsupportedRule(f"expected {wanted!r}, found {self._peek()!r}")

    def finish(self) -> None:
        """Nothing may be left over."""
        if self._at != len(self._tokens):
            raise UnsupportedRule(f"did not expect {self._peek()!r}")

    def expression(self) -> Node:
        """A conditional, or what binds tighter."""
        node = self._binary(("||",), lambda: self._binary(("&&",), self._relation))
        if not self._accept("?"):
            return node
        then = self.expression()
        self._expect(":")
        return Call("?:", (node, then, self.expression()))

    def _binary(self, operators: tuple[str, ...], tighter: Any) -> Node:
        node: Node = tighter()
        while operator := self._accept(*operators):
            node = Call(operator, (node, tighter()))
        return node

    def _relation(self) -> Node:
        return self._binary(_RELATIONS, self._sum)

    def _sum(self) -> Node:
        return self._binary(("+", "-"), lambda: self._binary(("*", "/", "%"), self._unary))

    def _unary(self) -> Node:
        operator = self._accept("!", "-")
        return Call(operator + "x", (self._unary(),)) if operator else self._member()

    def _member(self) -> Node:
        node = self._primary()
        while True:
            if self._accept("."):
                if self._accept("?"):
                    raise UnsupportedRule("optional field selection")
                kind, name = self._next()
                if kind != "name":
                    raise UnsupportedRule(f"expected a field, found {name!r}")
                node = Call(name, self._arguments(")"), node) if self._accept("(") else Select(node, _unescaped(name))
            elif self._accept("["):
                node = Index(node, self.expression())
                self._expect("]")
            else:
                return node

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise UnsupportedRule("ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _arguments(self, closing: str) -> tuple[Node, ...]:
        arguments: list[Node] = []
        while not self._accept(closing):
            if arguments:
                self._expect(",")
            arguments.append(self.expression())
        return tuple(arguments)

    def _primary(self) -> Node:
        kind, text = self._next()
        match kind, text:
            case "number", _:
                return Literal(float(text) if "." in text else int(text.rstrip("u")))
            case "raw", _:
                return Literal(text[2:-1])
            case "string", _:
                return Literal(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), text[1:-1]))
            case "operator", "(":
                node = self.expression()
                self._expect(")")
                return node
            case "operator", "[":
                return ListOf(self._arguments("]"))
            case "operator", "{":
                return self._map()
            case "name", ("true" | "false" | "null"):
                return Literal({"true": True, "false": False, "null": None}[text])
            case "name", _:
                return Call(text, self._arguments(")")) if self._accept("(") else Name(text)
        raise UnsupportedRule(f"did not expect {text!r}")

    def _map(self) -> Node:
        items: list[tuple[Node, Node]] = []
        while not self._accept("}"):
            if items:
                self._expect(",")
            key = self.expression()
            self._expect(":")
            items.append((key, self.expression()))
        return MapOf(tuple(items))


def _unescaped(name: str) -> str:
    """A field's name in the object: CEL writes `-` as `__dash__`, and keywords between underscores."""
    for escape, sign in (("__dash__", "-"), ("__dot__", "."), ("__slash__", "/"), ("__underscores__", "__")):
        name = name.replace(escape, sign)
    return name[2:-2] if name.startswith("__") and name.endswith("__") and len(name) > 4 else name
