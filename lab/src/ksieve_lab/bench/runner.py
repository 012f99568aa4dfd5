"""One runner for all benches: a bench is an entry of a table, and the options are the same for every bench.

`Bench.read` turns options as they are written into the `Settings` of a run, and refuses an option that the bench has no
use for. `by_case` measures a bench case by case; a bench that is more than a list of cases has a function of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError, BackendError
from ksieve.core.paths import read_utf8
from ksieve.core.policy import resolve_policy
from ksieve.core.problem import check_k
from ksieve.planning.plan import Plan
from ksieve.planning.shapes import families
from ksieve.tuning import tasks
from ksieve.tuning.variants import Variant
from ksieve_lab.bench import record
from ksieve_lab.bench.scores import check_source
from ksieve_lab.bench.shape_lists import Listed, Reader, matrices, words
from ksieve_lab.bench.variants import plans_of

Facts = dict[str, Any]
Progress = Callable[[int, int], None]
Tell = Callable[[Facts], None]

OPTIONS = ("shapes", "only", "k", "dtype", "scores", "peers", "rounds", "seed", "against")
"""Options that a bench may have a use for."""


def _silent(description: str, unit: str) -> AbstractContextManager[Progress]:
    return contextlib.nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Live:
    """What becomes known while a bench runs.

    ``phase(description, unit)`` begins a phase, and yields what its progress is told. `each` is called with the facts
    of every case as it is done, `save` with a payload that is not complete yet.
    """

    phase: Callable[[str, str], AbstractContextManager[Progress]] = _silent
    each: Tell | None = None
    save: Tell = lambda payload: None


SILENT = Live()


@dataclass(frozen=True)
class Bench:
    """An entry of the table of benches.

    `name` is as the user writes it, `line` says what is measured. ``cases(settings)`` lists it, without a device;
    ``measure(settings, live)`` returns the payload of a result file, or None on all ranks but the first. `stem` is the
    name of that file, with fields of `Settings.stem`, and `kind` its bench, where that is not the name. `figures`:
    results have some.

    `shapes` to `against` are defaults of options, as a user would write them; None: the bench has no use for one.
    `reader` reads ``--shapes``, `source` refuses ``--scores`` that the bench cannot make, `several` says that
    ``--dtype`` may be a list, and `others` reads ``--peers``. These are names of other libraries, None for all, and
    plans of our own. `torch_rounds`: timed rounds of ``torch.topk``, which is slow; 0 times it only where it is asked
    for by name. `fixed`: what else the bench has decided.
    """

    name: str
    line: str
    cases: Callable[[Settings], Sequence[Any]]
    measure: Callable[[Settings, Live], Facts | None]
    stem: str
    shapes: str | None = ""
    only: str | None = ""
    k: int | None = 2048
    dtype: str | None = "float32"
    scores: str | None = "endpoint"
    peers: str | None = "all"
    rounds: int | None = 7
    seed: int | None = 0
    against: str | None = None
    reader: Reader = matrices
    source: Callable[[str], object] = check_source
    several: bool = False
    others: Callable[[str], tuple[list[str] | None, list[Variant]]] = lambda text: libraries(text)
    torch_rounds: int = 0
    figures: bool = True
    kind: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def read(self, **asked: Any) -> Settings:
        """Settings of a run, from options as they are written; None leaves one to the table.

        Raises `ArgumentError` if the bench has no use for an option, or cannot use its value.
        """
        for name, value in asked.items():
            if value is not None and getattr(self, name) is None:
                raise ArgumentError(name, value, f"nothing in bench {self.name}, which has no use for it")
        taken = {name: getattr(self, name) if asked.get(name) is None else asked[name] for name in OPTIONS}
        if taken["k"] is not None:
            check_k(taken["k"])
        if taken["rounds"] is not None and taken["rounds"] < 1:
            raise ArgumentError("rounds", taken["rounds"], "an int of at least 1")
        dtypes, most = words(taken["dtype"] or ""), len(SCORE_DTYPES) if self.several else 1
        if taken["dtype"] is not None and (set(dtypes) - set(SCORE_DTYPES) or not 0 < len(dtypes) <= most):
            takes = f"{'some' if self.several else 'one'} of {', '.join(SCORE_DTYPES)}"
            raise ArgumentError("dtype", repr(taken["dtype"]), takes)
        if taken["scores"] is not None:
            try:
                self.source(taken["scores"])
            except ArgumentError as error:
                raise ArgumentError("scores", error.got, error.takes) from None
        peers, variants = self.others(taken["peers"]) if taken["peers"] is not None else ([], [])
        torch_rounds = self.torch_rounds or int("torch.topk" in (peers or ()))
        listed = self.reader(taken["shapes"]) if taken["shapes"] is not None else Listed(())
        settings = Settings(
            self, listed, taken["only"] or "", taken["k"] or 0, tuple(dtypes), taken["scores"] or "", peers,
            tuple(variants), taken["rounds"] or 0, torch_rounds, taken["seed"] or 0, taken["against"] or "",
        )  # fmt: skip
        self.cases(settings)  # refuses what cannot be measured
        return settings

    def run(self, live: Live = SILENT, **asked: Any) -> Facts:
        """Measure with options as they are written; on the first rank."""
        payload = self.measure(self.read(**asked), live)
        assert payload is not None
        return payload


@dataclass(frozen=True)
class Settings:
    """Options of one run, read: `peers` is None for all libraries, `variants` are further plans to time.

    `folder` is where result files are.
    """

    bench: Bench
    shapes: Listed
    only: str
    k: int
    dtypes: tuple[str, ...]
    scores: str
    peers: list[str] | None
    variants: tuple[Variant, ...]
    rounds: int
    torch_rounds: int
    seed: int
    against: str
    folder: Path = record.RESULTS

    @property
    def fixed(self) -> Mapping[str, Any]:
        """What the bench has decided."""
        return self.bench.fixed

    @property
    def dtype(self) -> str:
        """The only dtype."""
        return self.dtypes[0]

    @property
    def left_out(self) -> list[str]:
        """Parts of ``--only`` that leave out."""
        return [part[1:].strip() for part in words(self.only, ";") if part.startswith("!")]

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Names that ``--only`` asks for.

        Its parts, separated by semicolons, are names or texts in names; a part that begins with ! leaves out. Raises
        `ArgumentError` if a part is in no name, or nothing is left.
        """
        known, parts = list(names), words(self.only, ";")
        wanted: list[str] = []
        for part in (part for part in parts if not part.startswith("!")):
            found = [name for name in known if name == part] or [name for name in known if part in name]
            if not found:
                raise ArgumentError("only", repr(part), f"names of {', '.join(known[:40])}, or parts of names")
            wanted += found
        kept = [n for n in known if (n in wanted or not wanted) and not any(part in n for part in self.left_out)]
        if not kept:
            raise ArgumentError("only", repr(self.only), "a part of a name that is left")
        return kept

    def written(self) -> Facts:
        """Options that the bench has a use for, as a result file has them."""
        every = {
            "shapes": list(self.shapes.items), "k": self.k, "lengths": self.shapes.how, "dtype": ",".join(self.dtypes),
            "scores": source_name(self.scores), "rounds": self.rounds, "seed": self.seed, "against": self.before.name,
        }  # fmt: skip
        unused = {name for name in OPTIONS if getattr(self.bench, name) is None}
        unused |= {"lengths"} if self.bench.reader is not matrices else set()
        return {name: value for name, value in every.items() if name not in unused} | dict(self.bench.fixed)

    def payload(self, results: Facts, *, gpu: bool = True, **written: Any) -> Facts:
        """Results in the layout of a result file; `written` are further settings, None drops one."""
        told = {name: value for name, value in (self.written() | written).items() if value is not None}
        return record.payload(self.bench.kind or self.bench.name, told, results, gpu=gpu)

    @property
    def stem(self) -> str:
        """Name of the result file, the same whenever the same is measured."""
        from ksieve.backends import cpu

        kind = self.scores.partition(":")[0]
        return self.bench.stem.format(
            shapes=self.shapes.name, k=self.k, dtype=self.dtypes[0] if self.dtypes else "",
            scores="" if kind == self.bench.scores else f"-{kind}",
            only="".join(f"-{part}" for part in words(self.only, ";")),
            world=os.environ.get("WORLD_SIZE", "1"), threads=cpu.thread_count(),
            card=_card() if "{card}" in self.bench.stem else "",
        )  # fmt: skip

    @property
    def before(self) -> Path:
        """Result to compare with: of ``--against``, or the committed one."""
        return Path(self.against or record.RESULTS / f"{self.stem}.json")


def _card() -> str:
    """The GPU at hand, as a file names it."""
    with contextlib.suppress(BackendError):
        return re.sub("[^a-z0-9]+", "-", tasks.require_device().name.lower().removeprefix("nvidia "))
    return "none"


def source_name(source: str) -> str:
    """Source of scores as a result file names it: without folders."""
    kind, colon, path = source.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else kind


def libraries(text: str) -> tuple[list[str] | None, list[Variant]]:
    """Read names of other libraries: "all" for None, "none" for none of them."""
    from ksieve_lab.bench.peers import check_names

    names = None if text == "all" else [] if text == "none" else words(text)
    check_names(names)
    return names, []


def contenders(text: str) -> tuple[list[str] | None, list[Variant]]:
    """As `libraries`, and plans of our own: families, policies, both with a space, or JSON, there or in a file."""
    if text.lstrip().startswith("["):
        return [], plans_of(text)
    found: list[Variant] = []
    rest: list[str] = []
    for part in words(text):
        first, _, second = part.partition(" ")
        family, policy = (first, second or None) if first in families() else (None, part)
        if part.endswith(".json"):
            found += plans_of(_file(part))
        elif policy is None or _is_policy(policy):
            found.append(Variant(part, family, policy))
        else:
            rest.append(part)
    if "all" in rest or rest == ["none"]:
        return None if "all" in rest else [], found
    try:
        return libraries(",".join(rest) or "none")[0], found
    except ArgumentError as error:
        takes = f"{error.takes}, families and policies of our own, or a .json file of plans"
        raise ArgumentError("peers", error.got, takes) from None


def _is_policy(name: str) -> bool:
    try:
        resolve_policy(name)
    except ArgumentError:
        return False
    return True


def _file(path: str) -> str:
    try:
        return read_utf8(path, errors="replace")
    except ValueError as error:
        raise ArgumentError("peers", path, f"a file with a JSON list of plans ({error})") from None


def over(cases: Sequence[Any], measure: Callable[[Any], Facts], progress: Progress, each: Tell | None) -> list[Facts]:
    """Measure cases in turn, and report progress and results."""
    results = []
    for done, case in enumerate(cases):
        progress(done, len(cases))
        results.append(measure(case))
        if each is not None:
            each(results[-1])
    progress(len(cases), len(cases))
    return results


def compiled(plans: Iterable[Callable[[], Plan]], live: Live) -> None:
    """Make plans and compile their kernels on all processors, so that no measurement waits for one."""
    from ksieve.tuning import variants

    made = []
    for plan in plans:
        with contextlib.suppress(ArgumentError):  # the measurement says so
            made.append(plan())
    with live.phase("compiling", "kernels") as progress:
        variants.compile_plans(made, progress)
