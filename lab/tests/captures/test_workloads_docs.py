"""The pages on captures: their programs run, and claims about the bundled capture hold."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from conftest import ROOT

from ksieve.core.policy import POLICIES
from ksieve.core.stats import Route
from ksieve.model import reference
from ksieve_lab.captures.format import open_capture

DOC = "".join(
    (ROOT / "docs" / page).read_text(encoding="utf-8") for page in ("guide/captures.md", "reference/capture-format.md")
)
EXAMPLE = ROOT / "examples" / "indexer_capture.safetensors"


def test_its_programs_write_readable_captures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        exec(compile(program, "docs/guide/captures.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1] == "2 (1, 100000) [90000]"
    with open_capture("four_rows.safetensors") as capture:
        assert (capture.rows, capture.width, capture.k, capture.kind) == (4, 5000, 512, "scores")
        assert capture.lengths.tolist() == [5000, 4000, 3000, 2000]
        expected = np.random.default_rng(0).standard_normal((4, 5000)).astype(np.float32)
        assert np.array_equal(capture.rows_block(0, 4), expected)


def test_the_bundled_capture_takes_every_route():
    with open_capture(EXAMPLE) as capture:
        scores, lengths = capture.rows_block(0, capture.rows), capture.lengths
    routes = Counter()
    for policy in ("paper-64", "paper-128"):
        _, stats = reference.select(scores, lengths, 2048, policy=POLICIES[policy])
        routes.update(Route(r) for r in stats.route)
    assert routes.keys() == {Route.CERTIFIED, Route.RESCUED, Route.RECOVERED, Route.RECOVERED_AFTER_BAND}
    assert routes[Route.CERTIFIED] > 240
