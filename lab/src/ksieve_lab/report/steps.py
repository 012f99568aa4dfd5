"""Picture of the guide: the five steps of a call with blocks, forced entries, expansion and a tail, on one row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ksieve import api
from ksieve_lab.report import figures

NAME = "blocks-steps"

ROW, BLOCK = (5, 1, 7, 7, 2, 9, 0, 3, 4, 1, 6), 3
CALL: dict[str, Any] = {"k": 2, "block_size": BLOCK, "force_last": 1, "expand": True, "sorted": "index"}
"""The call that is drawn, but for its ``tail``, the length of the row."""

_GAP = 0.35


def draw(stem: str | os.PathLike[str]) -> list[Path]:
    """Draw the steps, each from what ksieve answers; returns the files written."""
    row, tail = np.array([ROW], np.float32), np.array([len(ROW)], np.int32)
    entries = len(ROW) // BLOCK
    best = row[0, : entries * BLOCK].reshape(entries, BLOCK).max(1)
    forced = entries - CALL["force_last"]
    found = api.topk(row, tail=tail, **CALL)[0].tolist()
    chosen = sorted({position // BLOCK for position in found} & set(range(entries)))
    ends = [position for position in found if position // BLOCK == entries]
    with figures.canvas(size=(9.2, 3.7)) as (fig, axes):
        axes.set_axis_off()

        def cell(x: float, y: int, text: object, width: float = 1.0, colour: str | None = None) -> None:
            from matplotlib.patches import Rectangle

            axes.add_patch(
                Rectangle(
                    (x, y - 0.36), width, 0.72, facecolor=colour or figures.CARD, edgecolor=figures.MUTED, linewidth=0.9
                )
            )
            ink = {"color": figures.CARD if colour else figures.INK, "weight": "bold" if colour else "normal"}
            axes.text(x + width / 2, y, str(text), ha="center", va="center", **ink)

        def place(position: int) -> float:
            return position + _GAP * (position // BLOCK)

        blue, red, green = (figures.PALETTE[name] for name in ("blue", "vermilion", "green"))
        for position, score in enumerate(ROW):
            cell(place(position), 5, score)
        for block, score in enumerate(best):
            x = place(block * BLOCK)
            marks = {4: None, 3: red if block >= forced else None}
            marks[2] = blue if block in chosen and block < forced else marks[3]
            for y, colour in marks.items():
                cell(x, y, f"{score:g}" if y > 2 else f"block {block}", BLOCK, colour)
        for slot, position in enumerate(found):
            colour = green if position in ends else red if position // BLOCK >= forced else blue
            cell(slot, 0 if position in ends else 1, position, colour=colour)
            if position not in ends:
                cell(slot, 0, position)
        told = {
            5: ("scores", f"a row of {len(ROW)}, block_size={BLOCK}"),
            4: ("1  pool", "the best score of each block, by one read"),
            3: ("2  force", "force_last=1: above all others"),
            2: ("3  select", "the best of the others: k=2, the forced one inside"),
            1: ("4  expand", "expand=True: the positions of each entry"),
            0: ("5  tail", "tail=: positions behind the last whole entry"),
        }
        for y, (name, what) in told.items():
            axes.text(-0.4, y, name, ha="right", va="center", weight="bold")
            axes.text(place(len(ROW)) + 0.3, y, what, ha="left", va="center", color=figures.MUTED, fontsize=8.5)
        axes.set_xlim(-2.4, place(len(ROW)) + 8.6)
        axes.set_ylim(-0.6, 5.6)
        return figures.save(fig, stem)
