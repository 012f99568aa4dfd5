"""From PTX, as NVRTC makes it, to C for the machine of `machine.h`: one statement for each instruction.

Registers become local variables, labels stay labels, and `.param` space becomes arrays.
"""

from __future__ import annotations

import re

from emulator.instructions import instruction
from emulator.operands import C_TYPES, Function, UnknownInstructionError, bits_of, identifier


def declared(f: Function, text: str) -> str:
    """A `.reg`, `.param` or `.local` declaration as C."""
    if text.startswith(".reg"):
        _, kind, names = text.replace(",", " , ").split(None, 2)
        ctype = C_TYPES[kind[1:]]
        out = []
        for name in (n.strip() for n in names.split(",")):
            if many := re.fullmatch(r"(.+)<(\d+)>", name):
                f.types[many[1]] = ctype
                out += [f"{identifier(many[1])}{i}" for i in range(int(many[2]))]
            else:
                f.types[name] = ctype
                out.append(identifier(name))
        # A branch may pass by a declaration with a value, never by one without.
        return f"{ctype} {', '.join(out)};"
    size, name = size_and_name(text)
    f.symbols[name] = identifier(name)
    return f"uint8_t {identifier(name)}[{size}] __attribute__((aligned(16)));"


def size_and_name(text: str) -> tuple[int, str]:
    """Bytes and name of a `.param` or `.local` declaration."""
    kind = re.search(r"\.([bus]\d+|f32)\b", text)
    array = re.search(r"([\w$]+)\[(\d+)\]\s*$", text)
    assert kind
    if array:
        return bits_of(kind[1]) // 8 * int(array[2]), array[1]
    return bits_of(kind[1]) // 8, text.split()[-1]


def statements(body: str) -> list[tuple[int, str]]:
    """Statements, labels and braces of a function's body, with their lines."""
    found, current, begin = [], "", 0
    for number, line in enumerate(body.split("\n")):
        line = re.sub(r"//.*", "", line).strip()
        while line:
            if not current:
                if line[0] in "{}":
                    found.append((number, line[0]))
                    line = line[1:].strip()
                    continue
                if label := re.match(r"([$\w]+):(?!:)", line):
                    found.append((number, label[0]))
                    line = line[label.end() :].strip()
                    continue
                begin = number
            piece, semicolon, line = line.partition(";")
            current = f"{current} {piece}".strip()
            line = line.strip()
            if semicolon:
                found.append((begin, re.sub(r"\s+", " ", current)))
                current = ""
    return found


def labels_from(found: list[tuple[int, str]], begin: int) -> dict[str, tuple[str, int]]:
    """Labels of the scope that begins with a statement, but for those of scopes within: inline assembly names alike."""
    labels, depth = {}, 0
    for number, text in found[begin:]:
        depth += (text == "{") - (text == "}")
        if depth < 0:
            break
        if depth == 0 and text.endswith(":"):
            labels[text[:-1]] = (f"{identifier(text[:-1])}_{number}", number)
    return labels


def function(header: str, body: str, first_line: int, shared: dict[str, int]) -> tuple[str, str]:
    """Prototype and definition in C of a PTX function."""
    f = Function(shared)
    name, results, parameters = signature(header)
    if ".entry" in header:
        if len(parameters) != 1:
            raise UnknownInstructionError(f"a kernel with {len(parameters)} parameters")
        f.symbols.update(dict.fromkeys(parameters, "launch.params"))
        prototype = "static void kernel(Thread* t)"
    else:
        arguments = ["Thread* t", "uint8_t* result", *(f"uint8_t* {identifier(p)}" for p in parameters)]
        f.symbols.update(dict.fromkeys(results, "result") | {p: identifier(p) for p in parameters})
        prototype = f"static void {identifier(name)}({', '.join(arguments)})"
    found = [(first_line + number, text) for number, text in statements(body)]
    f.scopes.append(labels_from(found, 0))
    lines = [prototype + " {"]
    for position, (number, text) in enumerate(found):
        if text == "{":
            f.scopes.append(labels_from(found, position + 1))
            lines.append(text)
        elif text == "}":
            f.scopes.pop()
            lines.append(text)
        elif text.endswith(":"):
            lines.append(f.label(text[:-1])[0] + ":;")
        elif text.startswith((".reg", ".param", ".local")):
            lines.append(declared(f, text))
        elif not text.startswith("."):
            try:
                lines.append(instruction(f, text, number))
            except (KeyError, IndexError, AssertionError, StopIteration) as error:
                raise UnknownInstructionError(f"PTX line {number}: {text} ({error!r})") from error
    return prototype + ";", "\n".join([*lines, "}"])


def signature(header: str) -> tuple[str, list[str], list[str]]:
    """Name of a function, and the names of what it gives and takes."""
    found = re.search(r"\.(?:func|entry)\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)", header)
    assert found, header
    names = [[size_and_name(p.strip())[1] for p in part.split(",") if p.strip()] for part in (found[1] or "", found[3])]
    return found[2], names[0], names[1]


def shared_symbols(ptx: str) -> tuple[dict[str, int], int]:
    """Where names stand in shared memory, what a launch brings behind what the kernel declares; bytes of the latter."""
    places, size = {}, 0
    for align, declaration in re.findall(r"^\s*\.shared \.align (\d+) ([^;]+);", ptx, re.M):
        count, name = size_and_name(declaration)
        size = -(-size // int(align)) * int(align)
        places[name] = size
        size += count
    size = -(-size // 256) * 256
    dynamic = re.findall(r"^\.extern \.shared \.align \d+ \.b8 ([\w$]+)\[\];", ptx, re.M)
    return places | dict.fromkeys(dynamic, size), size


HEAD = """enum {{ kStaticShared = {} }};
typedef struct Thread Thread;
static void kernel(Thread* t);
#pragma GCC push_options
#pragma GCC optimize("O2")
#include "machine.h"
#pragma GCC pop_options
"""
"""Begin of every C source. The machine takes most of the time that a kernel runs, so it is optimised; optimising the
kernel takes longer than it saves. A function is optimised as it is first declared."""


def translate(ptx: str) -> str:
    """C source of a PTX module with one kernel, for `machine.h`.

    Raises
    ------
    UnknownInstructionError
        If the module has what no kernel has had so far.
    """
    prototypes, definitions, at = [], [], 0
    shared, static = shared_symbols(ptx)
    for begin in re.finditer(r"^(?:\.visible |\.weak )*\.(?:func|entry)\b", ptx, re.M):
        if begin.start() < at:
            continue
        opened = ptx.find("{", begin.start())
        declaration = ptx.find("\n;", begin.start())
        if declaration != -1 and declaration < opened:
            continue  # announced only
        depth, end = 0, opened
        for brace in re.finditer(r"[{}]", ptx[opened:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = opened + brace.end()
                break
        header = ptx[begin.start() : opened]
        first = ptx.count("\n", 0, opened) + 1
        prototype, definition = function(header, ptx[opened + 1 : end - 1], first, shared)
        prototypes.append(prototype)
        definitions.append(definition)
        at = end
    return HEAD.format(static) + "\n".join(prototypes) + "\n\n" + "\n\n".join(definitions) + "\n"
