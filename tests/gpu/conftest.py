"""The GPU suite's setup: kernels compiled side by side before the first test, and a summary written after the last.

They are those of each test's ``cases`` (`gpu.served.judged`), and of the plans that a module yields as ``kernels`` or
the calls that it yields as ``calls_ahead``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpu import HOST

HERE = Path(__file__).parent
NO_TORCH = importlib.util.find_spec("torch") is None
collect_ignore_glob = ["test_*.py"] if NO_TORCH else []
PART = os.environ.get("KSIEVE_SUITE_PART")
"""Name of the part of the suite that this process runs, if others run the rest."""
RESULTS = f"gpu-suite-{PART}.json" if PART else "gpu-suite.json"
COMPILED = os.environ.get("KSIEVE_SUITE_COMPILED") == "1"
"""Whether the kernels of all parts have been compiled: parts side by side would look for them once more."""

# Another framework of the same process must not take all memory for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_report_header() -> str | None:
    return "tests/gpu: not collected, PyTorch is not installed" if NO_TORCH else None


class Tally:
    """What the suite has verified, for the summary file."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.cases: dict[str, int] = {}
        self.stats_rows: dict[str, int] = {}
        self.violations: list[str] = []
        self.facts: dict[str, object] = {}
        self.outcomes: dict[str, int] = {}
        self.start = self.written = time.perf_counter()

    def add(self, variant: str, rows: int, wrong: list[str], *, stats_rows: int = 0) -> None:
        """Count verified rows of one case."""
        self.rows[variant] = self.rows.get(variant, 0) + rows
        self.cases[variant] = self.cases.get(variant, 0) + 1
        self.stats_rows[variant] = self.stats_rows.get(variant, 0) + stats_rows
        self.violations += [f"{variant}: {text}" for text in wrong]

    def judge(self, variant: str, rows: int, wrong: list[str], *, stats_rows: int = 0) -> None:
        """Count verified rows of one case, and fail if anything is wrong with them."""
        self.add(variant, rows, wrong, stats_rows=stats_rows)
        assert not wrong, "\n".join(wrong)


_tally = Tally()


@pytest.fixture(scope="session")
def tally() -> Tally:
    return _tally


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.pluginmanager.register(Outcomes())
    # conftest.py skips them without a device; only the emulator may go on.
    if HOST:
        for item in items:
            if HERE in item.path.parents:
                item.own_markers = [mark for mark in item.own_markers if mark.name != "skip"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Compile what the collected tests need, on all cores; the part "compile" runs none of them."""
    items = [item for item in session.items if item.get_closest_marker("gpu") and not item.get_closest_marker("skip")]
    items = [item for item in items if HERE in item.path.parents]
    if HOST or COMPILED or not items or session.config.option.collectonly:
        return None
    from gpu import variants

    begin = time.perf_counter()
    _tally.facts["kernels_compiled"] = count = variants.precompile(*needed(items))
    _tally.facts["compile_seconds"] = seconds = round(time.perf_counter() - begin, 2)
    session.config.get_terminal_writer().line(f"{count} kernels compiled in {seconds} s")
    return True if PART == "compile" else None


def needed(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """Pairs of a plan and whether it is run with statistics, and calls that load the kernels which they need."""
    from gpu import served

    modules = {item.module for item in items}
    plans, calls = ([each for m in modules for each in getattr(m, name, list)()] for name in ("kernels", "calls_ahead"))
    for item in items:
        cases, given = getattr(item.function, "cases", None), item.callspec.params if hasattr(item, "callspec") else {}
        if cases and given.keys() >= inspect.signature(cases).parameters.keys():
            with contextlib.suppress(Exception, pytest.skip.Exception):  # which its own test reports
                plans += served.kernels(cases(**given))
    return plans, calls


EVERY = 20.0
"""Seconds after which the summary is written again while the suite runs: it may be cut off."""


class Outcomes:
    """Counts every test of the session: as a hook of this file, it would see only those below its folder."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            _tally.outcomes[report.outcome] = _tally.outcomes.get(report.outcome, 0) + 1
        if time.perf_counter() - _tally.written > EVERY:
            write_summary(finished=False)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (target := write_summary(finished=True)) is None:
        return
    verified, compared = sum(_tally.rows.values()), sum(_tally.stats_rows.values())
    session.config.get_terminal_writer().line(
        f"\n{verified:,} rows verified in {sum(_tally.cases.values()):,} cases, {len(_tally.violations)} "
        f"violations; counts of {compared:,} rows compared: {target}"
    )


def write_summary(*, finished: bool) -> Path | None:
    """Write what has been verified so far; None if nothing has, or nobody asked for what is no result of a GPU."""
    folder = os.environ.get("KSIEVE_RESULTS_DIR")
    if PART == "compile" or (folder is None and (HOST or not finished or not _tally.cases)):
        return None
    from ksieve.backends.cuda.runtime import launch
    from ksieve_lab.bench import record

    _tally.written = time.perf_counter()
    late, waited = launch.stalls()
    # Those that no module names: each test that meets one waits for it.
    _tally.facts |= {"kernels_compiled_in_tests": late, "seconds_for_kernels_in_tests": round(waited, 1)}
    results = {
        "finished": finished,
        "rows_verified": sum(_tally.rows.values()),
        "cases": sum(_tally.cases.values()),
        "rows_with_statistics_equal_to_the_model": sum(_tally.stats_rows.values()),
        "violations": len(_tally.violations),
        "first_violations": _tally.violations[:20],
        "rows_by_variant": _tally.rows,
        "tests": _tally.outcomes,
        "seconds": round(_tally.written - _tally.start, 1),
        **_tally.facts,
    }
    target = (Path(folder or record.RESULTS) / RESULTS).absolute()
    record.write_json(target, record.payload("gpu-suite", {"emulated": HOST, "part": PART}, results, gpu=True))
    return target
