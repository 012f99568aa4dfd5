"""The pytest plugin under which one test file of a framework runs: stand-ins, tests left out, results as JSON.

The environment names the framework (``KSIEVE_FRAMEWORK``), the folder of its files, the device, the file's path in the
framework's tree and where results go.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from frameworks import catalog, devices, stand_ins

NAME = os.environ["KSIEVE_FRAMEWORK"]
FOLDER = Path(os.environ["KSIEVE_FRAMEWORK_FOLDER"])
DEVICE = os.environ["KSIEVE_FRAMEWORK_DEVICE"]
FILE = os.environ["KSIEVE_FRAMEWORK_FILE"]
OUT = Path(os.environ["KSIEVE_FRAMEWORK_OUT"])

if DEVICE == "cpu" and catalog.FRAMEWORKS[NAME].get("names_cuda", True):
    devices.use_cpu()
ENGINE = importlib.import_module(f"frameworks.engines.{NAME}")
ENGINE.install(FOLDER, DEVICE)
if hasattr(ENGINE, "workspace_init"):
    workspace_init = ENGINE.workspace_init

MOST_RESERVED = 8 << 30
"""Bytes of device memory that this process may keep between two tests."""

OUTCOMES: dict[str, tuple[str, str]] = {}
NOT_RUN: dict[str, str] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that the catalog says are not run."""
    rules = [(re.compile(rule["tests"]), rule["why"]) for rule in catalog.rules(NAME, FILE)]
    kept, left = [], []
    for item in items:
        why = next((why for pattern, why in rules if pattern.search(_name(item.nodeid))), None)
        if why is None:
            kept.append(item)
        else:
            NOT_RUN[_name(item.nodeid)] = why
            left.append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the outcome of a test: its worst phase, and what that said."""
    name = _name(report.nodeid)
    if report.failed:
        text = report.longreprtext.strip().splitlines()
        said = [line for line in text if line.startswith("E ")]
        OUTCOMES[name] = ("failed", (said or text or [""])[0][:400])
    elif report.skipped and name not in OUTCOMES:
        reason: Any = report.longrepr
        OUTCOMES[name] = ("skipped", str(reason[2] if isinstance(reason, tuple) else reason).removeprefix("Skipped: "))
    elif report.when == "call":
        OUTCOMES.setdefault(name, ("passed", ""))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Undo what some tests leave behind: a default device, a stream, and memory that other processes need."""
    torch.set_default_device(None)
    if DEVICE == "cuda":
        torch.cuda.set_stream(torch.cuda.default_stream())
        if torch.cuda.memory_reserved() > MOST_RESERVED:
            gc.collect()
            torch.cuda.empty_cache()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what became of every test."""
    counts = Counter(outcome for outcome, _ in OUTCOMES.values())
    result = {
        **{outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")},
        "not_applicable": len(NOT_RUN),
        "calls": dict(sorted(stand_ins.CALLS.items())),
        "failures": {name: said for name, (outcome, said) in OUTCOMES.items() if outcome == "failed"},
        "skips": {name: said for name, (outcome, said) in OUTCOMES.items() if outcome == "skipped"},
        "not_run": NOT_RUN,
    }
    OUT.write_text(json.dumps(result, indent=1) + "\n")
