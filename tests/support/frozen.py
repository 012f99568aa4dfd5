"""Launch shapes that do not change: what tests of the planner's rules are about, whatever numbers are shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ksieve import dispatch
from ksieve.planning import plan_text, shapes, tuned

FROZEN = json.loads((Path(__file__).parent.parent / "data" / "launch-shapes.json").read_text(encoding="utf-8"))


@contextmanager
def frozen_shapes() -> Iterator[None]:
    """Plan with the launch shapes of ``tests/data/launch-shapes.json`` on every device of their class.

    16-bit scores take those of float32 scores.
    """
    read = shapes._read

    def frozen(name: str) -> dict[str, Any]:
        facts = FROZEN if name.endswith("-float32") else read(name)
        measured = {card: {"float32": files["float32"]} for card, files in facts.get("measured", {}).items()}
        return facts | ({"measured": measured} if measured else {})

    shapes._read = frozen
    _forget()
    try:
        yield
    finally:
        shapes._read = read
        _forget()


def _forget() -> None:
    for cached in (shapes._of_class, shapes.of, tuned._shapes_of, dispatch._choose, plan_text.decode_plan):
        cached.cache_clear()
