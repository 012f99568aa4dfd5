"""Sampling policies: views, ranks, phases, and refusals."""

from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ksieve
from cases import POLICIES
from ksieve.errors import ArgumentError
from ksieve.policy import LINES_64, PAPER_64, PAPER_128, PEAK, SamplingPolicy, resolve_policy
from ksieve.policy import POLICIES as NAMED


@st.composite
def policies(draw):
    """Any policy that the constructor accepts."""
    group = draw(st.sampled_from([1, 2, 4, 8, 32]))
    return SamplingPolicy(
        "drawn",
        draw(st.sampled_from([1, 2, 4, 8, 64, 128])),
        margin=draw(st.floats(0.1, 4)),
        rescue_margin=draw(st.one_of(st.none(), st.floats(4, 8))),
        group=group,
        sigmas=draw(st.sampled_from([0.0, 1.5, 4.5])),
        peaks=group % PEAK == 0 and draw(st.booleans()),
        boundary=draw(st.sampled_from(["coarse", "exact"])),
        min_rank=draw(st.integers(1, 32)),
    )


def test_the_papers_policies():
    assert (PAPER_64.stride, PAPER_64.margin, PAPER_64.rescue_margin) == (64, 1.5, None)
    assert (PAPER_128.stride, PAPER_128.margin, PAPER_128.rescue_margin) == (128, 1.5, 1.75)
    assert PAPER_64.primary_rank(2048) == 48 and PAPER_64.rescue_rank(2048) is None
    assert PAPER_128.primary_rank(2048) == 24 and PAPER_128.rescue_rank(2048) == 28
    for policy in (PAPER_64, PAPER_128):
        assert policy.group == 1 and policy.boundary == "coarse" and policy.source
        assert NAMED[policy.name] is policy


@pytest.mark.parametrize("policy", [p for p in POLICIES if p], ids=lambda p: p.name)
def test_a_block_of_rows_uses_each_phase_once(policy):
    for start in (0, policy.stride * 3):
        phases = [policy.phase(r) for r in range(start, start + policy.stride)]
        assert sorted(phases) == list(range(policy.stride))


@pytest.mark.parametrize("policy", [PAPER_64, PAPER_128], ids=lambda p: p.name)
def test_neighbouring_rows_sample_far_apart(policy):
    steps = {(policy.phase(r + 1) - policy.phase(r)) % policy.stride for r in range(policy.stride)}
    assert all(policy.stride // 4 < s < 3 * policy.stride // 4 for s in steps)


@given(policies(), st.integers(0, 1000), st.integers(0, 3000))
def test_view_is_its_definition(policy, row, length):
    expected = [i for i in range(length) if (i // policy.group) % policy.stride == policy.phase(row)]
    assert policy.view(row, length).tolist() == expected


@given(policies(), st.integers(0, 1000), st.integers(0, 500))
def test_statistics_are_their_definition(policy, row, length):
    keys = np.random.default_rng(length).integers(0, 1 << 32, length, dtype=np.uint32)
    view = policy.view(row, length)
    if policy.peaks:
        expected = [min(keys[view[view // PEAK == g]]) for g in sorted(set(view // PEAK))]
    else:
        expected = keys[view].tolist()
    assert policy.statistics(keys[view]).tolist() == expected


@given(policies(), st.integers(1, 1 << 20))
def test_ranks_are_their_definition(policy, k):
    primary = policy.primary_rank(k)
    wanted = [math.ceil(policy.margin * k / policy.stride), policy.min_rank]
    if policy.sigmas:
        wanted.append(math.ceil(k / policy.stride + policy.sigmas * math.sqrt(k / policy.stride)))
    assert primary == max(wanted)
    rescue = policy.rescue_rank(k)
    assert (rescue is None) == (policy.rescue_margin is None)
    last = primary if rescue is None else rescue
    assert last >= primary and (rescue is None or rescue >= primary + 4)
    assert policy.usable(last, k) and not policy.usable(last - 1, k)


def test_phases_cover_a_row_exactly_once():
    policy = SamplingPolicy("p", 8, group=4)
    seen = np.concatenate([policy.view(r, 1003) for r in range(8)])
    assert sorted(seen.tolist()) == list(range(1003))


@pytest.mark.parametrize(
    ("field", "value", "takes"),
    [
        ("stride", 0, "a positive power of two"),
        ("stride", 3, "a positive power of two"),
        ("stride", 64.0, "a positive power of two"),
        ("group", -4, "a positive power of two"),
        ("group", 6, "a positive power of two"),
        ("margin", 0, "a positive number"),
        ("margin", math.nan, "a positive number"),
        ("rescue_margin", 1.25, "None or at least 1.5"),
        ("sigmas", -1.0, "a number of at least 0"),
        ("sigmas", math.nan, "a number of at least 0"),
        ("boundary", "fine", "'coarse' or 'exact'"),
        ("min_rank", 0, "an int of at least 1"),
    ],
)
def test_bad_fields_are_named(field, value, takes):
    with pytest.raises(ArgumentError) as error:
        SamplingPolicy(**{"name": "bad", "stride": 64, field: value})
    assert str(error.value) == f"policy.{field}: got {value}; takes {takes}"


@pytest.mark.parametrize("group", [1, 2])
def test_peaks_need_whole_fours(group):
    with pytest.raises(ArgumentError) as error:
        SamplingPolicy("bad", 64, group=group, peaks=True)
    assert str(error.value) == f"policy.group: got {group}; takes a multiple of {PEAK} with peaks"


def test_resolve():
    assert resolve_policy("paper-64") is PAPER_64
    assert resolve_policy(PAPER_128) is PAPER_128
    assert resolve_policy("direct") is None and resolve_policy(None) is None


@pytest.mark.parametrize("name", ["paper-32", 64, ["direct"]])
def test_resolve_refuses_by_listing_what_exists(name):
    with pytest.raises(ArgumentError, match=r"^policy: got .*; takes a SamplingPolicy or one of \['direct', "):
        resolve_policy(name)


def test_errors_survive_pickling():
    error = ArgumentError("policy", 64, "a name")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "policy: got 64; takes a name"
    assert (copy.argument, copy.got, copy.takes) == ("policy", 64, "a name")


def test_a_policy_survives_its_file(tmp_path):
    policy = replace(LINES_64, name="mine", margin=1.375, sigmas=0.0, source="a test")
    path = tmp_path / "mine.json"
    policy.save(path, extra={"calibration": {"rows": 3}})
    assert SamplingPolicy.load(path) == policy
    assert resolve_policy(str(path)) == policy
    assert resolve_policy(path) == policy
    planned = ksieve.plan(rows=4, width=65_536, k=512, policy=str(path))
    assert planned.policy == policy


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "does not exist"),
        ("{", "mine.json"),
        ("[1]", "JSON of another kind"),
        ('{"ksieve_policy": 1, "policy": {"name": "a"}}', "some of"),
        ('{"ksieve_policy": 1, "policy": {"name": "a", "stride": 64, "phases": 2}}', "phases"),
        ('{"ksieve_policy": 2, "policy": {"name": "a", "stride": 64}}', "version 1"),
        ('{"ksieve_policy": 1, "policy": {"name": "a", "stride": 63}}', "policy.stride: got 63"),
        ('{"ksieve_policy": 1, "policy": {"name": "a", "stride": 64, "margin": "wide"}}', "mine.json"),
    ],
)
def test_a_broken_policy_file_is_refused_by_name(tmp_path, content, says):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ArgumentError, match=re.escape(says)):
        resolve_policy(str(path))


def test_a_policy_file_has_its_suffix(tmp_path):
    with pytest.raises(ArgumentError, match=r"\.json"):
        LINES_64.save(tmp_path / "mine.txt")


def test_views_of_all_phases_partition_the_row():
    for policy in (PAPER_128, LINES_64):
        positions = np.concatenate([policy.view_of_phase(phase, 10_000) for phase in range(policy.stride)])
        assert np.array_equal(np.sort(positions), np.arange(10_000))
        assert np.array_equal(policy.view(5, 10_000), policy.view_of_phase(policy.phase(5), 10_000))
