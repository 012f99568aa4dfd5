"""Plans to compare with the planner's choice: forced families, policies, splits, and other launch shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ksieve import api
from ksieve.core.device import DeviceInfo
from ksieve.core.errors import BackendError
from ksieve.core.policy import SamplingPolicy
from ksieve.planning import tuned
from ksieve.planning.length_bins import launches
from ksieve.planning.memory import with_workspace
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import Geometry, Shapes

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
    changes: tuple[tuple[str, int], ...] = ()
    shapes_file: str = ""

    def plan(self, rows: int, width: int, k: int, dtype: str, device: DeviceInfo) -> Plan:
        """Make the plan; `geometry` (threads, ctas_per_sm, ...) changes its storage too, `changes` does not."""
        asked: dict[str, Any] = {"rows": rows, "width": width, "k": k, "dtype": dtype, "device": device}
        with ExitStack() as stack:
            for known in {tuned.shapes_of(device), tuned.shapes_of(device, dtype)}:
                stack.enter_context(tuned.replaced(known, self._shapes(known, device)))
            plan = api.plan(**asked, family=self.family, policy=self.policy)
        changes: dict[str, Any] = dict(self.changes)
        if "splits" in changes and plan.family == "stream_split":
            changes.setdefault("ctas", rows * changes["splits"])
        return with_workspace(replace(plan, **changes)) if changes else plan

    def _shapes(self, known: Shapes, device: DeviceInfo) -> Shapes:
        """Launch shapes that replace known ones: the file's, with the fields of `geometry`."""
        path = Path(self.shapes_file).expanduser()
        if self.shapes_file and tuned.dtype_of(path) in (known.dtype, None):
            known = tuned.with_parts(known, tuned.read(path, device, known.dtype), device, path.name)
        family, changes = self.family, dict[str, Any](self.geometry)
        if not changes or family is None:
            return known  # itself: what is computed for it is kept
        others: dict[str, Any] = {}
        for part in ("usual", "roomy", "resident", "streamed"):
            of = getattr(known, part)
            if isinstance(found := of.get(family), Geometry):
                others[part] = of | {family: replace(found, **changes)}
            elif found is not None:
                others[part] = of | {family: tuple(replace(shape, **changes) for shape in found)}
        return replace(known, **others)


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
    found: dict[KernelSpec, Cubin | BackendError] = {}
    for spec, made in cache.compile_all(specs):
        found[spec] = made if isinstance(made, BackendError) else made[0]
        progress(len(found), len(specs))
    return found
