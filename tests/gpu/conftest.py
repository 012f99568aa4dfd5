"""The GPU suite's setup: kernels compiled side by side before the first test, and a summary written after the last."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import pytest

from gpu import HOST

HERE = Path(__file__).parent
NO_TORCH = importlib.util.find_spec("torch") is None
collect_ignore_glob = ["test_*.py"] if NO_TORCH else []
PART = os.environ.get("KSIEVE_SUITE_PART")
"""Name of the part of the suite that this process runs, if others run the rest."""
RESULTS = f"gpu-suite-{PART}.json" if PART else "gpu-suite.json"

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


@pytest.fixture(scope="session", autouse=True)
def compiled(request: pytest.FixtureRequest) -> None:
    """Compile what the collected modules need, on all cores: plans of `kernels`, and calls of `calls_ahead`."""
    if HOST:
        return
    from gpu import compile_all, variants

    collected = [item for item in request.session.items if item.get_closest_marker("skip") is None]
    modules = {item.module for item in collected if HERE in item.path.parents}
    if not modules or compile_all.done():
        return
    begin = time.perf_counter()
    count = variants.precompile(*compile_all.needed(modules))
    _tally.facts["kernels_compiled"] = count
    _tally.facts["compile_seconds"] = round(time.perf_counter() - begin, 2)


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
    if folder is None and (HOST or not finished or not _tally.cases):
        return None
    from ksieve.backends.cuda.jit import stalls
    from ksieve_lab.bench import record

    _tally.written = time.perf_counter()
    late, waited = stalls.read()
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
