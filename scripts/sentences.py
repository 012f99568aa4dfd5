"""Count what people read, or show its long sentences: ``python scripts/sentences.py [--long] [PATH ...]``.

Prints words and lengths of sentences for documents, docstrings, and comments of Python and of CUDA. An item of a list,
a cell of a table and a description of a parameter end a sentence. Inline code is one word. Blocks of code are left out.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATHS = (*sorted(path.name for path in ROOT.glob("*.md")), "docs", "examples", "lab/README.md", "lab/src", "src")
LONG = 25
BLOCKS = re.compile(
    r"^ *```.*?^ *```$|<!--.*?-->|^ *>>> .*?(?=^ *$|\Z)|(?<=::\n)(?:\n|    .*\n)+", re.MULTILINE | re.DOTALL
)
INDENTED = re.compile(r"(?<=\n\n) {4}.*\n(?: {4}.*\n|\n)*")
ITEM = re.compile(r"^(?:[-*]|\d+\.|#+) +")
TOOLS = re.compile(r"noqa|type: ignore|fmt: |ruff: |pragma: |!|-+$")
END = re.compile(r"(?<!e\.g\.)(?<!i\.e\.)(?<!\bal\.)(?<=[.!?])[\"')*]*\s+")


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, items, cells and descriptions of a text without blocks of code."""
    found: list[str] = []
    first = 0
    for line in [*text.splitlines(), ""]:
        words, indent = line.strip().lstrip("> "), len(line) - len(line.lstrip())
        item = ITEM.match(words)
        if item and words[0].isdigit() and found and not found[0][0].isdigit():
            item = None  # the line goes on with the end of a sentence, as "16."
        if found and (
            not re.search(r"\w", words) or item or words[0] == "|" or (indent != first and not ITEM.match(found[0]))
        ):
            yield " ".join(found)
            found = []
        if words.startswith("|"):
            yield from words.split("|")
        elif re.search(r"\w", words):
            first = first if found else indent
            found.append(words)


def sentences(text: str) -> Iterator[str]:
    """Sentences of a text."""
    for paragraph in paragraphs(BLOCKS.sub("", text)):
        plain = re.sub(r"(`+).+?\1", lambda code: re.sub(r"\s", "_", code[0]), ITEM.sub("", paragraph))
        yield from (one for one in END.split(re.sub(r"\]\([^)]*\)", "]", plain)) if re.search(r"\w", one))


def joined(comments: list[tuple[int, int, str]]) -> Iterator[tuple[int, str]]:
    """Comments of adjacent lines and one column as one, with its line."""
    last, start, text = (0, 0), 0, ""
    for line, column, words in [*comments, (0, 0, "")]:
        if (line - 1, column) != last:
            if text:
                yield start, text
            start, text = line, ""
        last, text = (line, column), f"{text}{words}\n"


def texts(path: Path) -> Iterator[tuple[str, int, str]]:
    """Kind, line and text of everything in a file that people read."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield "documents", 1, INDENTED.sub("", text)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Expr(ast.Constant(str(words))):
                    yield "docstrings", node.lineno, inspect.cleandoc(words)
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = [(*token.start, token.string.strip("# ")) for token in tokens if token.type == tokenize.COMMENT]
        yield from (("comments", *comment) for comment in joined([one for one in found if not TOOLS.match(one[2])]))
    else:
        lines = [(n, re.search(r"(?<!:)//+ ?(.*)", line)) for n, line in enumerate(text.splitlines(), 1)]
        yield from (("kernels", *one) for one in joined([(n, found.start(), found[1]) for n, found in lines if found]))


def main(words: list[str]) -> None:
    """Print a table, and the sentences that are too long if asked."""
    counts: dict[str, list[int]] = {}
    for name in [word for word in words if word != "--long"] or PATHS:
        root = ROOT / name
        for path in sorted(path for path in ([root] if root.is_file() else root.rglob("*"))):
            if path.suffix not in {".md", ".py", ".cu", ".cuh"} or "generated" in path.parts:
                continue
            for kind, line, text in texts(path):
                for sentence in sentences(text):
                    counts.setdefault(kind, []).append(len(re.findall(r"\S*\w\S*", sentence)))
                    if "--long" in words and counts[kind][-1] > LONG:
                        print(f"{path.relative_to(ROOT)}:{line}: {counts[kind][-1]}: {sentence}")
    print(f"{'':12}{'words':>9}{'sentences':>11}{'mean':>6}{'over 25':>9}{'over 40':>9}")
    for kind, sizes in counts.items():
        over = [sum(size > limit for size in sizes) for limit in (LONG, 40)]
        print(f"{kind:12}{sum(sizes):9,}{len(sizes):11,}{sum(sizes) / len(sizes):6.1f}{over[0]:9,}{over[1]:9,}")


if __name__ == "__main__":
    main(sys.argv[1:])
