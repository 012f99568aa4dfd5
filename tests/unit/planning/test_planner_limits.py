"""What no CUDA plan may be: CTAs that wait for one another and do not all run, bins that select rows twice, and options
in a launch shape of devices without a table. With the shapes that are shipped.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from flat_calls import plan_of
from ksieve.core.device import DEVICES
from ksieve.core.dtypes import SCORE_DTYPES
from ksieve.core.errors import ArgumentError
from ksieve.core.options import Options
from ksieve.planning import shapes, tuned
from ksieve.planning.families import IN_REGISTERS
from ksieve.planning.shapes import Geometry
from ksieve.planning.switch_points import BINNED_ROWS
from ksieve.tuning.run import possible

H200 = DEVICES["h200"]
CUDA = sorted(name for name, device in DEVICES.items() if device.kind == "cuda")


# ---- CTAs that wait for one another -----------------------------------------------------------------------------

WIDE = 1_048_576
SHARED_BY_64 = Geometry(512, 1, resident_width=WIDE, ctas_per_row=64, most_rows=8)
"""A shape of `resident_grid` as a file of ``ksieve tune`` may have it."""


def with_grid(device):
    """Plan with `SHARED_BY_64` as the only shape of CTAs that share a row and are no cluster."""
    assert possible("resident_grid", SHARED_BY_64, device, "float32"), "a file may have it"
    known = tuned.shapes_of(device)
    return tuned.replaced(known, replace(known, resident={**known.resident, "resident_grid": (SHARED_BY_64,)}))


@pytest.mark.parametrize("count", [64, 65, 127, 128])
def test_rows_are_not_given_to_a_grid_that_has_not_all_of_them_at_once(count):
    """The planner then chooses another family; a caller who forces this one gets rows in turn."""
    device = replace(H200, sm_count=count)
    with with_grid(device):
        for rows in (1, 2):
            asked = {"rows": rows, "width": WIDE, "k": 512, "device": device}
            together = 64 * rows <= count
            assert (plan_of(**asked).family == "resident_grid") == together
            forced = plan_of(**asked, family="resident_grid")
            assert forced.ctas == (64 * rows if together else 64)


@pytest.mark.parametrize("count", [16, 63])
def test_a_row_is_not_shared_by_more_ctas_than_a_gpu_runs(count):
    device = replace(H200, sm_count=count)
    with with_grid(device):
        asked = {"rows": 1, "width": WIDE, "k": 512, "device": device}
        assert plan_of(**asked).family != "resident_grid"
        with pytest.raises(
            ArgumentError, match=r"family: got 'resident_grid'; takes another family: these rows cannot"
        ):
            plan_of(**asked, family="resident_grid")


# ---- bins of rows by length -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CUDA)
@pytest.mark.parametrize("dtype", sorted(SCORE_DTYPES))
@pytest.mark.parametrize("options", [Options(), Options(values=True), Options(expand=2)], ids=str)
def test_families_that_keep_rows_in_registers_have_no_bins(name, dtype, options):
    """They take all rows, and would select again those of the launches for shorter ones."""
    widths = (100, 2048, 4096, 8192, 12_288, 16_384, 24_576)
    for rows, width, k in itertools.product((BINNED_ROWS, 2 * BINNED_ROWS), widths, (64, 2048, 6000)):
        plan = plan_of(rows=rows, width=width, k=k, dtype=dtype, device=DEVICES[name], options=options)
        assert plan.family not in IN_REGISTERS or (plan.bins, plan.bin) == ((), None), plan


# ---- options of rows on chip --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, device in DEVICES.items() if device.capability >= (9, 0)])
@pytest.mark.parametrize("dtype", sorted(SCORE_DTYPES))
def test_rows_with_options_take_a_shape_of_their_device(name, dtype):
    """No row that is kept on chip for a plain call falls back to the shape of devices without a table."""
    usual = shapes.of(DEVICES[name], dtype).usual["resident_block"]
    options = (Options(positions=True), Options(order="value"), Options(per_row_k=True), Options(windows="ends"))
    for rows, width, asked in itertools.product((132, 600, 4096), (8192, 10_000, 12_288, 13_000, 16_384), options):
        plans = [
            plan_of(rows=rows, width=width, k=512, dtype=dtype, device=DEVICES[name], options=each)
            for each in (Options(), asked)
        ]
        if plans[0].family == plans[1].family == "resident_block":
            assert usual.source not in plans[1].reason, (rows, width, asked, plans[1].reason)
