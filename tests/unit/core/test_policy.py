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
from ksieve.core.errors import ArgumentError
from ksieve.core.policy import (
    LINES_64,
    LINES_128,
    PAPER_64,
    PAPER_128,
    PEAK,
    SamplingPolicy,
    resolve_policy,
)
from ksieve.core.policy import POLICIES as NAMED


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
        jitter=draw(st.booleans()),
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


def hashed(row, period):
    """The jitter's hash in Python's own integers."""
    mixed = (row * 0xC2B2AE35 + period * 0x85EBCA6B) % 2**32
    return (mixed ^ mixed >> 13) * 0x9E3779B1 % 2**32


@given(policies(), st.one_of(st.integers(0, 1000), st.integers(0, 2**32)), st.integers(0, 3000))
def test_view_is_its_definition(policy, row, length):
    def taken(period):
        return hashed(row, period) * policy.stride >> 32 if policy.jitter else policy.phase(row)

    size = policy.stride * policy.group
    expected = [i for i in range(length) if (i // policy.group) % policy.stride == taken(i // size)]
    assert policy.view(row, length).tolist() == expected
    assert policy.offsets(row, np.arange(9)).tolist() == [taken(period) for period in range(9)]
    expected = [i for i in range(length) if (i // policy.group) % policy.stride == policy.phase(row)]
    assert policy.view_of_phase(policy.phase(row), length).tolist() == expected


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
        skew = max(policy.sigmas**2 - 1, 0) / 6
        wanted.append(math.ceil(k / policy.stride + policy.sigmas * math.sqrt(k / policy.stride) + skew))
    assert primary == max(wanted)
    rescue = policy.rescue_rank(k)
    assert (rescue is None) == (policy.rescue_margin is None)
    last = primary if rescue is None else rescue
    assert last >= primary and (rescue is None or rescue >= primary + 4)
    fewest = math.ceil(last * 3 / 2)
    assert policy.usable(fewest, k) and not policy.usable(fewest - 1, k)


@pytest.mark.parametrize(
    ("field", "value", "takes"),
    [
        ("stride", 0, "an int from 1 to 1048576"),
        ("stride", 3, "a power of two"),
        ("stride", 64.0, "an int from 1 to 1048576"),
        ("group", -4, "an int from 1 to 1048576"),
        ("group", 6, "a power of two"),
        ("margin", 0, "a number from 1e-06 to 1048576"),
        ("margin", math.nan, "a number from 1e-06 to 1048576"),
        ("rescue_margin", 1.25, "a number from 1.5 to 1048576"),
        ("sigmas", -1.0, "a number from 0 to 64"),
        ("sigmas", math.nan, "a number from 0 to 64"),
        ("boundary", "fine", "'coarse' or 'exact'"),
        ("min_rank", 0, "an int from 1 to 268435456"),
        ("jitter", 1, "True or False"),
        ("group", 2, "a multiple of 4 with peaks"),
    ],
)
def test_bad_fields_are_named(field, value, takes):
    with pytest.raises(ArgumentError) as error:
        SamplingPolicy(**{"name": "bad", "stride": 64, "peaks": "peaks" in takes, field: value})
    assert str(error.value) == f"policy.{field}: got {value}; takes {takes}"


def test_resolve():
    assert resolve_policy("paper-64") is PAPER_64
    assert resolve_policy(PAPER_128) is PAPER_128
    assert resolve_policy("direct") is None and resolve_policy(None) is None


def test_some_kinds_exist_with_every_stride():
    assert resolve_policy("lines-1024") == replace(LINES_64, name="lines-1024", stride=1024)
    assert resolve_policy("lines-64") is LINES_64
    assert [(p.name, p.stride, p.group) for p in map(resolve_policy, ("bursts-2048", "quads-1"))] == [
        ("bursts-2048", 2048, 16),
        ("quads-1", 1, 4),
    ]
    for name in ("lines-48", "bursts-131072"):
        with pytest.raises(ArgumentError, match=r"^policy\.stride: "):
            resolve_policy(name)


@pytest.mark.parametrize("name", ["paper-32", "lines-0", "lines-", "lines-64 ", "lines-10000000", 64, ["direct"]])
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
    assert policy.jitter
    planned = ksieve.plan(rows=4, width=65_536, k=512, policy=str(path))
    assert planned.policy == policy


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ("{", "mine.json"),
        ("[1]", "takes a policy file"),
        ('{"ksieve_policy": 1, "policy": {"name": "a"}}', "'stride'"),
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


# ---- jitter -----------------------------------------------------------------------------------------------


def excess(counts):
    """Chi-square over its last axis in standard deviations beyond its mean, for counts that should be uniform."""
    expected = counts.sum(axis=-1, keepdims=True) / counts.shape[-1]
    free = counts.shape[-1] - 1
    return (((counts - expected) ** 2 / expected).sum(axis=-1) - free) / math.sqrt(2 * free)


def tallies(offsets, stride):
    """How often each offset occurs along the last axis."""
    flat = offsets.reshape(-1, offsets.shape[-1])
    shifted = flat + np.arange(len(flat))[:, None] * stride
    return np.bincount(shifted.ravel(), minlength=len(flat) * stride).reshape(*offsets.shape[:-1], stride)


ROWS = [*range(64), 1000, 4095, 65_535, 1 << 20, (1 << 31) - 1]


@pytest.mark.parametrize("stride", [16, 64, 128])
def test_offsets_of_a_row_are_uniform_and_its_neighbours_unrelated(stride):
    """Of uniform, independent draws the excess is 0 with a deviation of 1: the largest of a thousand is below 6."""
    policy = SamplingPolicy("j", stride, jitter=True)
    periods, rows = np.arange(64 * stride), np.arange(4096)
    by_row = np.stack([policy.offsets(row, periods) for row in ROWS])
    by_period = np.stack([policy.offsets(int(row), np.arange(64)) for row in rows]).T
    for offsets in (by_row, by_period):
        found = [excess(tallies(offsets, stride))]
        for lag in (1, 2, 3, 4, 5, 7, 8, 16, 32, 64):
            found.append(excess(tallies((offsets[:, lag:] - offsets[:, :-lag]) % stride, stride)))
        assert np.max(found) < 6
        assert np.abs(np.mean(found, axis=1)).max() < 0.5, "as unlikely: counts that are too even"


@pytest.mark.parametrize("expected", [4, 8, 16, 32, 64])
def test_standard_deviations_mean_the_same_at_every_expectation(expected):
    """A row underfills when at least the requested number of samples is better than its k-th score: Poisson's tail."""
    rank = LINES_128.primary_rank(expected * LINES_128.stride)
    below = sum(math.exp(i * math.log(expected) - expected - math.lgamma(i + 1)) for i in range(rank))
    assert 0.5e-6 < 1 - below < 6e-6  # the normal tail beyond 4.5 standard deviations has 3.4e-6


@pytest.mark.parametrize("bad", [None, 3, SamplingPolicy])
def test_a_policy_file_is_a_path(bad):
    with pytest.raises(ArgumentError, match=r"^policy: got .*; takes the path of a policy file"):
        SamplingPolicy.load(bad)
