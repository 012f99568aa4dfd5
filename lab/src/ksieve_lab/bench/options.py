"""The cost of every serving option: a call with it against the plain call, on the same tensors in the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ksieve.planning.plan import Plan
from ksieve.tuning import tasks
from ksieve.tuning.tasks import Task
from ksieve_lab.bench import calls, floor, gpu
from ksieve_lab.bench.gpu import Case, Here
from ksieve_lab.bench.runner import Facts, Settings

PAGE_SIZE = 64
SHORT = 8
"""Width of a matrix over its longest row."""

TOKENS = 2
PLAIN = "plain"

Keywords = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """An option to time: parts of its arguments, or what makes them, and what makes its scores of the plain call's."""

    name: str
    parts: Sequence[Keywords | Callable[[Task], Keywords]] = ()
    scores: Callable[[Any], Any] = lambda matrix: matrix

    def keywords(self, task: Task) -> Keywords:
        """Make the arguments that ask for it; none if the task has no room for it."""
        found: Keywords = {}
        for part in self.parts:
            found |= part(task) if callable(part) else part
        return found


def _starts(task: Task) -> Keywords:
    import torch

    # Every residue of a 16-byte boundary; windows stay as long as the lengths allow.
    starts = torch.arange(task.rows, dtype=torch.int32, device=task.lengths.device) % 7
    return {
        "starts": torch.minimum(starts, (task.lengths - task.k).clamp(min=0)),
        "ends": task.lengths,
        "lengths": None,
    }


def _tokens(task: Task) -> Keywords:
    lengths = task.lengths[TOKENS - 1 :: TOKENS].contiguous()
    return {"next_n": TOKENS, "lengths": lengths} if task.rows % TOKENS == 0 else {}


def _pages(task: Task) -> Keywords:
    import torch

    # A table that maps every page to itself is read like any other, and leaves positions that can be verified.
    pages = torch.arange(-(-task.width // PAGE_SIZE), dtype=torch.int32, device=task.lengths.device)
    return {"page_table": pages.repeat(task.rows, 1), "page_size": PAGE_SIZE}


def _short(task: Task) -> Keywords:
    # As in the matrix of an engine, which is as wide as the longest row that it takes.
    return {"lengths": task.lengths.clamp(max=task.width // SHORT)} if task.width >= SHORT else {}


OPTIONS = (
    Option(PLAIN),
    Option("windows", [_starts]),
    Option("next_n", [_tokens]),
    Option("k per row", [lambda task: {"k": task.lengths.new_full((task.rows,), task.k), "max_k": task.k}]),
    Option("page table", [_pages]),
    Option("page table and raw", [_pages, {"raw": True}]),
    Option("offsets", [lambda task: {"offsets": task.lengths.new_zeros(task.rows)}]),
    Option("values", [{"values": True}]),
    Option("int64", [{"index_dtype": "int64"}]),
    Option("tie-break", [{"tie_break": "low"}]),
    Option("by index", [{"sorted": "index"}]),
    Option("by value", [{"sorted": True, "values": True}]),
    Option("deterministic", [{"deterministic": True}]),
    Option("overlap", [{"overlap": True}]),
    # Negated, so that the same positions are selected.
    Option("smallest", [{"largest": False}], lambda matrix: -matrix),
    Option("NaN highest", [{"nan": "highest"}]),
    Option("int64 lengths", [lambda task: {"lengths": task.lengths.long()}]),
    # Of the first row's scores, which stay in L2.
    Option("pitch 0", [lambda task: {"lengths": task.lengths}], lambda matrix: matrix[:1].expand_as(matrix)),
    # Planned for the matrix, and for the columns that a host knows to hold all rows.
    Option("short rows", [_short]),
    Option("short rows, bounded", [_short], lambda matrix: matrix[:, : matrix.shape[1] // SHORT]),
    Option("windows, pages, deterministic", [_starts, _pages, {"deterministic": True}]),
)


KNOWN = {option.name: option for option in (*OPTIONS, Option("blocks of 8", [{"block_size": 8}]))}


def cases(settings: Settings) -> list[Case]:
    """Shapes; ``--only`` is about options, of which the plain call is the first."""
    chosen, how = tuple(dict.fromkeys((PLAIN, *settings.chosen(o.name for o in OPTIONS)))), settings.shapes.how
    return [Case(rows, width, settings.k, settings.dtype, how, calls=chosen) for rows, width in settings.shapes.items]


def asked(case: Case, task: Task) -> Iterator[tuple[str, Keywords, list[Any]]]:
    """Options that a task has room for: name, arguments of the call, and its scores."""
    for option in map(KNOWN.__getitem__, case.calls):
        keywords = option.keywords(task)
        if option.name == PLAIN or keywords:
            whole = {"lengths": task.lengths, "k": case.k} | keywords
            yield option.name, whole, [option.scores(matrix) for matrix in task.matrices]


def plans(case: Case, here: Here) -> Iterator[Callable[[], Plan]]:
    """Plans of all calls, from scores without memory."""
    import torch

    empty = torch.empty(case.rows, case.width, device="meta")
    for _, keywords, own in asked(case, Task([empty], gpu.lengths_of(case, here.settings.seed), case.k)):
        yield partial(calls.plan_of, case.rows, own[0].shape[1], case.k, case.dtype, here.device, keywords)


def results(found: Sequence[Facts], settings: Settings) -> Facts:
    """Facts of every shape, and of every option the mean of its times over the plain call's."""
    ratios: dict[str, list[float]] = {}
    for shape in found:
        for name, facts in shape.get("selectors", {}).items():
            if "of_plain" in facts:
                ratios.setdefault(name, []).append(facts["of_plain"])
    means = {
        name: {"geometric_mean": gpu.mean_of(values)["geometric_mean"], "most": max(values), "shapes": len(values)}
        for name, values in ratios.items()
    }
    return {"shapes": list(found), "of_plain": means}


def measure(case: Case, here: Here) -> Facts:
    """Time the plain call and every option on one shape; ``of_plain`` is a median over the plain call's."""
    facts: Facts = {"rows": case.rows, "width": case.width, **case.names}
    task = gpu.filled(case, here)
    if isinstance(task, str):
        return facts | {"skipped": task}
    matrices, lengths, (rows, width, k, dtype) = task.matrices, task.lengths, case.ask
    contenders, planned = [], {}
    fewest = tasks.valid_scores(lengths, width)  # that an option's call reads: those of short rows fit L2
    for name, keywords, own in asked(case, task):
        bounds = keywords.get("ends") if keywords["lengths"] is None else keywords["lengths"]
        fewest = min(fewest, tasks.valid_scores(bounds, width))
        planned[name] = plan = calls.plan_of(rows, own[0].shape[1], k, dtype, here.device, keywords)
        contenders.append(calls.contender(name, plan, own, keywords))
    reads = floor.contenders(list(matrices), lengths, here.device)
    read_bytes = fewest * matrices[0].element_size()
    read, selectors = gpu.timed(reads, contenders, len(matrices), read_bytes, rounds=here.settings.rounds)
    plain = selectors.get(PLAIN, {}).get("median_us")
    for name, found in selectors.items():
        found |= gpu.plan_facts(planned[name])
        if plain and "median_us" in found:
            found["of_plain"] = found["median_us"] / plain
    return facts | read | {"selectors": selectors}
