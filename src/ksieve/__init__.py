"""Exact Top-K selection over long, ragged score rows, at the speed of one read."""

from ksieve._version import __version__
from ksieve.api import plan, topk
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
from ksieve.core.options import Options
from ksieve.core.policy import SamplingPolicy
from ksieve.core.stats import Route, Stats
from ksieve.planning.plan import Plan
from ksieve.running.running import Running

__all__ = [
    "ArgumentError",
    "BackendError",
    "DeviceInfo",
    "FileFormatError",
    "GradientWarning",
    "KsieveError",
    "Options",
    "Plan",
    "Route",
    "Running",
    "SamplingPolicy",
    "Stats",
    "Verdict",
    "VerificationError",
    "WorkspaceError",
    "__version__",
    "plan",
    "topk",
    "verify",
]
