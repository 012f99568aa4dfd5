"""Exact Top-K selection over long, ragged score rows, in about one read of the scores."""

from ksieve._version import __version__
from ksieve.api import plan, select, topk
from ksieve.checking.verdict import Verdict
from ksieve.checking.verify import verify
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import (
    ArgumentError,
    BackendError,
    FileFormatError,
    GradientWarning,
    KsieveError,
    VerificationError,
    WorkspaceError,
)
from ksieve.core.groups import Blocks, Offsets, PageTable, Positions, RowBounds, Segments, SelectedBlocks
from ksieve.core.policy import SamplingPolicy
from ksieve.core.selection import Selection
from ksieve.core.stats import Route, Stats
from ksieve.planning.plan import Plan
from ksieve.running.running import Running

__all__ = [
    "ArgumentError",
    "BackendError",
    "Blocks",
    "DeviceInfo",
    "FileFormatError",
    "GradientWarning",
    "KsieveError",
    "Offsets",
    "PageTable",
    "Plan",
    "Positions",
    "Route",
    "RowBounds",
    "Running",
    "SamplingPolicy",
    "Segments",
    "SelectedBlocks",
    "Selection",
    "Stats",
    "Verdict",
    "VerificationError",
    "WorkspaceError",
    "__version__",
    "plan",
    "select",
    "topk",
    "verify",
]
