"""`ksieve.logits` of JAX arrays, eagerly and in programs: the bytes of NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from contract.test_logits import ALL, GOOD, ROWS, call_of, scores_of, take
from ksieve import ArgumentError, BackendError, logits


def with_jax():
    """JAX, and the function that makes its array of one of NumPy."""
    jax = pytest.importorskip("jax")
    bfloat16 = np.dtype(jax.numpy.bfloat16)
    return jax, lambda array: jax.numpy.asarray(array.view(bfloat16) if array.dtype == np.uint16 else array)


def functions_of(call, scores, k, first):
    """The three functions with the arguments of a random call, the static ones bound: each takes arrays by name."""
    slots = {"max_k": k} if "k" in call else {"k": k}
    limits = (*ALL, "k", "p", "min_p")
    yield partial(logits.statistics, **slots), take(call, *ALL, "k", "tokens") | {"logits": scores}
    yield partial(logits.kept, **slots, min_p_first=first, capacity=k + 1), take(call, *limits) | {"logits": scores}
    yield (
        partial(logits.sample, **slots, min_p_first=first, joint=not first),
        take(call, *limits, "uniform") | {"logits": scores},
    )
    limits = (*ALL, "p", "min_p")
    yield partial(logits.kept, min_p_first=first, capacity=k + 1), take(call, *limits) | {"logits": scores}
    yield partial(logits.sample, min_p_first=first), take(call, *limits, "uniform") | {"logits": scores}


def bytes_of(found):
    parts = [(name, np.asarray(part)) for name, part in found._asdict().items() if part is not None]
    return [(name, str(part.dtype).replace("bfloat16", "uint16"), part.shape, part.tobytes()) for name, part in parts]


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_arrays_of_jax_give_the_bytes_of_numpy(dtype):
    """Eagerly, in a program, and in a batch; the CPU's own numbers are held to the oracle above."""
    jax, convert = with_jax()
    rng = np.random.default_rng(60)
    for width in (1, 33, 100, 2000):
        scores, call = scores_of(rng, ROWS, width, dtype), call_of(rng, ROWS, width, 9)
        call = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in call.items()}
        for function, arrays in functions_of(call, scores, 9, bool(width % 2)):
            own = {name: convert(array) for name, array in arrays.items()}
            right, program = bytes_of(function(**arrays)), jax.jit(function)
            found = function(**own)
            assert all(part is None or isinstance(part, jax.Array) for part in found)
            assert bytes_of(found) == bytes_of(program(**own)) == right
            batch = {name: array.reshape(5, ROWS // 5, *array.shape[1:]) for name, array in own.items()}
            parts = jax.vmap(program)(**batch)
            assert bytes_of(jax.tree.map(lambda part: part.reshape(ROWS, *part.shape[2:]), parts)) == right
            del own["logits"]
            assert bytes_of(jax.jit(partial(function, scores))(**own)) == right


@pytest.mark.extended
def test_calls_of_jax_without_rows_or_arrays_of_rows():
    jax, convert = with_jax()
    for rows in (0, 3):
        scores = np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32)
        for function, given in (
            (logits.statistics, {"temperature": 0.7, "tokens": np.arange(rows, dtype=np.int32)}),
            (logits.statistics, {}),
            (logits.kept, {"p": 0.9, "min_p": 0.01, "temperature": 2}),
            (logits.sample, {"uniform": 0.3, "p": 0.6}),
        ):
            program = jax.jit(partial(function, k=7, **given))
            right = bytes_of(function(scores, 7, **given))
            assert bytes_of(function(convert(scores), 7, **given)) == bytes_of(program(scores)) == right


@pytest.mark.extended
def test_what_jax_cannot_pass_is_refused(monkeypatch):
    jax, _ = with_jax()
    x, half = jax.numpy.zeros((4, 70)), jax.numpy.float32(0.5)
    for name, function, text in (
        ("p", lambda: jax.jit(lambda x, p: logits.kept(x, 5, p=p))(x, 0.5), r"jax\.numpy\.full\(rows, p, 'float32'\)"),
        ("uniform", lambda: logits.sample(x, 5, uniform=half), "jax.numpy.full"),
        ("temperature", lambda: jax.jit(lambda t: logits.statistics(GOOD, 5, temperature=t))(0.5), "jax.numpy.full"),
        ("k", lambda: jax.jit(lambda x, k: logits.statistics(x, k))(x, 5), "static_argnames"),
        ("max_k", lambda: jax.jit(lambda x, k: logits.statistics(x, k))(x, GOOD[:, 0].astype(np.int32)), "an int from"),
        ("lengths", lambda: logits.statistics(x, 5, lengths=np.zeros(4, np.int64)), "jax_enable_x64"),
        ("lengths", lambda: jax.jit(logits.statistics, static_argnums=1)(x, 5, lengths=x[:, 0]), "dtype int32"),
        ("tokens", lambda: logits.statistics(x, 5, tokens=[1, 2, 3, 4]), r"jax\.numpy\.asarray\(tokens\) first"),
        ("logits", lambda: jax.vmap(lambda row: logits.kept(row, 5))(x), "a matrix"),
        ("logits", lambda: jax.grad(lambda x: logits.statistics(x, 5).logsumexp.sum())(x), "stop_gradient"),
        ("logits", lambda: jax.jvp(lambda t: logits.kept(x, 5, temperature=t), *[(x[:, 0] + 1,)] * 2), "stop_gradient"),
    ):
        with pytest.raises(ArgumentError, match=text) as error:
            function()
        assert error.value.argument == name
    stopped = jax.grad(lambda x: (x + logits.sample(jax.lax.stop_gradient(x), 5, uniform=0.1).tokens[:, None]).sum())
    assert (stopped(x) == 1).all() and (jax.jit(stopped)(x) == 1).all()

    from ksieve.frontends.jax.ffi import Handler
    from ksieve.logits import jax as calls
    from xla_frames import FakeXla

    xla = FakeXla()
    assert xla.call(Handler(calls._refuse), [GOOD], [], "") == 1 and "on the CPU alone" in xla.errors[0][0]
    gpu = type("Device", (), {"platform": "gpu"})()
    monkeypatch.setattr(type(x), "devices", lambda _: {gpu})
    with pytest.raises(BackendError, match="on the CPU alone"):
        logits.kept(x, 5)
