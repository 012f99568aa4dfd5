"""The extra cuda12 and its gate: which kernels are compiled with NVRTC 12.8, and what of the result fails."""

from __future__ import annotations

import re
import tomllib

import pytest
from conftest import ROOT

from ksieve.backends.cuda.runtime.driver import install

pytestmark = pytest.mark.extended


def test_the_extras_exclude_each_other_and_share_cuda_core():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    core, bindings, nvrtc = extras["cuda12"]
    assert core == extras["cuda"][0]
    assert re.fullmatch(r"cuda-bindings>=12\.9.*,<13", bindings) and re.fullmatch(r".*-cu12>=12\.8.*,<12\.9", nvrtc)
    assert extras["cuda"][1] == "cuda-bindings>=13.0"


@pytest.mark.parametrize(
    ("version", "extra"), [(12_040, "cuda12"), (12_090, "cuda12"), (13_000, "cuda"), (None, "cuda")]
)
def test_the_extra_follows_the_driver(version, extra):
    assert install(version) == f"pip install 'ksieve[{extra}]'"
