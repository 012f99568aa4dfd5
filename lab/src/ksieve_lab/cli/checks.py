"""Checks of options that several commands share: they come before any output, extra or measurement.

Each is for `ksieve.cli.options.checked`, and imports what it asks when an option is read.
"""

from __future__ import annotations

from pathlib import Path

from ksieve.core.errors import ArgumentError
from ksieve.core.paths import unreadable
from ksieve.core.policy import resolve_policy


def listed(text: str) -> list[str]:
    """Split a list separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def lengths(kind: str) -> None:
    """Kinds of lengths, or a number."""
    from ksieve_lab.bench.scores import check_lengths

    check_lengths(kind)


def scores(source: str) -> None:
    """Scores that are made on a GPU."""
    from ksieve_lab.bench.scores import check_source

    check_source(source)


def scores_anywhere(source: str) -> None:
    """Scores that a machine of either kind makes, or a capture's."""
    from ksieve_lab.bench.targets import DISTRIBUTIONS
    from ksieve_lab.workloads.producers import find_producer

    if source not in DISTRIBUTIONS and unreadable(Path(source.removeprefix("factors:"))):
        find_producer(source)


def peers(names: str) -> None:
    """Names of other libraries."""
    from ksieve_lab.bench.peers import check_names

    check_names(None if names == "all" else [] if names == "none" else listed(names))


def families(names: str) -> None:
    """Names of kernel families."""
    from ksieve.planning.shapes import families as known

    for name in listed(names):
        if name not in known():
            raise ArgumentError("families", repr(name), f"one of {list(known())}")


def policies(names: str) -> None:
    """Names of sampling policies."""
    for name in listed(names):
        resolve_policy(name)


def backend(name: str) -> None:
    """Names of machines."""
    from ksieve_lab.bench.targets import check_backend

    check_backend(name)


def requests(names: str) -> None:
    """Requests of the paper, or numbers of prompt tokens; at least one."""
    from ksieve_lab.bench.chain import prompt_of

    for name in listed(names) or [""]:
        prompt_of(name)


def parts(names: str) -> None:
    """Parts of the ablation."""
    from ksieve_lab.bench.ablation import check_parts

    check_parts(listed(names))


def producer(name: str) -> None:
    """Producers of an indexer's scores."""
    from ksieve_lab.chain.producers import check_name

    check_name(name)


def power_of_two(value: int) -> None:
    """Sizes that a producer's kernels take."""
    if value < 1 or value & (value - 1):
        raise ArgumentError("", value, "a power of two")
