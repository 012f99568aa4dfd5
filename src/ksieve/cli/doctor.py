"""`ksieve doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ksieve.adapters._operators import SWITCHES
from ksieve.cli import exits, terminal
from ksieve.cli.options import Engine, choice
from ksieve.core.errors import BackendError
from ksieve.core.text import bytes_text, seconds_text

if TYPE_CHECKING:
    from ksieve.adapters._signatures import Finding
    from ksieve.doctor import Cache, Made, Report
    from ksieve.self_test import SelfTest

_LABELS = {"numpy": "NumPy", "numba": "Numba", "torch": "PyTorch", "cupy": "CuPy", "jax": "JAX"}
_SHOWN_IF_PRESENT = ("cupy", "jax")


def doctor(
    engine: Annotated[
        Engine | None,
        choice("--for", Engine, "Compare the signatures of this engine's operators with those that ksieve takes."),
    ] = None,
) -> None:
    """List packages and devices of this machine, test every backend, and name the first fault to fix.

    Needs neither a GPU nor PyTorch. Small selections run on every backend that is present, and each answer is
    verified. The exit code is 1 if an answer is wrong, 2 if no backend works.

    With --for only an engine is examined, whose modules are imported. The exit code is 2 if its operators cannot be
    replaced.
    """
    from ksieve import doctor as examination

    if engine is not None:
        _engines([engine] if engine is not Engine.all else [each for each in Engine if each is not Engine.all])
        return

    with terminal.status("looking around") as say:
        report = examination.examine(say)
    terminal.result(report.as_dict)
    terminal.say(f"ksieve {report.ksieve} on this machine", style="bold")
    terminal.facts(_facts(report), indent=2)
    terminal.say()
    terminal.say("Self-test", style="bold")
    terminal.facts(((test.backend, _outcome(test)) for test in report.tests), indent=2)
    advice = examination.advise(report)
    terminal.say()
    if advice is None:
        terminal.say(f"All is well: {_summary(report)}.", style="bold green")
    else:
        terminal.say(f"Fix this first: {advice.text}.", style="bold yellow")
        if advice.command is not None:
            terminal.say(f"    {advice.command}")
        if not advice.serious and report.works:
            terminal.say(f"Until then: {_summary(report)}.")
    if not report.works:
        refuted = any(test.ran and not test.exact for test in report.tests)
        raise typer.Exit(exits.Exit.REFUTED if refuted else exits.Exit.ERROR)


def _engines(engines: list[Engine]) -> None:
    from ksieve.adapters import _signatures

    present = [engine for engine in engines if _signatures.installed(engine)]
    if not present:
        raise BackendError(f"not installed in this Python environment: {', '.join(engines)}")
    with terminal.status("importing the engine"):
        found = [_signatures.examine(engine) for engine in present]
    terminal.result(lambda: {"engines": [report.as_dict() for report in found]})
    for report in found:
        versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        terminal.say(f"{report.engine}: {versions or 'version unknown'}", style="bold")
        variable, _, plugins = SWITCHES.get(report.engine, ("", "", ""))
        if not report.registered:
            terminal.say("  its plugin loader does not find ksieve: install the package with pip")
        if not report.loaded:
            terminal.say(f"  {plugins} does not name ksieve: the engine does not load it")
        if variable:
            terminal.say(f"  {variable} is {'set' if report.on else 'not set: ksieve is off'}")
        if report.problem is not None:
            terminal.say(f"  nothing would be replaced: {report.problem}")
        terminal.facts(((finding.operator, _fit(finding)) for finding in report.operators), indent=2)
    if not all(report.fits for report in found):
        raise typer.Exit(exits.Exit.ERROR)


def _fit(finding: Finding) -> str:
    if finding.problem is not None:
        return f"CANNOT be imported: {finding.problem}"
    if finding.found is None:
        return "not in this version"
    if finding.fits:
        return "can be replaced"
    return f"({finding.found}) is NOT known; ksieve takes ({') or ('.join(finding.takes)})"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "Python", f"{report.python}, {report.platform}, {report.threads} CPU threads"
    for name, version in report.packages.items():
        if name == "nvidia-cuda-nvrtc" or (version is None and name in _SHOWN_IF_PRESENT):
            continue
        text = version or "not installed"
        if name == "torch" and version is not None:
            text += f", built for CUDA {report.torch_cuda}" if report.torch_cuda else ", built without CUDA"
        yield _LABELS.get(name, name), text
    package = report.packages["nvidia-cuda-nvrtc"]
    yield "NVRTC", (report.nvrtc or "not found") + (f" (package {package})" if package else "")
    driver = report.driver
    if driver.version is None and driver.cuda is None:
        yield "NVIDIA driver", "not found"
    else:
        extra = "ksieve" + driver.install[driver.install.rindex("[") : -1] if driver.cuda else ""
        supports = f"supports CUDA {driver.cuda}: {extra} fits" if driver.cuda else "CUDA version unknown"
        yield "NVIDIA driver", f"{driver.version or 'version unknown'}, {supports}"
    if not driver.gpus:
        yield "GPU", "none" if driver.problem is None else f"none: {driver.problem}"
    for index, gpu in enumerate(driver.gpus):
        major, minor = gpu.capability
        name = "GPU" if len(driver.gpus) == 1 else f"GPU {index}"
        yield name, f"{gpu.name}, compute capability {major}.{minor}, {gpu.memory_bytes / 2**30:.0f} GiB"
    yield from (("launch shapes", _made(found)) for found in report.launch_shapes)
    if report.bundle is not None:
        yield "bundle", _made(report.bundle)
    if report.visible is not None:
        yield "CUDA_VISIBLE_DEVICES", repr(report.visible)
    for backend, cache in report.caches.items():
        yield f"{'CPU' if backend == 'cpu' else 'CUDA'} kernels", _cache(cache)


def _place(text: str) -> str:
    """A path as it is shown: below the home directory with a tilde."""
    path, home = Path(text), Path(os.path.expanduser("~"))  # noqa: PTH111 (of no home, Path raises)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _made(found: Made) -> str:
    return f"{_place(found.path)}: {found.problem or found.about}"


def _cache(cache: Cache) -> str:
    place = _place(cache.path)
    state = cache.problem or ("writable" if cache.writable else "NOT writable")
    if not cache.exists:
        return f"{place}, not made yet, {state}"
    damaged = f" ({cache.damaged} damaged)" if cache.damaged else ""
    return f"{place}, {cache.entries:,} compiled{damaged}, {bytes_text(cache.bytes)}, {state}"


def _outcome(test: SelfTest) -> str:
    if not test.ran:
        return f"not available: {test.problem}"
    answer = "exact" if test.exact else f"WRONG: {test.problem}"
    return f"{answer}, {test.rows:,} rows verified in {seconds_text(test.seconds)}"


def _summary(report: Report) -> str:
    cuda = report.test("cuda")
    if cuda.ran and cuda.exact:
        return f"selections run on the {report.driver.gpus[0].name if report.driver.gpus else 'GPU'} and on the CPU"
    old = [g for g in report.driver.gpus if g.capability < (8, 0)]
    why = f"the {old[0].name} is older than compute capability 8.0" if old else "no usable NVIDIA GPU is here"
    return f"selections run on {report.threads} CPU threads; {why}"
