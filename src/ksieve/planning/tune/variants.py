"""Plans to compare with the planner's choice: forced families, policies, splits, and other launch shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import BackendError
from ksieve.core.policy import SamplingPolicy
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
