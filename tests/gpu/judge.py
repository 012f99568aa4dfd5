"""Exactness of an answer, decided on the device that holds it, by two counts per row.

An answer is exact when its positions are distinct and valid, and as many selected scores lie above the least
selected one as there are such scores in the whole row: then none of those was left out. Shares no code with ksieve.
"""

from __future__ import annotations

import torch

LEAST, GREATEST = -(2**31), 2**31 - 1
CHUNK = 1 << 27
"""Scores judged at a time: bounds the temporaries to about 3 GB."""


def ordered(scores: torch.Tensor, ranking: str = "largest") -> torch.Tensor:
    """int32 in the contract's order: greater is better, -0 equals +0, every NaN is the least value, or the greatest."""
    x = scores.float()
    bits = x.view(torch.int32)
    key = torch.where(bits < 0, bits ^ GREATEST, bits)
    key.masked_fill_(x == 0, 0)
    if ranking == "smallest":
        key.neg_()
    return key.masked_fill_(torch.isnan(x), GREATEST if ranking == "nan_first" else LEAST)


def valid_lengths(
    lengths: torch.Tensor | None, rows: int, width: int, live: torch.Tensor | None = None, device: object = None
) -> torch.Tensor:
    """Clamped lengths, zero from row `live` on; int64. Nothing is read back."""
    if lengths is None:
        valid = torch.full((rows,), width, dtype=torch.int64, device=device)
    else:
        valid = lengths.to(torch.int64).clamp(0, width)
    if live is not None:
        valid *= torch.arange(rows, device=valid.device) < live.reshape(())
    return valid


def exact_rows(
    scores: torch.Tensor, valid: torch.Tensor, k: int, indices: torch.Tensor, ranking: str = "largest"
) -> torch.Tensor:
    """Whether each row of `indices` is an exact answer; bool, shape (rows,), nothing is read back.

    `valid` holds clamped lengths, as `valid_lengths` makes them.
    """
    rows, width = scores.shape
    ok = torch.empty(rows, dtype=torch.bool, device=indices.device)
    step = max(1, CHUNK // max(width, k, 1))
    slots = torch.arange(k, device=indices.device, dtype=torch.int32)
    columns = torch.arange(width, device=indices.device, dtype=torch.int32)
    for begin in range(0, rows, step):
        part = slice(begin, min(begin + step, rows))
        answer, length = indices[part], valid[part, None].to(torch.int32)
        real = slots < length
        fits = torch.where(real, (answer >= 0) & (answer < length), answer == -1).all(1)
        places = torch.where(real, answer, -1 - slots).sort(dim=1).values
        fits &= (places[:, 1:] != places[:, :-1]).all(1)
        if width:
            key = ordered(scores[part], ranking)
            chosen = key.gather(1, answer.clamp(0, width - 1).to(torch.int64))
            least = torch.where(real, chosen, GREATEST).amin(1, keepdim=True)
            above = ((key > least) & (columns < length)).sum(1)
            fits &= above == (real & (chosen > least)).sum(1)
        ok[part] = fits
    return ok


def explain(
    scores: torch.Tensor, valid: torch.Tensor, k: int, indices: torch.Tensor, row: int, ranking: str = "largest"
) -> str:
    """What is wrong with one row, for a failure message."""
    length, width = int(valid[row]), scores.shape[1]
    answer = indices[row].cpu()
    needed = min(length, k)
    given, rest = answer[:needed], answer[needed:]
    found = [f"row {row}: length {length}, k {k}, width {width}"]
    if (rest != -1).any():
        found.append(f"{int((rest != -1).sum())} of {rest.numel()} unused slots are not -1: {rest[rest != -1][:4]}")
    outside = (given < 0) | (given >= length)
    if outside.any():
        at = torch.nonzero(outside)[:4, 0].tolist()
        found.append(f"{int(outside.sum())} positions out of range, at slots {at}: {given[outside][:4].tolist()}")
    if given.unique().numel() != needed:
        found.append(f"{needed - given.unique().numel()} positions repeat others")
    if width and not outside.any() and needed:
        key = ordered(scores[row, :length].cpu(), ranking)
        chosen = key[given.long()]
        above, got = int((key > chosen.min()).sum()), int((chosen > chosen.min()).sum())
        if above != got:
            found.append(f"{above} scores exceed the least selected one, {got} of them are selected")
    return "; ".join(found)
