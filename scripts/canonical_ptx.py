"""PTX with every name replaced by its first use, so that two texts are equal where only names and their order differ.

NVRTC emits functions in the order of their mangled names, and numbers labels by that order: renaming a function or a
type of its parameters changes the text without changing the program. It numbers virtual registers in the order in
which the front end met them: moving an expression into a function of its own can exchange two numbers. Names are
replaced consistently, never dropped: a call of another function, or the use of another register, stays a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LINE_INFO = re.compile(r"^\s*\.(?:file|loc)\b[^\n]*$", re.M)
_HEADER = re.compile(r"^\s*\.(?:version|target|address_size)\b[^\n]*$", re.M)
_TOKEN = re.compile(r'"[^"]*"|[.%]?[\w$]+(?:::[\w$]+)*|\S')
_NAME = re.compile(r"[A-Za-z_$][\w$]*")
_STATEMENT_ENDS = frozenset("{};:(,")


@dataclass(frozen=True, slots=True)
class Item:
    """One function or variable of a module, as tokens."""

    name: str
    tokens: list[str]

    @property
    def function(self) -> bool:
        """Whether it is code."""
        return any(kind in self.tokens[: self.tokens.index(self.name)] for kind in (".func", ".entry"))

    @property
    def entry(self) -> bool:
        """Whether it is a kernel."""
        return ".entry" in self.tokens[: self.tokens.index(self.name)]

    @property
    def declaration(self) -> bool:
        """Whether it is a function's prototype alone."""
        return self.function and "{" not in self.tokens


@dataclass(frozen=True, slots=True)
class Canonical:
    """A module without names: the kernel, and what it reaches.

    Attributes
    ----------
    text : str
        Functions and variables in the order in which the kernel first names them, directly or not.
    launch : str
        Launch bounds of the kernel, such as ".maxntid 512 , 1 , 1 .minnctapersm 2".
    data : tuple of str
        Variables among them, sorted, with their initial values.
    """

    text: str
    launch: str
    data: tuple[str, ...]


def canonical(ptx: str) -> Canonical:
    """Rename the symbols and registers of a module with one kernel, and leave out what that one does not reach.

    Raises
    ------
    ValueError
        If the module has no kernel, or several.
    """
    ptx = _LINE_INFO.sub("", _COMMENT.sub("", ptx.replace("\0", "")))
    header = [" ".join(line.split()) for line in _HEADER.findall(ptx)]
    found = [item for item in _items(_HEADER.sub("", ptx)) if not item.declaration]
    entries = [item for item in found if item.entry]
    if len(entries) != 1:
        raise ValueError(f"PTX with {len(entries)} kernels, where one is expected: {[item.name for item in entries]}")
    by_name = {item.name: item for item in found}
    symbols, parts, data = {entries[0].name: "@0"}, [], []
    for name in (order := [entries[0].name]):
        item = by_name[name]
        local = {name: f"l{n}" for n, name in enumerate(_local_names(item))} | _registers(item)
        tokens = []
        for token in item.tokens:
            if token in by_name and token not in local and token not in symbols:
                symbols[token] = f"@{len(symbols)}"
                order.append(token)
            tokens.append(local.get(token) or symbols.get(token, token))
        parts.append(" ".join(tokens))
        if not item.function:
            data.append(" ".join("@" if token == symbols[name] else token for token in tokens))
    body = entries[0].tokens
    launch = body[body.index(")") + 1 : body.index("{")]
    return Canonical("\n".join([*header, *parts]), " ".join(launch), tuple(sorted(data)))


def _items(text: str) -> Iterator[Item]:
    """Split a module: a function ends with its body, everything else with a semicolon."""
    tokens: list[str] = []
    name, depth, braces, code = "", 0, 0, False
    for token in _TOKEN.findall(text):
        tokens.append(token)
        depth += (token == "(") - (token == ")")
        braces += (token == "{") - (token == "}")
        code = code or token in (".func", ".entry")
        if not name and not depth and _NAME.fullmatch(token):
            name = token
        if not braces and (token == ";" or (token == "}" and code)):
            if name:
                yield Item(name, tokens)
            tokens, name, code = [], "", False


def _registers(item: Item) -> dict[str, str]:
    """Virtual registers of a function, and their numbers of the same kind by first use: %r7 is %r1 if read first."""
    kinds = {token for token, after in pairwise(item.tokens) if token.startswith("%") and after == "<"}
    numbered: dict[str, str] = {}
    count = dict.fromkeys(kinds, 0)
    for token in item.tokens:
        kind = token.rstrip("0123456789")
        if token != kind and kind in kinds and token not in numbered:
            count[kind] += 1
            numbered[token] = f"{kind}{count[kind]}"
    return numbered


def _local_names(item: Item) -> list[str]:
    """Names that a function declares for itself, by first appearance: parameters, labels, registers of inline PTX."""
    if not item.function:
        return []
    declared: set[str] = set()
    declares = ends = ""
    for before, token, after in zip(["{", *item.tokens], item.tokens, [*item.tokens[1:], ""], strict=False):
        if before in _STATEMENT_ENDS and token in (".reg", ".param", ".local", ".shared"):
            declares, ends = token, ";" if token == ".reg" else ";,)["
        elif declares and token in ends:
            declares = ""
        elif _NAME.fullmatch(token) and (declares or (after == ":" and before in _STATEMENT_ENDS)):
            declared.add(token)
    return [token for token in dict.fromkeys(item.tokens) if token in declared]
