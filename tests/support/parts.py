"""Which tests `make test` and `make test-all` run, and what a run says at its end that it left out.

The rule is in docs/internals/testing.md.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FIRST, REST = "first", "rest"

NEEDS_EXTRA = re.compile(
    r'^(?:\w+ = )?pytest\.importorskip\("(?!hypothesis)|^pytestmark = .*\bmark\.extended\b', re.MULTILINE
)
"""Of a file that is no part of `make test`: it skips itself without an extra, or its mark says so."""

RUNS_PROGRAM = re.compile(r'cli\.app\b|-m(?:", ")? ?ksieve|find_spec')
EXTRA = re.compile(r"torch|jax|cupy|triton|test_cuda|cuda\.(core|bindings)|nvrtc|matplotlib|importorskip|which\(")

LEFT = pytest.StashKey[Counter[tuple[str, str]]]()
"""Numbers of the tests and files that a run leaves out, by why it does."""

EXTENDED = "make test-all: {} that need an extra, take long or prove a rare path"
ON_GPU = "make test-gpu: {} that need a CUDA device"
PROVED = "make test: {} that no extra changes"


def but_for(kept: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of which those `kept` are part of `make test`, and all of `make test-all`."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.extended) for value in values]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", choices=(FIRST, REST), help="of the CPU suite: `make test`, or what `make test-all` adds"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT] = Counter()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Importing files to leave out all their tests took a third of the collection."""
    if config.getoption("part") != FIRST or not re.fullmatch(r"test_\w+\.py", collection_path.name):
        return None
    if not NEEDS_EXTRA.search(_text(collection_path)):
        return None
    config.stash[LEFT]["files", EXTENDED] += 1
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("part")
    if part is None:
        return
    left = {item: why for item in items if (why := _why_left(item, part))}
    config.stash[LEFT].update(("tests", why) for why in left.values())
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=list(left))


def _why_left(item: pytest.Item, part: str) -> str | None:
    if item.get_closest_marker("gpu"):
        return ON_GPU
    extended = item.get_closest_marker("extended") is not None
    if part == FIRST:
        return EXTENDED if extended else None
    return None if extended or _an_extra_matters(item) else PROVED


def _an_extra_matters(item: pytest.Item) -> bool:
    """Whether a test names an extra, is of a file that needs one, or runs the program, which looks for them."""
    own = _source(item.function) if isinstance(item, pytest.Function) else _text(item.path)
    return _its_file_tells(item.path) or bool(EXTRA.search(item.nodeid + own))


# Once for all parameters of a test: finding a source takes longer than the test's import.
_source = cache(inspect.getsource)


@cache
def _its_file_tells(path: Path) -> bool:
    return bool(NEEDS_EXTRA.search(text := _text(path)) or RUNS_PROGRAM.search(text))


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# ---- what was left out -----------------------------------------------------------------------------------


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = list(session.config.stash[LEFT].items())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker of pytest-xdist has collected all tests; the process that started them none."""
    left = Counter(dict(getattr(node, "workeroutput", {}).get("left", [])))  # a worker that crashed has none
    node.config.stash[LEFT] |= left


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash[LEFT]
    lines = []
    for why in sorted({why for _, why in left}):
        counts = [f"{left[kind, why]:,} {kind}" for kind in ("tests", "files") if left[kind, why]]
        lines.append(why.format(" and ".join(counts)))
    skipped = Counter(_reason(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(skipped.items()):
        elsewhere = config.getoption("part") == FIRST and re.search(r"not installed|compiler|g\+\+", reason)
        lines.append(f"{'make test-all' if elsewhere else 'not here'}: {count:,} skipped, {reason}")
    if lines:
        terminalreporter.section("not run")
    for line in lines:
        terminalreporter.line(line)


def _reason(told: Any) -> str:
    reason = told[2] if isinstance(told, tuple) else str(told)
    return re.sub(r"could not import '([\w.]+)'.*", r"\1 is not installed", reason.removeprefix("Skipped: "))
