"""Comparison of a served call with the engine's own operator, judged by `ksieve.verify`."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ksieve import dispatch
from ksieve.adapters._operators import Operator
from ksieve.adapters._signatures import known, names_of
from ksieve.adapters._tally import TALLY, Asked
from ksieve.checking.verify import verify
from ksieve.core.groups import grouped
from ksieve.core.options import Options
from ksieve.core.table import JUDGED, OUTPUTS
from ksieve.core.windows import windows
from ksieve.files.scores import save_scores

_ENTRIES = ("block_size", "force_first", "force_last", "expand", "tail")

_log = logging.getLogger("ksieve.adapters")
_said: set[str] = set()


def compare(
    operator: Operator,
    own: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Any,
    asked: Asked | None,
) -> None:
    """Compare one answer with the engine's and count its rows; never raises.

    `own`: the engine's operator, which gets copies of the arguments that it writes to. `args`, `kwargs`, `result`: the
    served call, and what it returned. `asked`: its selection; None if it selected nothing.
    """
    if asked is None:
        return

    def copied(name: str, value: Any) -> Any:
        return value.clone() if name in operator.writes and value is not None else value

    try:
        if asked[0].is_cuda and torch.cuda.is_current_stream_capturing():
            TALLY.verify(captured=1)
            return
        names = names_of(known(operator)[0])
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        arguments = [copied(name, value) for name, value in zip(names, args, strict=False)]
        keywords = {name: copied(name, value) for name, value in kwargs.items()}
        returned = own(*arguments, **keywords)
        written = {**dict(zip(names, arguments, strict=False)), **keywords}
        fill = -1 if operator.fill is None else bound.get(*operator.fill)
        _judge(operator, asked, _answer(operator, bound, result), _answer(operator, written, returned), fill)
    except Exception as error:  # an engine's operator may raise anything, and the request has been served
        TALLY.verify(failed=1)
        _once("failed", f"{operator.name} could not be compared with the engine's own: {error!r}")


def _once(what: str, text: str) -> None:
    if what not in _said:
        _said.add(what)
        _log.warning("%s", text)


def _judge(operator: Operator, asked: Asked, ours: Any, theirs: Any, fill: int) -> None:
    """Count the rows of an answer and of the engine's own, whose unused slots hold `fill`."""
    scores, lengths, k, options = asked
    rows, expand = scores.shape[0], options.get("expand", 1)
    columns = k * expand + (expand - 1 if "tail" in options else 0)
    ours, theirs = (slots[:rows, :columns] for slots in (ours, theirs))
    mapped = "page_table" in options or "offsets" in options
    differs = _differ(ours, theirs)
    if mapped:
        # What was served cannot be mapped back: the same selection again, with the positions before the mapping.
        again = {name: value for name, value in options.items() if name not in OUTPUTS}
        served, _, positions, *_ = dispatch.select(scores, lengths, k, given=again | {"raw": True})
        other = _differ(ours if fill == -1 else ours.masked_fill(ours == fill, -1), served)
    else:
        positions, other = ours, torch.zeros_like(differs)
    judged = grouped({name: options[name] for name in JUDGED if name in options})
    sentinel = -1 if mapped else fill
    verdict = verify(scores, lengths, positions, k=k, sentinel=sentinel, **judged)
    wrong = _mask(verdict, differs)
    if mapped:
        exact_ties = _tied(asked, positions, differs | other)
        wrong |= other & ~exact_ties
        engine = differs & ~exact_ties & ~wrong
    else:
        engine = _mask(verify(scores, lengths, theirs, k=k, sentinel=fill, **judged), differs) & differs
    count = {
        "calls": 1,
        "rows": rows,
        "equal": int((~differs & ~wrong).sum()),
        "tied": int((differs & ~engine & ~wrong).sum()),
        "engine_wrong": int((engine & ~wrong).sum()),
        "ksieve_wrong": int(wrong.sum()),
    }
    TALLY.verify(**count)
    for who, mask in (("ksieve", wrong), ("the engine", engine & ~wrong)):
        if mask.any() and who not in _said:
            row = int(mask.nonzero()[0, 0])
            path = _keep(operator, asked, row)
            found, expected = set(ours[row].tolist()), set(theirs[row].tolist())
            only = f"only ksieve: {sorted(found - expected)[:8]}, only the engine: {sorted(expected - found)[:8]}"
            _once(
                who,
                f"{operator.name}: the answer of {who} is not exact in {int(mask.sum())} of {rows} rows, first in row "
                f"{row} ({only}); its scores are in {path}",
            )


def _answer(operator: Operator, arguments: Mapping[str, Any], returned: Any) -> Any:
    if isinstance(operator.answer, str):
        return arguments[operator.answer]
    answer = returned if operator.answer is None else returned[operator.answer]
    return answer.reshape(-1, answer.shape[-1])


def _differ(a: Any, b: Any) -> Any:
    """Rows whose slots hold different numbers, in any order."""
    return (a.long().sort(1).values != b.long().sort(1).values).any(1)


def _mask(verdict: Any, like: Any) -> Any:
    return torch.from_numpy(np.asarray(verdict.reasons != 0)).to(like.device)


def _tied(asked: Asked, positions: Any, rows: Any) -> Any:
    """Of the given rows, those with another exact answer: `ksieve.verify` counts them one row at a time."""
    scores, lengths, k, options = asked
    tied = torch.zeros_like(rows)
    judged = {name: options[name] for name in ("index_base", *_ENTRIES[:-1], "largest", "nan") if name in options}
    for row in rows.nonzero()[:, 0].tolist():
        part = slice(row, row + 1)
        vectors = {name: options[name][part] for name in ("starts", "ends", "tail") if name in options}
        length = None if lengths is None else lengths[part]
        of_row = grouped(judged | vectors)
        tied[row] = verify(scores[part], length, positions[part], k=k, **of_row).tied_rows == 1
    return tied


def _keep(operator: Operator, asked: Asked, row: int) -> Path:
    """Write the window of a row to a file in a folder of its own, for ``ksieve select``."""
    scores, lengths, k, options = asked
    kind: Any = "ends" if "ends" in options else "lengths"
    begin, length = windows(
        Options(windows=kind, next_n=options.get("next_n", 1)), scores.shape[0], scores.shape[1],
        lengths=_host(options.get("ends", lengths)), starts=_host(options.get("starts")),
    )  # fmt: skip
    valid = scores[row, int(begin[row]) : int(begin[row] + length[row])].cpu()
    padded = valid if len(valid) else valid.new_zeros(1)
    lengths = torch.tensor([len(valid)], dtype=torch.int32)
    path = Path(tempfile.mkdtemp(prefix="ksieve-"), "difference.safetensors")
    save_scores(path, {"scores": padded[None].contiguous(), "lengths": lengths}, k, operator=operator.name)
    return path


def _host(vector: Any) -> Any:
    return None if vector is None else vector.cpu().numpy()
