"""What a call with entries can ask for, as one table for every backend, and the arrays of a combination."""

from __future__ import annotations

import numpy as np

from cases import DTYPES, FAMILIES, POLICIES, scores_of

AXES: dict[str, tuple] = {
    "family": tuple(sorted(FAMILIES)),
    "dtype": DTYPES,
    "rows": (1, 2, 3),
    "width": (0, 1, 2, 17, 63, 64, 65, 300, 700),
    "pitched": (False, True),
    "k": (0, 1, 2, 7, 40),
    "block_size": (None, 2, 3, 8, 64, 256),
    "expand": (None, True, 2, 7),
    "tail": (False, True),
    "force_first": (None, 0, 1, 3),
    "force_last": (None, 1, 2),
    "forced_extra": (None, False, True),
    "bounds": (None, "lengths", "ends"),
    "length_dtype": ("int32", "int64"),
    "starts": (False, True),
    "index_base": (None, "row", "start"),
    "next_n": (1, 2, 3),
    "positions": (None, "positions", "block_table"),
    "ks": (False, True),
    "transform": (None, "offsets", "pages", "mapped"),
    "page_size": (1, 64),
    "sorted": (False, "value", "index"),
    "tie_break": (None, "low", "high"),
    "largest": (True, False),
    "nan": (None, "last", "highest"),
    "index_dtype": ("int32", "int64"),
    "outputs": ("new", "given", "pitched"),
    "live": (False, True),
    "fill": (None, True, False),
    "policy": POLICIES,
}
"""What a call with entries can ask for."""

AS_THEY_ARE = (
    "force_first",
    "force_last",
    "forced_extra",
    "sorted",
    "tie_break",
    "largest",
    "nan",
    "index_dtype",
    "fill",
)


def built(case, seed):
    """Scores, k and arguments of a combination. Where two options exclude each other, one of them gives way."""
    rng = np.random.default_rng(seed)
    block, next_n, width = case["block_size"], case["next_n"], case["width"]
    expand = (case["expand"] and block) if block else (2 if case["expand"] is True else case["expand"])
    if expand and not block and not case["tail"]:
        next_n = 1
    rows = case["rows"] * next_n

    def vector(count, low, high):
        return rng.integers(low, high + 1, count, dtype=np.int32)

    call = {name: case[name] for name in AS_THEY_ARE} | {"next_n": next_n, "block_size": block, "expand": expand}
    k = case["k"]
    if not case["forced_extra"]:
        k = max(k, (case["force_first"] or 0) + (case["force_last"] or 0))
    x = scores_of(case["family"], rows, width + 3, min(max(k, 1), width + 3), case["dtype"], seed % 7)[:, :width]
    x = x if case["pitched"] else np.ascontiguousarray(x)
    if expand and case["tail"]:
        unit = 1 if block else expand
        call["tail"] = vector(rows // next_n, -2, unit * (width + 1) + 2)
    if case["bounds"]:
        bounds = vector(rows // next_n, -1, width + 2)
        if case["length_dtype"] == "int64":  # numbers whose low half is another length
            bounds = bounds + rng.choice(np.array([0, 2**32, -(2**33), 2**62, -(2**62)]), len(bounds))
        call[case["bounds"]] = bounds
    if case["starts"]:
        call["starts"] = vector(rows, -1, width // 2 + 1)
    if case["positions"] and width and not block:
        blocks = width // (7 if width % 7 == 0 else 3 if width % 3 == 0 else 1)
        count = width if case["positions"] == "positions" else blocks
        held = np.stack([rng.permutation(3 * count + 1)[:count] for _ in range(rows)])
        call[case["positions"]] = np.where(held % 4 == 0, -1 - held, held).astype(np.int32)
    else:
        call["index_base"] = case["index_base"]
    if case["ks"]:
        call["ks"] = vector(rows, -1, k + 1)
    if case["transform"] == "offsets":
        call["offsets"] = vector(rows, -5, 5)
    elif case["transform"]:
        call |= {"page_table": vector(2 * 9, 0, 99).reshape(2, 9), "page_size": case["page_size"]}
        call |= {"row_to_request": vector(rows, -1, 2)} if case["transform"] == "mapped" else {}
    if case["live"]:
        call["live"] = int(rng.integers(0, rows + 1))
    return x, k, {name: value for name, value in call.items() if value is not None}


def columns_of(k, call):
    """Slots of a row, as the contract says."""
    expand = call.get("expand") or 1
    n = call.get("force_first", 0) + call.get("force_last", 0) if call.get("forced_extra") else 0
    return (k + n) * expand + (expand - 1 if "tail" in call else 0)
