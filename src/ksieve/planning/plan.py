"""`Plan`: everything fixed before a run, as data.

A plan holds no device resource. It can be made before a CUDA graph is captured, compared, printed and tested on a
machine without a GPU. Its methods reach a device through `ksieve.core.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ksieve.core import registry
from ksieve.core.device import DeviceInfo
from ksieve.core.policy import SamplingPolicy
from ksieve.core.problem import Problem
from ksieve.core.stats import html_table
from ksieve.core.text import bytes_text
from ksieve.planning.cost import Cost, cost_of

FORCED = "forced by the caller"
"""In the reason of a plan whose family or policy is not the planner's choice."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything fixed before a run: kernel family, geometry, sampling policy, storage, and the reason.

    Attributes
    ----------
    problem : Problem
        Problem the plan was made for. A call may have fewer rows, and a smaller width.
    device : DeviceInfo
    family : str
        Kernel family: "cpu" or one of the CUDA families.
    policy : SamplingPolicy or None
        Sampling policy; None takes the direct-exact route.
    capacity : int
        Candidates that each worker stores at most. On CUDA, the row of a larger frontier is scanned again; on the CPU
        the worst candidates are dropped.
    resident_width : int
        Rows up to this length stay on chip and are read once, in scores; 0: none do.
    splits : int
        Workers per row; CTAs on CUDA.
    ctas : int
        CTAs launched (CUDA) or 0.
    threads : int
        Threads per CTA (CUDA) or worker threads (CPU).
    ctas_per_sm : int
        CTAs meant to be resident on one multiprocessor (CUDA): the register budget follows from it.
    shared_capacity : int
        Of `capacity`, the candidates held in shared memory (CUDA); the rest is bounded global spill.
    stages : int
        Loads of 16 bytes that each thread keeps in flight (CUDA).
    overflow_vectors : int
        Further loads that each thread needs for a resident row larger than the ring (CUDA).
    columns : int
        Candidates in each thread's own list in shared memory, besides `shared_capacity` (CUDA).
    workspace_bytes : int
        Bytes that a caller-owned workspace needs; they depend on the plan, not on the data.
    workspace_zeroed : int
        Number of its first bytes that must be zero before the first use; kernels leave them zero.
    lists_at : int
        Offset in the workspace, in bytes, of the lists that several CTAs or launches share (CUDA).
    bins : tuple of Plan
        Launches before this plan's own, one for each bin of shorter rows, shortest first; empty if one launch serves
        all rows (CUDA). Not used with statistics.
    bin : int or None
        Number of this launch's bin of rows by length; the last bin has the rows that are too long for the others. None
        if rows are not binned (CUDA).
    reason : str
        Why this family and these numbers were chosen.
    """

    problem: Problem
    device: DeviceInfo
    family: str
    policy: SamplingPolicy | None
    capacity: int
    resident_width: int = 0
    splits: int = 1
    ctas: int = 0
    threads: int = 0
    ctas_per_sm: int = 0
    shared_capacity: int = 0
    stages: int = 0
    overflow_vectors: int = 0
    columns: int = 0
    workspace_bytes: int = 0
    workspace_zeroed: int = 0
    lists_at: int = 0
    bins: tuple[Plan, ...] = field(default=(), hash=False)  # unhashed for fast lookups; == compares it
    bin: int | None = None
    reason: str = ""

    @property
    def passes_on(self) -> bool:
        """Whether warps list the rows of a second launch: true of the plan, and of the first launch (CUDA)."""
        return self.bin is not None and (self.bins[0].family if self.bins else self.family) == "register_warp"

    @property
    def cost(self) -> Cost | None:
        """Estimated time on a GPU; None on a CPU, of a forced family or policy, and if the bandwidth is not known.

        Its attributes are `us`, microseconds; `of_plain_read`, the speed as a share of a plain read's; `source`, which
        is "measured", "interpolated", "bandwidth" (measured on another card) or "read" (a lower bound); `measured_on`,
        that card; and `k`, of the measured shapes.
        """
        return None if FORCED in self.reason else cost_of(self.problem, self.device)

    @property
    def spill_capacity(self) -> int:
        """Candidates per worker in the global workspace, past those in shared memory (CUDA)."""
        return self.capacity - self.shared_capacity

    def workspace(self, buffer: Any = None) -> Any:
        """Make a workspace for calls with this plan on CUDA.

        Parameters
        ----------
        buffer : array of bytes, optional
            Device memory of the caller: contiguous, at least `workspace_bytes` bytes, 256-byte aligned. The workspace
            keeps a reference to it. Default: allocated from the array library in use, else from the driver.

        Returns
        -------
        Workspace
            Its first `workspace_zeroed` bytes are zero on return, as seen from every stream. It serves one call at a
            time: make one per stream.

        Raises
        ------
        ArgumentError
            If the plan is not for a CUDA device.
        WorkspaceError
            If `buffer` is too small, misaligned or elsewhere.
        """
        return registry.backend(self.problem.device.kind).make_workspace(self, buffer)

    def prepare(self) -> Plan:
        """Compile and load the plan's CUDA kernels, so that its first call may be inside a graph capture.

        Has no effect on a CPU plan.

        Returns
        -------
        Plan
            The plan itself.

        Raises
        ------
        ArgumentError
            If the plan was made for another GPU model.
        BackendError
            If the kernels cannot be compiled or loaded here.
        """
        registry.backend(self.problem.device.kind).prepare(self)
        return self

    def __str__(self) -> str:
        title, facts = facts_of(self)
        room = max(10, *map(len, facts))
        return "\n".join([title, *(f"  {name:<{room}} {fact}" for name, fact in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = facts_of(self)
        return html_table(title, ["", ""], facts.items())


def facts_of(plan: Plan) -> tuple[str, dict[str, str]]:
    """Title of a plan, and the facts that are listed below it, by name."""
    p, cost = plan.problem, plan.cost
    pitch = "" if p.pitch == p.width else f" (pitch {p.pitch:,})"
    title = f"{plan.family} for {p.rows:,} x {p.width:,} {p.dtype}{pitch}, k={p.k:,}, on {plan.device.name}"
    shared = "a warp per row" if plan.family == "register_warp" else f"{plan.splits} per row"
    ctas = f"{plan.ctas:,} CTAs x " if plan.ctas else ""
    return title, {
        **({} if cost is None else {"cost": cost.text(p)}),
        "policy": plan.policy.name if plan.policy else "direct",
        **({} if p.options.plain else {"options": str(p.options)}),
        "capacity": f"{plan.capacity:,} candidates per worker",
        "geometry": f"{ctas}{plan.threads:,} threads, {shared}",
        **{f"up to {b.resident_width:,}": f"{b.family}, {b.ctas:,} CTAs x {b.threads:,} threads" for b in plan.bins},
        "workspace": bytes_text(plan.workspace_bytes),
        "reason": plan.reason,
    }
