"""`ksieve plan --explain`: every family, the chosen one first, and true reasons against the others."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import ksieve
from flat_calls import plan_of
from ksieve.core.device import DEVICES
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.planning import shapes
from ksieve.planning.explain import considered, entry_of
from ksieve_lab.cli.app import app

SHAPES = [(1, 1_048_576), (8, 65_536), (64, 16_384), (64, 131_072), (512, 32_768), (4096, 131_072), (300, 3000)]


@pytest.mark.parametrize("name", ["h200", "b200", "a100"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_family_is_listed_once_and_the_chosen_one_first(name, shape):
    plan = ksieve.plan(rows=shape[0], width=shape[1], k=512, device=DEVICES[name])
    found = considered(plan.problem, plan.device)
    assert found[0].family == plan.family and found[0].verdict == f"chosen: {plan.reason}"
    assert sorted(o.family for o in found) == sorted(shapes.families())
    for option in found:
        assert option.verdict and (option.reads >= 1) == bool(option.launch)
        assert bool(option.launch) != option.verdict.startswith("refused: ")


def test_reads_are_those_of_the_accounting():
    plan = ksieve.plan(rows=64, width=131_072, k=2048, device=DEVICES["h200"])
    found = {option.family: option for option in considered(plan.problem, plan.device)}
    assert found["resident_cluster"].reads == 1 and found["stream"].reads == 1 + 1 / 64
    assert found["stream_split"].reads == 1 + 2 / 64 and found["stream_unsampled"].reads == 2
    assert found["resident_grid"].verdict == "launch shape for up to 33 rows"
    assert found["stream"].verdict == "reads a row 1.02 times, not 1"
    assert found["register_block"].verdict.startswith("refused: registers hold rows of up to 16,384 scores")


def test_the_entry_of_a_plan_with_options_is_not_one_for_plain_calls():
    asked = {"rows": 200, "width": 40_960, "k": 2048, "device": DEVICES["h200"]}
    pages = Options(transform="pages", page_size=64, raw=True)
    plain, other = (entry_of(plan_of(**asked, options=options)) for options in (Options(), pages))
    assert (plain.plain, plain.ctas_per_sm, other.plain, other.ctas_per_sm) == (True, 2, False, 1)


def test_the_command_prints_and_gives_json():
    asked = ["plan", "--rows", "64", "--width", "131072", "--k", "2048", "--device", "h200", "--explain"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0 and "launch shape for up to 33 rows" in done.stdout and "chosen" in done.stdout
    facts = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert facts["considered"][0]["family"] == facts["family"] == "resident_cluster"
    assert "considered" not in json.loads(CliRunner().invoke(app, [*asked[:-1], "--json"]).stdout)


def test_the_cpu_has_nothing_to_explain():
    plan = ksieve.plan(rows=4, width=4096, k=16)
    assert f"  geometry   {plan.threads} threads, 1 per row" in str(plan)
    with pytest.raises(ArgumentError, match="--explain: got a plan for the CPU; takes --device with a GPU"):
        considered(plan.problem, plan.device)
