"""Plans that a user asks to be compared with the planner's choice."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from ksieve.core.errors import ArgumentError
from ksieve.core.policy import SamplingPolicy
from ksieve.core.text import parse_json
from ksieve.planning import shapes
from ksieve.planning.plan import Plan
from ksieve.tuning.variants import Variant


def plans_of(text: str) -> list[Variant]:
    """Plans of a JSON list.

    An object of the list may hold ``name``, ``family``, ``threads``, ``ctas_per_sm``, ``resident_width``, and any other
    number of a `Plan`. Storage is derived anew. ``policy`` is a name, or an object of `SamplingPolicy` fields.
    ``tuned`` is a file of `ksieve tune` to plan with.

    Raises `ArgumentError` if the text is no JSON, or names an unknown family, policy or field.
    """
    try:
        listed = parse_json(text)
    except ValueError as error:
        raise ArgumentError("peers", repr(text[:80]), f"a JSON list of objects ({error})") from None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ArgumentError("peers", repr(text[:80]), "a JSON list of objects")
    return [_variant(dict(item)) for item in listed]


def _variant(item: dict[str, Any]) -> Variant:
    shown = json.dumps(item, separators=(",", ":")).replace('"', "")
    name, family, policy = item.pop("name", shown), item.pop("family", None), item.pop("policy", None)
    if isinstance(policy, dict):
        try:
            named: dict[str, Any] = {"name": "forced"} | policy
            policy = SamplingPolicy(**named)
        except TypeError as error:
            raise ArgumentError("peers", f"policy {policy}", f"fields of SamplingPolicy ({error})") from None
    geometry = {key: item.pop(key) for key in ("threads", "ctas_per_sm", "resident_width") if key in item}
    if geometry and family not in shapes.families():
        raise ArgumentError("peers", f"{geometry} without a family", f"a family: {list(shapes.families())}")
    shapes_file = item.pop("tuned", "")
    if not isinstance(shapes_file, str):
        raise ArgumentError("peers", f"tuned: {shapes_file!r}", "the name of a file of `ksieve tune`")
    known = {f.name for f in fields(Plan)}
    for key, value in item.items():
        if key not in known or not isinstance(value, int):
            raise ArgumentError("peers", f"{key}: {value!r}", f"a number of a plan, one of {sorted(known)}")
    return Variant(name, family, policy, tuple(geometry.items()), tuple(item.items()), shapes_file)
