"""Exact Top-K selection over long, ragged score rows, at the speed of one read."""

from ksieve._version import __version__
from ksieve.api import plan, topk
from ksieve.errors import (
    ArgumentError,
    BackendError,
    CaptureFormatError,
    KsieveError,
    WorkspaceError,
)
from ksieve.planner import DeviceInfo, Plan
from ksieve.policy import SamplingPolicy
from ksieve.stats import Route, Stats
from ksieve.verify import Verdict, verify

__all__ = [
    "ArgumentError",
    "BackendError",
    "CaptureFormatError",
    "DeviceInfo",
    "KsieveError",
    "Plan",
    "Route",
    "SamplingPolicy",
    "Stats",
    "Verdict",
    "WorkspaceError",
    "__version__",
    "plan",
    "topk",
    "verify",
]
