"""Exact Top-K selection over long, ragged score rows, at the speed of one read."""

from ksieve._version import __version__
from ksieve.api import plan, topk
from ksieve.errors import (
    ArgumentError,
    BackendError,
    CaptureFormatError,
    GradientWarning,
    KsieveError,
    VerificationError,
    WorkspaceError,
)
from ksieve.options import Options
from ksieve.planner import DeviceInfo, Plan
from ksieve.policy import SamplingPolicy
from ksieve.recorder import record
from ksieve.stats import Route, Stats
from ksieve.verdict import Verdict
from ksieve.verify import verify

__all__ = [
    "ArgumentError",
    "BackendError",
    "CaptureFormatError",
    "DeviceInfo",
    "GradientWarning",
    "KsieveError",
    "Options",
    "Plan",
    "Route",
    "SamplingPolicy",
    "Stats",
    "Verdict",
    "VerificationError",
    "WorkspaceError",
    "__version__",
    "plan",
    "record",
    "topk",
    "verify",
]
