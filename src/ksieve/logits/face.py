"""The functions of `ksieve.logits`: signatures and documentation. A backend fills the results."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeVar

from ksieve.core.errors import ArgumentError, refuse_at_exit
from ksieve.core.problem import MAX_SIZE, check_size
from ksieve.logits.problem import (
    DRAWN_OF,
    MAX_KEPT,
    Kept,
    Request,
    Sample,
    Statistics,
    kept_of,
    parse,
    sample_of,
    statistics_of,
)

_Result = TypeVar("_Result", Statistics, Kept, Sample)


def statistics(
    logits: Any,
    k: Any,
    *,
    max_k: int | None = None,
    tokens: Any = None,
    temperature: Any = None,
    lengths: Any = None,
    allowed: Any = None,
) -> Statistics:
    """Return the k best scores of every row, its log-sum-exp, and logprobs and ranks of tokens.

    Parameters
    ----------
    logits : array, shape (rows, width)
        float32, float16 or bfloat16; NumPy, PyTorch or JAX. Rows are contiguous, with any pitch of at least the width,
        which is at most 524,288. A NumPy uint16 array is read as bfloat16 bits.
    k : int, or array of int32, shape (rows,)
        Slots per row. An array gives every row its own k of at least 1, clamped to `max_k`.
    max_k : int
        Slots per row where k is an array.
    tokens : array of int32, shape (rows,) or (rows, n), optional
        Positions whose logprobs and ranks are returned. A score is better if it is greater, or equal at a lower
        position.
    temperature : float, or array of float32, shape (rows,), optional
        Divides the scores; from 2**-100 to 2**100. A number is rounded to float32. Default: 1.
    lengths : array of int32 or int64, shape (rows,), optional
        Number of valid scores at the start of each row, clamped to [0, width]. Default: `width` for every row.
    allowed : array of int32, shape (rows, n), optional
        Bitmask of at least ``ceil(width / 32)`` words, as xgrammar writes it: a score i counts where bit ``i % 32`` of
        word ``i // 32`` is 1.

    Returns
    -------
    Statistics
        Arrays of the logits' library, on their device.

    Raises
    ------
    ArgumentError
        An argument cannot be used. `Flags` tell of what only arrays hold.
    BackendError
        The backend cannot run here.

    Notes
    -----
    The error of a log-sum-exp is at most 2 ulp (float32) of the larger of 1 and its size, for rows of up to 262,144
    scores. Integers are summed: its bytes are the same in every batch and with any number of threads. No result
    carries a gradient.

    JAX arrays lie on the CPU. A call may be part of ``jax.jit``, where an int k is a constant and other numbers are
    arrays with one for each row, and of ``jax.vmap``. In a derivative it takes ``jax.lax.stop_gradient(logits)``. To
    run a program without tracing it, import `ksieve.logits.jax`.

    Examples
    --------
    >>> import numpy as np
    >>> from ksieve import logits
    >>> found = logits.statistics(np.array([[0, 2, 1]], np.float32), k=1, tokens=np.array([[0, 2]], np.int32))
    >>> found.logprobs.round(2), found.ranks.tolist()
    (array([[-2.41, -1.41]], dtype=float32), [[2, 1]])
    """
    request = parse(logits, k, max_k, tokens=tokens, lengths=lengths, allowed=allowed, temperature=temperature)
    return _filled(request, "statistics", statistics_of(request))


def kept(
    logits: Any,
    k: Any = None,
    *,
    max_k: int | None = None,
    p: Any = None,
    min_p: Any = None,
    min_p_first: bool = False,
    joint: bool = False,
    temperature: Any = None,
    lengths: Any = None,
    allowed: Any = None,
    capacity: int | None = None,
) -> Kept:
    """Return the tokens of every row that top-k, then top-p, then min-p keep, with their probabilities.

    Parameters
    ----------
    k : int, or array of int32, shape (rows,), optional
        The k best scores above -inf are kept, equal ones by position; up to 1,024. Default: the whole row.
    p : float, or array of float32, shape (rows,), optional
        The fewest best ones of these are kept whose probabilities among them sum to p or more; above 0. 1 keeps all.
    min_p : float, or array of float32, shape (rows,), optional
        Those of these are kept whose probability is at least `min_p` times the best one's; from 0 to 1.
    min_p_first : bool
        Whether min-p comes before top-p, as in vLLM. SGLang applies top-p first.
    joint : bool
        Whether p counts probability among the whole row, not among the k best, as in SGLang without min-p, and with
        FlashInfer's ``"joint"``. All k are kept if they do not reach p. It takes a k; `min_p_first` changes nothing.
    capacity : int, optional
        Columns of the result. Default: k. Without k it is needed, and at most 1,024.
    logits, max_k, temperature, lengths, allowed
        As of `statistics`, with its errors.

    Returns
    -------
    Kept
        Arrays of the logits' library, on their device.

    Notes
    -----
    Weights ``2**((score - best) * log2(e) / temperature)`` are float64, and are added from the best on: a row's kept
    set is the same in every batch. Without k they are integers, with a unit of 2**-41 of the best one or less. The
    sums that are compared with `p` and `uniform` then err by less than 1e-6 of probability, as does p's with `joint`.

    Examples
    --------
    >>> import numpy as np
    >>> from ksieve import logits
    >>> found = logits.kept(np.log(np.array([[0.1, 0.6, 0.3]], np.float32)), k=3, p=0.7)
    >>> found.tokens.tolist(), found.counts.tolist(), found.probabilities.round(2)
    ([[1, 2, -1]], [2], array([[0.67, 0.33, 0.  ]], dtype=float32))
    """
    if k is None and capacity is None:
        raise ArgumentError("capacity", None, f"an int from 1 to {MAX_KEPT} where k is None: how many tokens to list")
    most = (MAX_KEPT, "how many tokens are listed where k is None") if k is None else (MAX_SIZE,)
    columns = None if capacity is None else check_size(capacity, "capacity", 1, *most)
    request = parse(
        logits, k, max_k, MAX_KEPT, lengths=lengths, allowed=allowed, min_p_first=min_p_first, joint=joint,
        whole=columns, temperature=temperature, p=p, min_p=min_p,
    )  # fmt: skip
    return _filled(request, "kept", kept_of(request, columns or request.k))


def sample(
    logits: Any,
    k: Any = None,
    *,
    uniform: Any,
    max_k: int | None = None,
    p: Any = None,
    min_p: Any = None,
    min_p_first: bool = False,
    joint: bool = False,
    temperature: Any = None,
    lengths: Any = None,
    allowed: Any = None,
) -> Sample:
    """Draw one token of every row from its kept set.

    Parameters
    ----------
    uniform : float, or array of float32, shape (rows,)
        From 0 to 1. Drawn is the first token, from the best on, at which the sum of probabilities in the kept set
        exceeds it; the last one of any weight if none does. The same number draws the same token in every batch.
    logits, k, max_k, p, min_p, min_p_first, joint, temperature, lengths, allowed
        As of `kept`, with its errors.

    Returns
    -------
    Sample
        Arrays of the logits' library, on their device.

    Examples
    --------
    >>> import numpy as np
    >>> from ksieve import logits
    >>> scores = np.log(np.array([[0.1, 0.6, 0.3]] * 2, np.float32))
    >>> found = logits.sample(scores, k=2, uniform=np.array([0.5, 0.7], np.float32))
    >>> found.tokens.tolist(), np.exp(found.logprobs).round(2)
    ([1, 2], array([0.6, 0.3], dtype=float32))
    """
    if uniform is None:
        raise ArgumentError("uniform", None, "a number from 0 to 1, or an array of float32 with one for each row")
    request = parse(
        logits, k, max_k, MAX_KEPT, lengths=lengths, allowed=allowed, min_p_first=min_p_first, joint=joint,
        whole=DRAWN_OF, temperature=temperature, p=p, min_p=min_p, uniform=uniform,
    )  # fmt: skip
    return _filled(request, "sample", sample_of(request))


def _filled(request: Request, function: str, found: _Result) -> _Result:
    """Return results, which the backend's function fills (`ksieve.logits.problem`)."""
    refuse_at_exit()
    if request.library == "jax":
        found = import_module("ksieve.logits.jax").called(request, function, found)
    else:
        getattr(import_module(f"ksieve.logits.{request.device.kind}"), function)(request, found)
    return found
