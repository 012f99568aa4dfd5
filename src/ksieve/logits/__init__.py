"""Statistics, kept sets and samples of rows of logits, exactly, beside the selection of the best.

Importing this module imports neither PyTorch nor Numba; ``import ksieve`` does not import it.

>>> import numpy as np
>>> from ksieve import logits
>>> found = logits.statistics(np.array([[0, 2, 1, 2]], np.float32), k=2, tokens=np.array([2], np.int32))
>>> found.positions.tolist(), found.ranks.tolist(), found.logsumexp.round(2)
([[1, 3]], [2], array([2.92], dtype=float32))
"""

from __future__ import annotations

from ksieve.logits.face import kept, sample, statistics
from ksieve.logits.problem import Kept, Sample, Statistics
from ksieve.model.logits import Flags

__all__ = ["Flags", "Kept", "Sample", "Statistics", "kept", "sample", "statistics"]
