"""A judge of answers of calls with entries, windows and candidates, by PyTorch operations where the arrays are.

It shares no code with the library. Scores become order-preserving integers, blocks their maxima, and a stable sort of
whole rows says which entries are the best. An answer is read slot by slot, so that every right one passes: entries in
any order where none is asked for, and any of equal ones without a tie-break. Nothing has a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ksieve.lab.bench.scores import blocks

NONE, LAST, HIGHEST, FORCED = -(1 << 31), 1 - (1 << 31), (1 << 31) - 2, (1 << 31) - 1
"""Keys of what is no entry, of NaN below every number and above every number, and of forced entries."""

FAR = 1 << 40
CHUNK = 1 << 25
"""Scores and slots judged at a time: temporaries take about 100 bytes for each."""

PER_REQUEST = ("lengths", "ends", "tail")
PER_ROW = ("k", "starts", "offsets", "row_to_request", "positions", "block_table")
"""Names of arrays of a call that have an entry for each row; of the others, one for each request of `next_n` rows."""


@dataclass(frozen=True)
class Entries:
    """Entries of rows, in ascending order of their numbers.

    Attributes
    ----------
    key : torch.Tensor of int32, shape (rows, entries)
        Greater is better; `NONE` where there is no entry, `FORCED` for forced ones.
    number, begin, size, column : torch.Tensor of int64, shape (rows, entries)
        Number of each entry, its first position, how many it has, and the column of its best score.
    tail, high : torch.Tensor of int64, shape (rows,)
        Bounds of the positions behind the last whole entry.
    """

    key: Any
    number: Any
    begin: Any
    size: Any
    column: Any
    tail: Any
    high: Any


def keys(scores: Any, call: Mapping[str, Any]) -> Any:
    """int32 in the contract's order: greater is better, zeros are equal, and so are all NaN."""
    import torch

    bits = scores.float().contiguous().view(torch.int32)
    size = bits & 0x7FFFFFFF
    key = torch.where(bits < 0, -size, size)
    smallest = call.get("largest") is False
    key = -key if smallest else key
    return key.masked_fill_(size > 0x7F800000, HIGHEST if call.get("nan") == "highest" and not smallest else LAST)


def wrong_rows(scores: Any, call: Mapping[str, Any], outputs: Mapping[str, Any], live: int | None = None) -> Any:
    """Which rows of an answer are wrong, and why.

    Parameters
    ----------
    scores : torch.Tensor, shape (rows, width)
    call : mapping
        Keyword arguments of `ksieve.topk`, with ``k`` (and ``max_k`` beside an array) and ``lengths``.
    outputs : mapping
        The arrays written: ``out``, and where the call asks for them ``values_out``, ``counts_out`` and ``raw_out``,
        which the judge needs with pages and offsets.
    live : int, optional
        Rows from this one on are none.

    Returns
    -------
    dict of str to torch.Tensor of bool, shape (rows,)
        By reason.
    """
    import torch

    rows, width = scores.shape
    n, found = call.get("next_n") or 1, dict[str, list[Any]]()
    # Requests are not divided.
    for part in blocks(rows // n, n * (width + outputs["out"].shape[1]), CHUNK):
        requests = part
        part = slice(n * part.start, n * part.stop)
        given = {name: value for name, value in call.items() if name not in (*PER_ROW, *PER_REQUEST)}
        for names, own in ((PER_ROW, part), (PER_REQUEST, requests)):
            for name in names:
                value = call.get(name)
                given[name] = value[own] if isinstance(value, torch.Tensor) else value
        rest = {name: array[part] for name, array in outputs.items()}
        for reason, wrong in _wrong(scores[part], given, rest, part.start, rows if live is None else live).items():
            found.setdefault(reason, []).append(wrong)
    return {reason: torch.cat(parts) for reason, parts in found.items()}


def _bounds(width: int, call: Mapping[str, Any], row: Any, live: int) -> tuple[Any, Any, Any]:
    """Windows [begin, end) of rows, and their lengths in positions or None; `row` holds their numbers."""
    import torch

    n = call.get("next_n") or 1
    request, later = (row - row[0]) // n, n - 1 - row % n
    names = ("starts", "lengths", "ends", "tail")
    starts, lengths, ends, tail = (
        None if call.get(name) is None else call[name].long().clamp(-FAR, FAR) for name in names
    )
    # Rows of a request differ by one position, which scores that stand for several cannot express.
    fewer = 0 if not _size(call) and _expand(call) > 1 else later
    begin = torch.zeros_like(row) if starts is None else starts.clamp(0, width)
    if lengths is not None:
        end = begin + (lengths[request] - fewer).clamp(min=0)
    else:
        end = (width if ends is None else ends[request]) - fewer
    end = torch.maximum(end.clamp(max=width), begin) if isinstance(end, torch.Tensor) else begin * 0 + width
    end = torch.where(row < live, end, begin)
    if tail is not None:
        tail = torch.where(row < live, (tail[request] - later).clamp(min=0), 0)
    return begin, end, tail


def _size(call: Mapping[str, Any]) -> int:
    """Scores of a block, or 0."""
    size = call.get("block_size") or 1
    return size if size > 1 else 0


def _expand(call: Mapping[str, Any]) -> int:
    """Positions that are written of an entry; True stands for those of a block."""
    return _size(call) if call.get("expand") is True else int(call.get("expand") or 1)


def _positions(call: Mapping[str, Any], width: int) -> Any:
    """Positions of candidates as int64, or None."""
    import torch

    if call.get("block_table") is not None:
        table = call["block_table"].long()
        size = width // table.shape[1]
        within = torch.arange(size, device=table.device)
        return torch.where(table[:, :, None] < 0, -1, table[:, :, None] * size + within).flatten(1)
    return None if call.get("positions") is None else call["positions"].long()


def entries_of(scores: Any, call: Mapping[str, Any], row: Any, live: int) -> Entries:
    """Lay out the entries of rows; `row` holds their numbers."""
    import torch

    width, size = scores.shape[1], _size(call)
    expand = _expand(call)
    begin, end, length = _bounds(width, call, row, live)
    begin, end, length = begin[:, None], end[:, None], None if length is None else length[:, None]
    base = torch.zeros_like(begin) if call.get("index_base") == "start" else begin
    key, column = keys(scores, call), torch.arange(width, device=scores.device)
    if size:
        count = -(-width // size)
        position = torch.arange(count * size, device=scores.device)
        low, high = base, base + end - begin
        if length is not None:
            high = torch.minimum(torch.maximum(length, low), high)
        shift = begin - base  # from a position to its column
        column = (position + shift).clamp(max=width - 1)
        key = key.gather(1, column).masked_fill_((position < low) | (position >= high), NONE)
        grouped = key.view(len(row), count, size)
        best = grouped.amax(2)
        within = torch.arange(size, device=scores.device)
        first = torch.where(grouped == best[:, :, None], within, size).amin(2)
        number = position[:count].expand(len(row), count)
        if length is not None:
            best = best.masked_fill((number + 1) * size > high, NONE)
        tail = torch.maximum(high // size * size, low) if length is not None else high
        key, column = best, number * size + first + shift
        start = torch.maximum(number * size, low) if expand > 1 else number
        many = torch.minimum((number + 1) * size, high) - start if expand > 1 else torch.ones_like(number)
    else:
        named = _positions(call, width)
        number = column + base - begin if named is None else named
        there = (column >= begin) & (column < end) & (number >= 0) & ((number + 1) * expand <= 1 << 31)
        if length is not None:
            there &= (number + 1) * expand <= length
        if named is not None:
            number, column = torch.where(there, number, FAR).sort(dim=1, stable=True)
            key, there = key.gather(1, column), there.gather(1, column)
        key = key.masked_fill(~there, NONE)
        lowest = base * expand if named is None else torch.zeros_like(begin)
        high = torch.maximum(length, lowest) if length is not None else lowest
        tail = torch.maximum(high // expand * expand, lowest) if length is not None else high
        start, many = number * expand, torch.full_like(number, expand)
        column = column.expand(len(row), width)
    first_forced, last_forced = call.get("force_first") or 0, call.get("force_last") or 0
    if first_forced or last_forced:
        is_entry = key != NONE
        place = is_entry.cumsum(1) - 1
        total = is_entry.sum(1, keepdim=True)
        key = key.masked_fill(is_entry & ((place < first_forced) | (place >= total - last_forced)), FORCED)
    return Entries(key, number, start, many, column, tail[:, 0], high[:, 0])


def _wrong(scores: Any, call: Mapping[str, Any], outputs: Mapping[str, Any], first: int, live: int) -> dict[str, Any]:
    """As `wrong_rows`, of rows from number `first` on."""
    import torch

    device, rows = scores.device, len(scores)
    row = first + torch.arange(rows, device=device)
    found = entries_of(scores, call, row, live)
    expand = _expand(call)
    entries = found.key.shape[1]
    # What is to be selected.
    high_first, order_asked = call.get("tie_break") == "high", call.get("sorted")
    tie_asked = call.get("tie_break")
    if call.get("deterministic"):
        order_asked, tie_asked = order_asked or "index", tie_asked or "low"
    k = call["k"] if not isinstance(call["k"], torch.Tensor) else call["k"].long().clamp(0, call["max_k"])
    forced = (call.get("force_first") or 0) + (call.get("force_last") or 0)
    k = k + (forced if call.get("force") == "beside" else 0)
    is_entry = found.key != NONE
    total = is_entry.sum(1)
    need = torch.minimum(total, k if isinstance(k, torch.Tensor) else torch.full_like(total, k))
    ranked, order = (found.key.flip(1) if high_first else found.key).sort(dim=1, descending=True, stable=True)
    order = entries - 1 - order if high_first else order
    worst = ranked.gather(1, (need - 1).clamp(min=0)[:, None])
    # What the slots hold.
    out = outputs["out"].long()
    raw = outputs["raw_out"].long() if "raw_out" in outputs else out
    slots = raw.shape[1]
    slot = torch.arange(slots, device=device)
    used = (raw != -1).sum(1) if "counts_out" not in outputs else outputs["counts_out"].long()
    tails = found.high - found.tail
    body = used - tails
    wrong = {"count": (used < tails) | (used > slots)}
    in_use, in_body = slot < used[:, None], slot < body[:, None]
    behind = ~in_use
    if call.get("fill") is not False:
        wrong["unused slots"] = (behind & ((raw != -1) | (out != -1))).any(1)
    wrong["tail"] = (in_use & ~in_body & (raw != (found.tail - body)[:, None] + slot)).any(1)
    number = torch.where(in_body, raw, -1).div(expand, rounding_mode="floor")
    if call.get("positions") is None and call.get("block_table") is None:
        entry = number - found.number[:, :1]
    else:
        entry = torch.searchsorted(found.number, number)
    known = (entry >= 0) & (entry < entries)
    entry = entry.clamp(0, entries - 1)
    known &= (found.number.gather(1, entry) == number) & is_entry.gather(1, entry)
    wrong["no entry"] = (in_body & ~known).any(1)
    head = torch.ones_like(in_body)
    head[:, 1:] = number[:, 1:] != number[:, :-1]
    head &= in_body
    within = slot - torch.where(head, slot, 0).cummax(1).values
    begin, many = found.begin.gather(1, entry), found.size.gather(1, entry)
    wrong["positions"] = (in_body & ((raw != begin + within) | (within >= many))).any(1)
    wrong["positions"] |= torch.where(head, many, 0).sum(1) != body.clamp(min=0)
    times = torch.zeros(rows, entries, dtype=torch.int32, device=device)
    times.scatter_add_(1, entry, head.int())
    chosen = times > 0
    wrong["twice"] = (times > 1).any(1)
    wrong["how many"] = chosen.sum(1) != need
    wrong["worse entry"] = (chosen & (found.key < worst)).any(1)
    above = (found.key > worst) & is_entry
    wrong["worse entry"] |= (above & ~chosen & (need > 0)[:, None]).any(1)
    if tie_asked in ("low", "high") or order_asked in (True, "value"):
        place = torch.empty_like(order).scatter_(1, order, torch.arange(entries, device=device).expand_as(order))
        if tie_asked in ("low", "high"):
            wrong["tie"] = (chosen != (place < need[:, None])).any(1)
    if order_asked:
        along = place.gather(1, entry) if order_asked in (True, "value") else raw
        wrong["order"] = (in_body[:, 1:] & (along[:, 1:] < along[:, :-1])).any(1)
    # What is written for them.
    written = _written(raw, call, row, first).to(outputs["out"].dtype)
    wrong["written"] = (in_use & (outputs["out"] != written)).any(1)
    if "values_out" in outputs:
        bits = getattr(torch, f"int{8 * scores.dtype.itemsize}")
        best = found.column.gather(1, entry).clamp(0, scores.shape[1] - 1)
        fill = float("inf") if call.get("largest") is False else -float("inf")
        nothing = torch.full((), fill, dtype=scores.dtype, device=device).view(bits)
        value = torch.where(in_body, scores.contiguous().view(bits).gather(1, best), nothing)
        judged = in_use if call.get("fill") is False else torch.ones_like(in_use)
        wrong["value"] = (judged & (outputs["values_out"].contiguous().view(bits) != value)).any(1)
    return wrong


def _written(raw: Any, call: Mapping[str, Any], row: Any, first: int) -> Any:
    """What is written in place of indices; `first` is the number of the first of all rows."""
    import torch

    if call.get("offsets") is not None:
        return raw + call["offsets"].long()[:, None]
    if call.get("page_table") is None:
        return raw
    table, size = call["page_table"].long(), call.get("page_size") or 1
    named = call.get("row_to_request")
    request = row // (call.get("next_n") or 1) if named is None else named.long()
    page = raw.clamp(min=0) // size
    known = ((request >= 0) & (request < len(table)))[:, None] & (page < table.shape[1])
    entry = table[request.clamp(0, len(table) - 1)[:, None], page.clamp(max=table.shape[1] - 1)]
    return torch.where(known, entry * size + raw % size, -1)
