"""Values that are returned carry a gradient; values that are written to a given tensor do not, which is said once."""

from __future__ import annotations

import warnings

import pytest

import ksieve
from ksieve import dispatch
from ksieve.core import arguments

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from flat_calls import ask, plan_of  # noqa: E402
from ksieve.core.options import Options  # noqa: E402

K = 8


@pytest.fixture(autouse=True)
def unsaid(monkeypatch):
    monkeypatch.setattr(arguments, "_warned", False, raising=False)


def said(program):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        program()
    return [w for w in found if w.category.__name__ == "GradientWarning"]


def scores(requires_grad=True):
    return torch.randn(4, 64, requires_grad=requires_grad)


def vector(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ties_and_nan_have_the_gradient_where_they_were_selected(dtype):
    x = torch.tensor([[1, 1, 1, 2, 1], [float("nan"), 0, float("-inf"), float("nan"), -0.0]], dtype=dtype)
    x.requires_grad_()
    indices, values = ask(x, k=4, values=True)
    assert torch.equal(values.detach().view(torch.int16), x.detach().gather(1, indices.long()).view(torch.int16))
    values.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x).scatter(1, indices.long(), 1))


@pytest.mark.parametrize("shape", [(4, 0), (0, 64), (0, 0)])
def test_without_scores_every_slot_is_unused(shape):
    x = torch.empty(shape, requires_grad=True)
    indices, values = ask(x, k=3, values=True)
    assert (indices == -1).all() and (values == -torch.inf).all() and values.shape == (shape[0], 3)
    values.sum().backward()
    assert x.grad.shape == shape


def test_a_plan_with_values_and_a_transform_keeps_what_it_returns():
    options = Options(values=True, transform="offsets", order="value")
    plan = plan_of(rows=4, width=64, k=K, options=options)
    x, offsets = scores(), vector(100, 200, 300, 400)
    indices, values, *_ = ksieve.select(x, plan=plan, values=True, transform=ksieve.Offsets(offsets))
    values.sum().backward()
    assert torch.equal(x.grad, torch.zeros(4, 64).scatter(1, indices.long() - offsets[:, None], 1.0))


@pytest.mark.parametrize("returned", [{}, {"values": True, "raw": True}])
def test_a_plan_that_returns_something_else_is_refused(returned):
    plan = plan_of(rows=4, width=64, k=K, options=Options(**returned))
    with pytest.raises(ksieve.ArgumentError, match="which the plan was made for"):
        ksieve.select(scores(), plan=plan, values=True)


def test_a_call_is_parsed_once_and_repeats_with_one_plan(monkeypatch):
    plan, parse, seen = plan_of(rows=4, width=64, k=K, options=Options(values=True)), dispatch.calls.parse, []
    monkeypatch.setattr(dispatch.calls, "parse", lambda *a, **k: seen.append(k["planned"]) or parse(*a, **k))
    for _ in range(2):
        ksieve.select(scores(), plan=plan, values=True).values.sum().backward()
    assert len(seen) == 2 and seen[0] is seen[1]


def test_indices_are_written_to_a_given_tensor():
    x, out, raw = scores(), torch.empty((4, K), dtype=torch.int64), torch.empty((4, K), dtype=torch.int64)
    offsets = vector(1, 2, 3, 4)
    found = ask(x, k=K, values=True, offsets=offsets, out=out, raw=raw)
    assert found[0] is out and found[2] is raw and torch.equal(out, raw + offsets[:, None])
    found[1].sum().backward()
    assert torch.equal(x.grad, torch.zeros(4, 64).scatter(1, raw, 1.0))


def test_rows_with_a_pitch_and_parameters_carry_it_too():
    whole = torch.nn.Parameter(torch.randn(4, 100))
    indices, values = ask(whole[:, 7:71], k=K, values=True)
    values.sum().backward()
    assert torch.equal(whole.grad, torch.zeros(4, 100).scatter(1, indices.long() + 7, 1.0))
    assert type(ask(whole, k=K, values=True)[1]) is torch.Tensor


def test_numerical_gradients_agree():
    # Steps of 1/64 between distinct eighths: no step changes the selection, and float32 holds every sum exactly.
    x = (torch.randperm(60).float() / 8).view(3, 20).requires_grad_()
    lengths = vector(20, 5, 0)

    def program(y):
        values = ask(y, lengths, k=6, sorted=True, values=True)[1]
        return torch.where(values.isfinite(), values, 0) ** 2

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Input #0 requires gradient and is not a double precision")
        check = {"eps": 2**-6, "atol": 1e-3, "rtol": 1e-3}
        assert torch.autograd.gradcheck(program, (x,), **check, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(program, (x,), (torch.ones(3, 6, requires_grad=True),), **check)


def test_forward_mode():
    x, tangent = scores(requires_grad=False), torch.randn(4, 64)
    with forward_ad.dual_level():
        indices, values = ask(forward_ad.make_dual(x, tangent), vector(64, 3, 0, 8), k=K, values=True)
        found = forward_ad.unpack_dual(values).tangent
    assert torch.equal(found, torch.where(indices >= 0, tangent.gather(1, indices.clamp(min=0).long()), 0))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_recording_there_is_none(mode):
    x = scores()
    with mode():
        assert not ask(x, k=K, values=True)[1].requires_grad
    assert not ask(x.detach(), k=K, values=True)[1].requires_grad
    assert not ksieve.topk(x, k=K).requires_grad


def test_nothing_is_said_of_values_that_are_returned():
    x = scores()
    assert not said(lambda: ask(x, k=K, values=True))
    assert not said(lambda: ksieve.topk(x, k=K))


def test_values_written_to_a_given_tensor_say_once_that_they_carry_none():
    x, values = scores(), torch.empty(4, K)
    found = said(lambda: [ksieve.select(x, k=K, values=values) for _ in range(3)])
    assert len(found) == 1 and "values=True" in str(found[0].message)
    assert found[0].filename == __file__, "it names the line that calls"
    assert issubclass(found[0].category, UserWarning) and found[0].category is ksieve.GradientWarning
    assert not values.requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_said_where_no_gradient_is_recorded(mode):
    x, values = scores(), torch.empty(4, K)

    def program():
        with mode():
            ask(x, k=K, values=values)

    assert not said(program)
    assert not said(lambda: ask(x.detach(), k=K, values=values))


def test_a_compiled_program_says_it_once_and_stays_whole():
    x, values = scores(), torch.empty(4, K)
    program = torch.compile(lambda x, v: ask(x, k=K, values=v, sorted=True), fullgraph=True, backend="aot_eager")
    assert len(said(lambda: [program(x, values) for _ in range(3)])) == 1
    indices, found = program(x, values)
    assert torch.equal(found, x.detach().gather(1, indices.long())) and not found.requires_grad


def test_an_output_that_requires_grad_is_refused_before_it_is_written():
    values = torch.full((4, K), -7.0, requires_grad=True)
    with pytest.raises(ksieve.ArgumentError, match=r"^values: .*detach"):
        ask(scores(), k=K, values=values)
    assert (values == -7).all()
    with torch.no_grad():
        ask(scores(), k=K, values=values)
    assert not (values == -7).any()


def test_a_warning_turned_into_an_error_comes_before_anything_is_written():
    values = torch.full((4, K), -7.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UserWarning, match="no gradient"):
                ask(scores(), k=K, values=values)
    assert (values == -7).all()
