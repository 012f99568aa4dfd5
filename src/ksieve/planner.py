"""The planner: from host-known facts to a `Plan`, as pure data with a reason in words.

Nothing here touches a device. The same facts always give the same plan, so a plan can be made before CUDA
graph capture, compared, printed and tested on a machine without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ksieve import arguments
from ksieve.errors import ArgumentError, shown
from ksieve.guess import LARGEST_STRIDE, rank_of
from ksieve.policy import PAPER_64, PAPER_128, SamplingPolicy, resolve_policy
from ksieve.problem import Problem
from ksieve.stats import html_table


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Facts of a device that decisions may use; sizes in bytes."""

    kind: str
    name: str = "cpu"
    index: int = 0
    capability: tuple[int, int] = (0, 0)
    sm_count: int = 0
    shared_per_sm: int = 0
    shared_per_block: int = 0
    l2_bytes: int = 0
    threads: int = 1


CPU = DeviceInfo("cpu")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything fixed before a run: family, geometry, sampling policy, storage, and why.

    Attributes
    ----------
    problem : Problem
        Shape the plan was made for. `rows` is a capacity: fewer live rows may be run.
    device : DeviceInfo
    family : str
        Kernel family: "cpu" or one of the CUDA families.
    policy : SamplingPolicy or None
        How boundaries are proposed; None is the direct-exact route.
    capacity : int
        Candidates each worker can hold, whatever the data. A frontier beyond it is scanned again on CUDA; on the CPU
        the best of it are kept.
    held : int
        Rows up to this length stay on chip in the direct-exact route.
    splits : int
        Workers per row.
    ctas : int
        Thread blocks launched (CUDA) or 0.
    threads : int
        Threads per block (CUDA) or worker threads (CPU).
    ctas_per_sm : int
        Blocks meant to be resident on one multiprocessor (CUDA): the register budget follows from it.
    shared_capacity : int
        Of `capacity`, the candidates held in shared memory (CUDA); the rest is bounded global spill.
    stages : int
        Loads of 16 bytes that each thread keeps in flight (CUDA).
    beside : int
        Further ones that a row which stays on chip needs (CUDA).
    registers : bool
        Whether the scores of such a row stay in registers (CUDA).
    columns : int
        Further candidates that each thread holds in shared memory for itself (CUDA).
    workspace_bytes : int
        Bytes a caller-owned workspace needs; fixed by the plan, never by the data.
    workspace_zeroed : int
        Leading bytes of it that must be zero before the first use; kernels leave them zero.
    lists_at : int
        Offset in the workspace, in bytes, of the lists that several thread blocks or launches share (CUDA).
    bands : tuple of Plan
        Launches in front of this plan's own, each for the rows that are no longer than what it keeps on chip, shorter
        ones first; empty if one launch serves all rows (CUDA). Not used with statistics.
    band : int or None
        Which of the launches that rows are dealt to by their length this plan is: the last has the rows that are too
        long for the others. None if rows are not dealt (CUDA).
    reason : str
        Why this family and these numbers, in words.
    """

    problem: Problem
    device: DeviceInfo
    family: str
    policy: SamplingPolicy | None
    capacity: int
    held: int = 0
    splits: int = 1
    ctas: int = 0
    threads: int = 0
    ctas_per_sm: int = 0
    shared_capacity: int = 0
    stages: int = 0
    beside: int = 0
    registers: bool = False
    columns: int = 0
    workspace_bytes: int = 0
    workspace_zeroed: int = 0
    lists_at: int = 0
    bands: tuple[Plan, ...] = field(default=(), hash=False)  # calls look plans up, and the rest tells them apart
    band: int | None = None
    reason: str = ""

    @property
    def spill_capacity(self) -> int:
        """Candidates per worker that live in the global workspace, past the shared array (CUDA)."""
        return self.capacity - self.shared_capacity

    def workspace(self, buffer: Any = None) -> Any:
        """Make the workspace that calls with this plan use on CUDA.

        Parameters
        ----------
        buffer : array of bytes, optional
            The caller's own device memory: at least `workspace_bytes`, 256-byte aligned, alive as long as the
            workspace is used. Allocated when omitted.

        Returns
        -------
        Workspace
            Zeroed where it has to be, on any stream. It serves one call at a time: make one per stream.

        Raises
        ------
        ArgumentError
            If the plan is not for a CUDA device.
        WorkspaceError
            If `buffer` is too small, misaligned or elsewhere.
        """
        from ksieve.backends import cuda

        return cuda.make_workspace(self, buffer)

    def prepare(self) -> Plan:
        """Compile and load what the plan needs on CUDA, so that its first call may be inside a graph capture.

        Returns the plan itself. A CPU plan needs no preparation.
        """
        if self.problem.device.kind == "cuda":
            from ksieve.backends import cuda

            cuda.prepare(self)
        return self

    def _facts(self) -> tuple[str, dict[str, str]]:
        """Title, and what there is to say below it."""
        p = self.problem
        title = f"{self.family} for {p.rows} x {p.width} {p.dtype} (pitch {p.pitch}), k={p.k}, on {self.device.name}"
        return title, {
            "policy": self.policy.name if self.policy else "direct",
            **({} if p.options.plain else {"options": str(p.options)}),
            "capacity": f"{self.capacity} candidates per worker",
            "geometry": f"{self.ctas or '-'} blocks x {self.threads} threads, {self.splits} per row",
            **{f"up to {b.held}": f"{b.family}, {b.ctas} blocks x {b.threads} threads" for b in self.bands},
            "workspace": f"{self.workspace_bytes} bytes",
            "reason": self.reason,
        }

    def __str__(self) -> str:
        title, facts = self._facts()
        room = max(10, *map(len, facts))
        return "\n".join([title, *(f"  {name:<{room}} {fact}" for name, fact in facts.items())])

    def _repr_html_(self) -> str:
        title, facts = self._facts()
        return html_table(title, ["", ""], facts.items())


def least_capacity(k: int, policy: SamplingPolicy | None) -> int:
    """Fewest candidates that a CPU worker stores of a long row: when half of them are dropped, k must stay, and room
    for as many sampled scores as the policy ranks.
    """
    ranks = [] if policy is None else [policy.primary_rank(k), policy.rescue_rank(k) or 0]
    return 2 * max([k, *ranks]) + 2


def candidate_capacity(width: int, k: int, policy: SamplingPolicy | None) -> int:
    """Candidates that a CPU worker stores: 4 k, or twice what a guess admits, or the row if it has no more scores.

    The boundary of a policy admits 2,048 where k is small, twice of which is the least with one. Room beyond that would
    not help ordinary rows, and is what others can make a worker fill.
    """
    guessed = LARGEST_STRIDE * rank_of(1 << 62, k, LARGEST_STRIDE, 0)
    return min(max(4 * k, 2 * guessed, 4096 if policy else 0, least_capacity(k, policy)), width)


def default_policy(width: int, k: int) -> SamplingPolicy | None:
    """Sampling policy of a row width: none where phase 1 cannot pay for itself.

    The paper's crossover (section "Sampled-Path Ablations"): exact localization wins up to 24K, results are
    mixed to 56K, both sampled policies win from 64K.
    """
    if width < 32_768 or 8 * k > width:
        return None
    return PAPER_64 if width < 131_072 else PAPER_128


def check_covers(plan: Plan, asked: Problem) -> None:
    """Refuse a call that the plan was not made for: it may bring less than planned, never more.

    Raises
    ------
    ArgumentError
        Names the plan's limit that the call exceeds.
    """
    made = plan.problem
    for name in ("rows", "width"):
        if getattr(asked, name) > getattr(made, name):
            raise ArgumentError("plan", f"{name} {getattr(asked, name)}", f"at most the planned {getattr(made, name)}")
    for name in ("dtype", "device"):
        if getattr(asked, name) != getattr(made, name):
            raise ArgumentError("plan", f"scores of {name} {getattr(asked, name)}", f"{name} {getattr(made, name)}")
    if asked.options is not made.options and (differing := arguments.difference(asked.options, made.options)):
        raise ArgumentError("plan", *differing)


def choose(
    problem: Problem,
    device: DeviceInfo,
    *,
    family: str | None = None,
    policy: SamplingPolicy | str | None = None,
    splits: int | None = None,
    kept: bool = True,
) -> Plan:
    """Choose a plan for a problem on a device.

    Parameters
    ----------
    problem : Problem
    device : DeviceInfo
    family : str, optional
        Force a kernel family instead of choosing one.
    policy : SamplingPolicy or str, optional
        Force a sampling policy; ``"direct"`` forces the direct-exact route.
    splits : int, optional
        CUDA family "split_sampled" only: force the CTAs per row.
    kept : bool
        Whether calls bring a workspace that stays what the call before left, as one made by `Plan.workspace` does.
        Others may have it zeroed each time, such as in a captured graph.

    Raises
    ------
    ArgumentError
        If the forced family does not exist on the device or cannot run the shape.
    """
    if device.kind == "cpu":
        if splits is not None:
            raise ArgumentError("splits", shown(splits), "nothing on a CPU device")
        return _choose_cpu(problem, device, family, policy)
    if device.kind == "cuda":
        from ksieve import planner_cuda

        return planner_cuda.choose(problem, device, family, policy, splits, kept)
    raise ArgumentError("device", device.kind, "'cpu' or 'cuda'")


def shared_bytes(plan: Plan) -> int:
    """Dynamic shared memory of a CUDA plan's kernel, in bytes."""
    from ksieve import planner_storage

    return planner_storage.shared_bytes(plan)


def _choose_cpu(problem: Problem, device: DeviceInfo, family: str | None, policy: SamplingPolicy | str | None) -> Plan:
    if family is not None and (not isinstance(family, str) or family != "cpu"):
        raise ArgumentError("family", shown(family), "'cpu' on a CPU device")
    forced = policy is not None
    chosen = resolve_policy(policy) if forced else default_policy(problem.width, problem.k)
    why = (
        "policy forced by the caller"
        if forced
        else (
            f"width {problem.width} is wide enough for a sampled boundary"
            if chosen
            else f"width {problem.width} is too short for a sampled boundary at k={problem.k}"
        )
    )
    return Plan(
        problem,
        device,
        "cpu",
        chosen,
        candidate_capacity(problem.width, problem.k, chosen),
        threads=device.threads,
        reason=f"rows in parallel on {device.threads} threads; {why}",
    )
