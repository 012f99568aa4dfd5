"""AITER's functions under the package's name."""

from .ops.topk import *  # noqa: F403
