"""Plans to compare with the planner's choice: forced families, policies, splits, and other launch shapes."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.policy import SamplingPolicy
from ksieve.core.text import parse_json
from ksieve.planning import shapes, tuned
from ksieve.planning.length_bins import launches
from ksieve.planning.memory import with_workspace
from ksieve.planning.plan import Plan

if TYPE_CHECKING:
    from ksieve.backends.cuda.jit.compile import Cubin
    from ksieve.backends.cuda.jit.spec import KernelSpec


@dataclass(frozen=True)
class Variant:
    """A plan to compare with the planner's choice: forced family and policy, and replaced fields of the plan."""

    name: str
    family: str | None = None
    policy: SamplingPolicy | str | None = None
    geometry: tuple[tuple[str, int], ...] = ()
    changes: tuple[tuple[str, int], ...] = field(default=())
    shapes_file: str = ""

    def plan(self, rows: int, width: int, k: int, dtype: str, device: DeviceInfo) -> Plan:
        """Make the plan; `geometry` (threads, ctas_per_sm, ...) changes its storage too, `changes` does not."""
        asked: dict[str, Any] = {"rows": rows, "width": width, "k": k, "dtype": dtype, "device": device}
        with ExitStack() as stack:
            stack.enter_context(planned_with(self.shapes_file))
            for known in {tuned.shapes_of(device), tuned.shapes_of(device, dtype)}:
                stack.enter_context(_geometry(known, self.family, dict(self.geometry)))
            plan = api.plan(**asked, family=self.family, policy=self.policy)
        changes: dict[str, Any] = dict(self.changes)
        if "splits" in changes and plan.family == "stream_split":
            changes.setdefault("ctas", rows * changes["splits"])
        return with_workspace(replace(plan, **changes)) if changes else plan


PLANNED = Variant("ksieve")


def compile_plans(
    plans: Iterable[Plan], progress: Callable[[int, int], None]
) -> dict[KernelSpec, Cubin | BackendError]:
    """Compile the kernels of plans on all processors, so that no measurement waits for one.

    `progress`: called as ``progress(kernels done, kernels in all)``. Returns each specialisation with its compiled
    kernel, or with the error of its compilation.
    """
    from ksieve.backends.cuda.jit import cache
    from ksieve.backends.cuda.jit.spec import kernel_spec

    specs = dict.fromkeys(kernel_spec(launch) for plan in plans for launch in launches(plan))
    found = {}
    for spec, made in cache.obtain_all(specs):
        found[spec] = made
        progress(len(found), len(specs))
    return found


@contextmanager
def planned_with(path: str) -> Iterator[None]:
    """Plan with a file of `ksieve tune` for a while."""
    before = os.environ.get(tuned.VARIABLE)
    if path:
        os.environ[tuned.VARIABLE] = path
    try:
        yield
    finally:
        if path and before is None:
            del os.environ[tuned.VARIABLE]
        elif path and before is not None:
            os.environ[tuned.VARIABLE] = before


@contextmanager
def _geometry(known: shapes.Shapes, family: str | None, changes: Mapping[str, Any]) -> Iterator[None]:
    """Plan with other launch shapes of a family for a while; the planner knows them as tables alone."""
    if not changes or family is None:
        yield
        return
    one = {p: getattr(known, p) for p in ("usual", "roomy") if family in getattr(known, p)}
    several = {p: getattr(known, p) for p in ("resident", "streamed") if family in getattr(known, p)}
    others: dict[str, Any] = {part: {**of, family: replace(of[family], **changes)} for part, of in one.items()} | {
        part: {**of, family: tuple(replace(shape, **changes) for shape in of[family])} for part, of in several.items()
    }
    with tuned.replaced(known, replace(known, **others)):
        yield


def variants_of(families: Sequence[str | None], policies: Sequence[str | None], text: str | None) -> list[Variant]:
    """Variants asked for: every family with every policy, then those of a JSON list.

    An object of the list may hold ``name``, ``family``, ``policy`` (a name, or an object of `SamplingPolicy` fields),
    ``threads``, ``ctas_per_sm`` and ``resident_width`` (storage is derived anew), ``tuned`` (a file of `ksieve tune`
    that it is planned with), and any other number of a `Plan`.

    Raises `ArgumentError` if the text is no JSON, or names an unknown family, policy or field.
    """
    found = []
    if families or policies:
        for family, policy in itertools.product(families or [None], policies or [None]):
            found.append(Variant(" ".join(filter(None, (family, policy))), family, policy))
    if text is None:
        return found
    try:
        listed = parse_json(text)
    except ValueError as error:
        raise ArgumentError("--variants", repr(text[:80]), f"a JSON list of objects ({error})") from None
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ArgumentError("--variants", repr(text[:80]), "a JSON list of objects")
    return found + [_variant(dict(item)) for item in listed]


def _variant(item: dict[str, Any]) -> Variant:
    shown = json.dumps(item, separators=(",", ":")).replace('"', "")
    name, family, policy = item.pop("name", shown), item.pop("family", None), item.pop("policy", None)
    if isinstance(policy, dict):
        try:
            named: dict[str, Any] = {"name": "forced"} | policy
            policy = SamplingPolicy(**named)
        except TypeError as error:
            raise ArgumentError("--variants", f"policy {policy}", f"fields of SamplingPolicy ({error})") from None
    geometry = {key: item.pop(key) for key in ("threads", "ctas_per_sm", "resident_width") if key in item}
    if geometry and family not in shapes.families():
        raise ArgumentError("--variants", f"{geometry} without a family", f"a family: {list(shapes.families())}")
    shapes_file = item.pop("tuned", "")
    if not isinstance(shapes_file, str):
        raise ArgumentError("--variants", f"tuned: {shapes_file!r}", "the name of a file of `ksieve tune`")
    known = {f.name for f in fields(Plan)}
    for key, value in item.items():
        if key not in known or not isinstance(value, int):
            raise ArgumentError("--variants", f"{key}: {value!r}", f"a number of a plan, one of {sorted(known)}")
    return Variant(name, family, policy, tuple(geometry.items()), tuple(item.items()), shapes_file)
