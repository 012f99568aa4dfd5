"""The emulator itself, on small kernels: what it shows and refuses that no right kernel does; and how it rounds."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from emulator import build
from emulator.operands import UnknownInstructionError

pytestmark = [pytest.mark.extended, pytest.mark.skipif(bool(build.missing()), reason=build.missing() or "present")]

HEAD = """
using u32 = unsigned int; using u64 = unsigned long long;
struct Params { const u32* in; u32* out; int n; };
extern __shared__ __align__(16) u32 shared[];
__device__ u32 address(const void* at) { return static_cast<u32>(__cvta_generic_to_shared(at)); }
extern "C" __global__ void kernel(const __grid_constant__ Params p) {
  const int thread = threadIdx.x, all = blockIdx.x * blockDim.x + threadIdx.x;
"""
SEEDS = range(6)  # every order of threads, with early copies and with late ones


class Params(ctypes.Structure):
    _fields_ = (("inputs", ctypes.c_void_p), ("out", ctypes.c_void_p), ("n", ctypes.c_int))


@pytest.fixture(scope="module")
def emulate(tmp_path_factory):
    """Run a kernel's body over words; the words that it writes."""
    libraries, folder = {}, tmp_path_factory.mktemp("emulated")

    def run(body, inputs=(0,), words=32, *, grid=1, threads=32, cluster=1, shared=1024, seed=0):
        if body not in libraries:
            target = folder / f"{len(libraries)}.so"
            ptx = build.ptx_of(HEAD + body + "\n}", "kernel.cu", ["--gpu-architecture=compute_90a", "--std=c++17"])
            build.build(ptx, target)
            libraries[body] = build.load(target)
        given = np.ascontiguousarray(inputs, np.uint32)
        out = np.full(words, 0xABABABAB, np.uint32)
        params = Params(given.ctypes.data, out.ctypes.data, given.size)
        launch = build.Launch(grid, threads, cluster, grid // cluster, shared, seed, ctypes.addressof(params))
        build.run(libraries[body], launch)
        return out

    return run


# ---- instructions


def unary(emulate, expression, values):
    """Results of `expression`, of `x` as bits and `f` as a float, for all values."""
    values = np.ascontiguousarray(values).view(np.uint32)
    body = f"if (all < p.n) {{ u32 x = p.in[all]; float f = __uint_as_float(x); u32 y; {expression}; p.out[all] = y; }}"
    return emulate(body, values, values.size, grid=-(-values.size // 256), threads=256)


def test_products_are_rounded_as_asked(emulate):
    from fractions import Fraction

    rng = np.random.default_rng(2)
    x = (rng.standard_normal(300) * np.exp2(rng.integers(-30, 30, 300))).astype(np.float32)
    down = unary(emulate, "y = __float_as_uint(__fmaf_rd(f, 1.1f, -0.3f))", x).view(np.float32)
    up = unary(emulate, "y = __float_as_uint(__fmul_ru(f, 1.1f))", x).view(np.float32)
    near = unary(emulate, "y = __float_as_uint(fmaf(f, 1.1f, -0.3f))", x).view(np.float32)
    factor, term = Fraction(float(np.float32(1.1))), Fraction(float(np.float32(-0.3)))
    for i, score in enumerate(x):
        exact = Fraction(float(score)) * factor + term
        assert Fraction(float(down[i])) <= exact < Fraction(float(np.nextafter(down[i], np.float32(np.inf))))
        product = Fraction(float(score)) * factor
        assert Fraction(float(np.nextafter(up[i], np.float32(-np.inf)))) < product <= Fraction(float(up[i]))
        assert abs(Fraction(float(near[i])) - exact) <= min(
            abs(Fraction(float(np.nextafter(near[i], np.float32(way)))) - exact) for way in (np.inf, -np.inf)
        )


# ---- threads


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_shows(emulate, seed):
    body = "shared[thread] = thread; p.out[thread] = shared[blockDim.x - 1 - thread];"
    out = emulate(body, words=256, threads=256, seed=seed)
    assert (out != np.arange(256)[::-1]).any()


COPIED = """
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(address(&shared[thread])), "l"(&p.in[thread]));
  {wait}
  p.out[thread] = shared[thread];
"""
WAITS = 'asm volatile("cp.async.commit_group; cp.async.wait_all;" ::: "memory");'


def test_a_copy_that_nobody_waits_for_may_be_late(emulate):
    x = np.arange(32) + 7
    assert all((emulate(COPIED.format(wait=WAITS), x, seed=seed) == x).all() for seed in SEEDS)
    came = [(emulate(COPIED.format(wait=""), x, seed=seed) == x).all() for seed in SEEDS]
    assert True in came
    assert False in came


BULK = """
  u64* arrival = reinterpret_cast<u64*>(shared);
  u32* to = shared + 4;
  if (thread == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(arrival)));
  __syncthreads();
  if (thread == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(address(arrival)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 :: "r"(address(to)), "l"(p.in), "r"(address(arrival)) : "memory");
  }
  u32 come = 0;
  while (WAIT && !come)
    asm volatile("{ .reg .pred c; mbarrier.try_wait.parity.shared::cta.b64 c, [%1], 0; selp.u32 %0, 1, 0, c; }"
                 : "=r"(come) : "r"(address(arrival)) : "memory");
  p.out[thread] = to[thread];
"""


def test_bulk_copies_arrive_when_their_bytes_have(emulate):
    x = np.zeros(260, np.uint32)
    x = x[-x.ctypes.data % 16 // 4 :][:256]
    x[:] = np.arange(256) + 1
    waits = [emulate(BULK.replace("WAIT", "true"), x, 256, threads=256, shared=2048, seed=seed) for seed in SEEDS]
    assert all((out == x).all() for out in waits)
    with pytest.raises(build.EmulationError, match="leaves while bytes are on their way"):
        for seed in SEEDS:
            emulate(BULK.replace("WAIT", "false"), x, 256, threads=256, shared=2048, seed=seed)


PEERS = """
  u32 rank, there, other = 0;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  shared[thread] = 100 * rank + thread;
  asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(&shared[thread])), "r"((rank + 1) % 4));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(other) : "r"(there) : "memory");
  p.out[all] = other;
"""


def test_shared_memory_of_a_cta_that_has_left_is_refused(emulate):
    with pytest.raises(build.EmulationError, match="which has left"):
        for seed in SEEDS:
            emulate(PEERS, words=256, grid=8, cluster=4, seed=seed)


def test_an_address_of_a_cluster_names_its_cta(emulate):
    short = 'asm volatile("st.shared.u32 [%0], %1;" :: "r"(address(&shared[thread]) & 0xffff), "r"(thread) : "memory");'
    emulate(short)
    with pytest.raises(build.EmulationError, match="is of no CTA of the cluster"):
        emulate(short, words=64, grid=2, cluster=2)


# ---- what no GPU allows

TWICE = """
  __shared__ u64 arrival;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(&arrival)));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 64;" :: "r"(address(&arrival)));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 64;" :: "r"(address(&arrival)));
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("shared[p.n * 256 + thread] = 1;", "is outside the 1024 bytes"),
        ("*reinterpret_cast<u64*>(p.out + 1 + thread) = 1;", "is misaligned"),
        ("if (thread < 16) { __syncthreads(); p.out[0] = 1; } else { __syncthreads(); p.out[1] = 2; }", "two barriers"),
        ("if (thread < 16) __syncwarp(); else __ballot_sync(~0u, 1);", "different things together"),
        ("p.out[thread] = __ballot_sync(0xffffu, 1);", "is not in its own mask"),
        ("volatile u32* flag = shared; *flag = 0; __syncthreads(); while (*flag == 0) __nanosleep(10);", "never comes"),
        (TWICE, "more arrivals"),
    ],
)  # fmt: skip
def test_what_no_gpu_allows_is_refused(emulate, body, told):
    with pytest.raises(build.EmulationError, match=rf"{told}.*PTX line \d+, CTA 0, thread \d+\), seed 0"):
        emulate(body, words=64)


def test_half_a_block_at_a_barrier_is_told(emulate):
    body = 'if (thread < 32) asm volatile("barrier.cta.sync 1, 64;" ::: "memory"); p.out[thread] = 1;'
    with pytest.raises(build.EmulationError, match="wait for what never comes"):
        emulate(body, words=64, threads=64)


def test_an_unknown_instruction_is_named(emulate):
    with pytest.raises(UnknownInstructionError, match=r"sin\.approx"):
        emulate("p.out[thread] = __float_as_uint(__sinf(1.0f + thread));")
    with pytest.raises(UnknownInstructionError, match=r"min\.NaN\.f32"):
        emulate('float x; asm("min.NaN.f32 %0, %1, 0f3F800000;" : "=f"(x) : "f"(1.0f * thread)); p.out[0] = x;')
