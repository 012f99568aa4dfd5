"""`Candidates`: exact selection from lists of scores that a producer kept, because they reach a proposed cutoff.

All scores of a row that reach a cutoff, and k of them at least, contain the answer. The cutoff is proposed
from a sample of the columns, produced first. Counts prove for each row whether it held; a row for which it did not gets
another cutoff, or comes by tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ksieve import api
from ksieve.core import problem
from ksieve.core.arrays import inspect
from ksieve.core.errors import ArgumentError, VerificationError
from ksieve.core.table import INTEGERS
from ksieve.running.running import Running

SHARE = 64
"""Default distance of sampled columns."""


class Candidates:
    """Take lists of candidates of a producer into account in place of tiles.

    Parameters
    ----------
    running : Running
        Made for the same rows; it says what is selected, and takes the tiles of rows that stay unresolved.
    width : int
        Columns of the whole rows.
    capacity : int, optional
        Slots of a row's list, more than k. Default: 2 k, and at least 4,096. On CUDA, for k up to 4,096 and without
        blocks, `running` has lists of its own with 3 k slots, at least k + 2,048. Those are the default. Up to so many
        slots they are the lists of the candidates too, and a decided row's list stays as it is.
    share : int
        One column of so many is sampled.
    seed : int
        Of the choice of columns: one of each `share`, at random.

    Attributes
    ----------
    columns : array of int32, shape (n,)
        Ascending columns of the sample; with blocks, their numbers. All arrays are of the library and device of
        `running`.
    cutoff : array of float32, shape (rows,)
        From `propose` on: a producer keeps every score of a row that reaches it, ``score >= cutoff`` (``score <=
        cutoff`` with ``largest=False``). NaN reaches a cutoff only where it is the best of all scores, with `largest`
        and ``nan="highest"``; then it is always kept.
    counts : array of int32, shape (rows,)
        The producer adds the number of scores that it keeps, also of those for which there is no slot.
    scores, positions : array of the scores' dtype and of int32, shape (rows, capacity)
        Slots of the first ``min(counts[r], capacity)`` kept scores of a row, in any order, and their positions.
    left : array of int32, shape (rows,)
        Lengths of the rows that are not resolved yet, and 0 for others: pass them with the tiles that finish these
        rows.

    Notes
    -----
    Calls in order: `propose`; the producer; `certify`; ``running.push`` of tiles with ``lengths=left``, unless all of
    `left` is 0; ``running.finish``. The producer and `certify` may come again, with the new cutoffs. Every call has
    fixed shapes and reads nothing back, so that all of it can be captured in one CUDA graph. The guarantee rests on the
    producer. It counts each valid score that reaches the cutoff, and no other, and lists it once with its position.
    `left` are its lengths: a decided row's list may hold the answer and must stay as it is. ``certify(check=True)``
    finds lists that cannot be right.

    Examples
    --------
    >>> import numpy as np, ksieve
    >>> from ksieve.running import Candidates
    >>> scores = np.random.default_rng(0).standard_normal((1, 100_000), dtype=np.float32)
    >>> running = ksieve.Running(rows=1, k=2048, max_tile=4096, deterministic=True)
    >>> candidates = Candidates(running, width=100_000)
    >>> candidates.propose(scores.take(candidates.columns, axis=1))
    >>> (kept,) = np.nonzero(scores[0] >= candidates.cutoff[0])
    >>> candidates.counts[0] = kept.size
    >>> candidates.scores[0, : kept.size] = scores[0, kept]
    >>> candidates.positions[0, : kept.size] = kept
    >>> candidates.certify()
    >>> candidates.left.tolist()
    [0]
    >>> bool((running.finish() == ksieve.topk(scores, k=2048, deterministic=True)).all())
    True
    """

    def __init__(
        self, running: Running, width: int, *, capacity: int | None = None, share: int = SHARE, seed: int = 0
    ) -> None:
        if not isinstance(running, Running):
            raise ArgumentError("running", type(running).__name__, "a ksieve.Running")
        self._running, self._best = running, running._best
        self._proposed = False
        best = self._best
        self.width = problem.check_size(width, "width", 1)
        self.share = problem.check_size(share, "share", 1)
        room = best.usual_capacity if capacity is None else capacity
        self.capacity = problem.check_size(room, "capacity", best.k + 1)
        seed = problem.check_size(seed, "seed")
        entries = -(-self.width // running.block_size)
        begins = np.arange(0, entries, self.share)
        drawn = np.random.default_rng(seed).integers(0, np.minimum(self.share, entries - begins))
        self.columns = best.xp.asarray((begins + drawn).astype(np.int32), **best.place)
        self.scores, self.positions = best.lists(self.capacity)
        self.counts = best.empty((best.rows,), "int32")
        self.cutoff = best.empty((best.rows,), "float32")
        self.left = best.empty((best.rows,), "int32")
        self._target = (best.k + self.capacity) // 2  # half way between too few candidates and too many
        self._ranks = min(len(begins), 2 * (self._target // self.share + 2))
        self._slot = best.xp.arange(self._ranks, **best.place)
        self._ordered = best.empty((best.rows, self._ranks + 1), "float32")  # best samples, then no bound
        self._ordered[:] = best.everything

    def propose(self, samples: Any, lengths: Any = None) -> None:
        """Rewrite `cutoff` and `left`, set `counts` to 0, and let `running` forget everything.

        Parameters
        ----------
        samples : array, shape (rows, len(columns))
            Scores of `columns`; those past a row's length are not read.
        lengths : array of int32 or int64, shape (rows,), optional
            Valid scores at the start of each row. Default: all.
        """
        best, xp = self._best, self._best.xp
        self._running.check_tile(samples, "samples", len(self.columns))
        if lengths is None:
            self.left[:] = self.width
        else:
            problem.check_vector(inspect(lengths, "lengths"), "lengths", ((best.rows,),), best.device, INTEGERS)
            self.left[:] = xp.clip(lengths, 0, self.width)
        size = self._running.block_size
        self._length = -(-self.left // size) if size > 1 else self.left + 0
        self._running.reset()
        self._proposed = True
        self.counts[:] = 0
        self._entries = xp.clip(self._length, 1, None)
        self._valid = xp.searchsorted(self.columns, self._length)
        values = api.select(
            samples, xp.asarray(self._valid, dtype=xp.int32), k=self._ranks, sorted="value", values=True,
            largest=best.options.largest, nan=best.options.nan,
        ).values  # fmt: skip
        ordered = self._ordered[:, :-1]
        ordered[:] = best.bound(best.widened(values))
        ordered[self._slot >= self._valid[:, None]] = best.everything
        self._at = self._ranks_of(self._target) - 1
        self.cutoff[:] = self._sample()
        self.cutoff[self._length <= self.capacity] = best.everything

    def certify(self, *, check: bool = False) -> None:
        """Take over the answers of rows whose lists prove them; the others get a new cutoff.

        `left` and `counts` of resolved rows become 0, and their cutoff one that no number reaches. So a second pass of
        the producer keeps nothing of them.

        Parameters
        ----------
        check : bool
            Also verify on the host that listed positions are valid and distinct, and that scores reach the cutoff.

        Raises
        ------
        ArgumentError
            Before `propose`, or if tiles were pushed since: a score may be in both.
        VerificationError
            With `check`: the lists cannot be right. Nothing has been taken over.
        """
        best, xp = self._best, self._best.xp
        if not self._proposed:
            raise ArgumentError("certify", "no cutoffs yet", "a call of propose and the producer before it")
        if self._running._pushed:
            raise ArgumentError("certify", "tiles pushed since propose", "lists first, and then tiles of rows in left")
        if check:
            self._check()
        slots = xp.clip(best.own_k, 0, best.k) if best.per_row else best.k
        over = self.counts > self.capacity
        held = (self.left > 0) & ~over & (self.counts >= xp.clip(self._length, None, slots))
        listed = xp.asarray(xp.clip(self.counts, 0, self.capacity), dtype=xp.int32)
        worst = best.adopt(self.scores, self.positions, listed, held)
        # The listed scores leave out none that is better than their k-th, also where there were too many for the list.
        # Behind too few, each further sample stands for as many scores as the first ones did.
        self._at = self._at + self._ranks_of(xp.clip(self._target - self.counts, 0, None))
        self.cutoff[:] = xp.where(over, worst, self._sample())
        self.left[held] = 0
        self.cutoff[self.left == 0] = best.nothing
        self.counts[:] = 0

    def _ranks_of(self, count: Any) -> Any:
        """Rank among a row's samples that `count` of all its entries have, rounded up; at least 1."""
        return 1 + self._best.xp.clip((count * self._valid - 1) // self._entries, 0, None)

    def _sample(self) -> Any:
        """The sample after `_at` better ones of each row; `everything` where there is none, or NaN."""
        xp = self._best.xp
        at = xp.clip(self._at, None, self._ranks)[:, None]
        found = np.take_along_axis(self._ordered, at, 1) if xp is np else self._ordered.gather(1, at)
        return found[:, 0]

    def _check(self) -> None:
        best = self._best
        arrays = (best.widened(self.scores), self.positions, self.counts, self.cutoff, self._length, self.left)
        scores, positions, counts, cutoff, length, left = (
            np.asarray(a.cpu() if best.xp is not np else a) for a in arrays
        )
        for r in np.flatnonzero((left > 0) | (counts != 0)):
            n = min(max(int(counts[r]), 0), self.capacity)
            listed, places = scores[r, :n], positions[r, :n]
            reaches = listed >= cutoff[r] if best.everything < 0 else listed <= cutoff[r]
            if best.options.ranking == "nan_first":
                reaches |= np.isnan(listed)
            wrong = {
                f"counts {counts[r]}": not 0 <= counts[r] <= (length[r] if left[r] else 0),
                f"has positions outside [0, {length[r]})": bool(((places < 0) | (places >= length[r])).any()),
                "has a position twice": np.unique(places).size < n,
                f"has scores that do not reach the cutoff, {cutoff[r]}": not reaches.all(),
            }
            if found := [text for text, is_so in wrong.items() if is_so]:
                raise VerificationError(f"the producer's list of row {r} {' and '.join(found)}")
