"""What of the adapters is imported without PyTorch: their entry points, which engines call in every process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT

LOAD = """
import sys
sys.modules["torch"] = None
from ksieve.adapters import Report, plugins, report
plugins.{engine}()
print(type(report()) is Report)
"""


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_plugin_does_nothing_or_says_why(engine: str) -> None:
    for value, said in (("", ""), ("1", f"KSIEVE_{engine.upper()} is set, and ksieve is off: ")):
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), f"KSIEVE_{engine.upper()}": value}
        words = [sys.executable, "-c", LOAD.format(engine=engine)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
        assert done.stderr.startswith(said) and bool(done.stderr) == bool(said)
