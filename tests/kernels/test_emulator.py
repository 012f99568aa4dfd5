"""The emulator itself, on small kernels: what instructions compute, what threads do together, and what it refuses."""

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


SPECIAL = np.array(
    [0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x3F800000, 0xBF800000, 0x33000000,
     0x477FEFFF, 0x477FF000, 0x38800000, 0x387FC000, 0x4EFFFFFF, 0x4F000000, 0xCF000000, 0x4F7FFFFF, 0x4F800000],
    np.uint32,
)  # fmt: skip


def some_bits(seed=1, count=4000):
    rng = np.random.default_rng(seed)
    return np.concatenate([SPECIAL, rng.integers(0, 1 << 32, count, dtype=np.uint32)])


def test_half_precision_is_rounded_to_even(emulate):
    bits = some_bits()
    half = 'unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); '
    got = unary(emulate, half + "y = h", bits)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = bits.view(np.float32).astype(np.float16)
    number = ~np.isnan(expected)
    assert (got[number] == expected[number].view(np.uint16)).all()
    assert np.isnan(got.astype(np.uint16).view(np.float16)[~number]).all()
    back = unary(emulate, half + 'float g; asm("cvt.f32.f16 %0, %1;" : "=f"(g) : "h"(h)); y = __float_as_uint(g)', bits)
    assert (back.view(np.float32)[number] == expected[number].astype(np.float32)).all()


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


@pytest.mark.parametrize(
    ("expression", "of"),
    [
        ("y = __popc(x)", lambda x: x.bit_count()),
        ("y = abs(static_cast<int>(x))", lambda x: abs(x - (x >> 31 << 32))),
        ("y = max(static_cast<int>(x), -5)", lambda x: max(x - (x >> 31 << 32), -5) & 0xFFFFFFFF),
        ("y = max(x, 99u) - min(x, 77u)", lambda x: max(x, 99) - min(x, 77)),
        ("y = x % 1000u + x / 7u", lambda x: (x % 1000 + x // 7) & 0xFFFFFFFF),
        ("y = __clz(x)", lambda x: 32 - x.bit_length()),
        ("y = __brev(x)", lambda x: int(f"{x:032b}"[::-1], 2)),
        ("y = __ffs(x)", lambda x: (x & -x).bit_length()),
        ("y = __byte_perm(x, 0x01234567, 0x7610)", lambda x: 0x01230000 | (x & 0xFFFF)),
        ('asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(y) : "r"(x))', lambda x: sum(
            0xFFFF << 16 * i for i in range(2) if x >> 15 + 16 * i & 1)),
        ('asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(x & 63))', lambda x: x << (x & 63) & 0xFFFFFFFF),
        ('asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(x & 63))', lambda x: x >> (x & 63)),
        ('asm("shr.s32 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(x & 63))', lambda x: (
            (x - (x >> 31 << 32)) >> (x & 63)) & 0xFFFFFFFF),
        ("y = __umulhi(x, 0xdeadbeef)", lambda x: x * 0xDEADBEEF >> 32),
        ("y = static_cast<u32>(__mulhi(static_cast<int>(x), -77777))", lambda x: (
            (x - (x >> 31 << 32)) * -77777 >> 32) & 0xFFFFFFFF),
        ("y = static_cast<u32>((static_cast<u64>(x) * x + 5) >> 13)", lambda x: (x * x + 5) >> 13 & 0xFFFFFFFF),
        ("y = __viaddmin_s16x2_relu(x, 0x00070007u, 0x20002u)", lambda x: sum(
            min(max((h + 7 + 0x8000) % 0x10000 - 0x8000, 0), 2) << 16 * i
            for i, h in enumerate((x & 0xFFFF, x >> 16)))),
        ('asm("bfi.b32 %0, %1, %2, 8, 12;" : "=r"(y) : "r"(x), "r"(0x55555555))', lambda x: (
            0x55555555 & ~0xFFF00 | (x & 0xFFF) << 8)),
    ],
)  # fmt: skip
def test_bits(emulate, expression, of):
    bits = some_bits(5, 500)
    got = unary(emulate, expression, bits)
    assert got.tolist() == [of(int(x)) for x in bits]


# ---- threads


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_of_a_warp(emulate, seed):
    body = """
      const u32 x = p.in[thread];
      const u32 odd = __ballot_sync(~0u, x & 1);
      u32 sum = x;
      for (int by = 1; by < 32; by *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, by);
        if (thread >= by) sum += other;
      }
      u32 mine = 0;
      if (x & 1) {
        mine = __reduce_add_sync(odd, x) + __shfl_sync(odd, x, __ffs(odd) - 1);
      } else {
        mine = __reduce_min_sync(~odd, x) + __popc(__match_any_sync(~odd, x / 8));
      }
      p.out[thread] = sum;
      p.out[32 + thread] = mine;
      p.out[64 + thread] = __shfl_xor_sync(~0u, x, 5) + __shfl_sync(~0u, x, thread + 3, 8);
    """
    x = np.random.default_rng(seed).integers(0, 40, 32).astype(np.uint32)
    out = emulate(body, x, 96, seed=seed)
    odd = x % 2 == 1
    same = np.array([sum((x // 8 == v // 8) & ~odd) for v in x])
    assert (out[:32] == np.cumsum(x)).all()
    assert (out[32:64] == np.where(odd, x[odd].sum() + x[odd][:1].sum(), x[~odd].min(initial=99) + same)).all()
    lanes = np.arange(32)
    assert (out[64:] == x[lanes ^ 5] + x[lanes // 8 * 8 + (lanes + 3) % 8]).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_that_are_active_together(emulate, seed):
    """All threads that take a branch, in any order of arrival."""
    out = emulate("u32 m = 0; if (p.in[thread]) m = __activemask(); p.out[thread] = m;", [1, 0, 0, 1] * 8, seed=seed)
    assert (out == [0x99999999, 0, 0, 0x99999999] * 8).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_waits_for_lanes_that_have_left(emulate, seed):
    out = emulate("if (thread % 4) return; p.out[thread] = __ballot_sync(~0u, thread != 8);", seed=seed)
    assert (out[::4] == 0x11111011).all()


REVERSED = "shared[thread] = thread; {barrier} p.out[thread] = shared[blockDim.x - 1 - thread];"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_orders_a_block(emulate, seed):
    out = emulate(REVERSED.format(barrier="__syncthreads();"), words=256, threads=256, seed=seed)
    assert (out == np.arange(256)[::-1]).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_missing_barrier_shows(emulate, seed):
    out = emulate(REVERSED.format(barrier=""), words=256, threads=256, seed=seed)
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
  LEAVE
"""
STAYS = 'asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");'


@pytest.mark.parametrize("seed", SEEDS)
def test_ctas_of_a_cluster_read_each_other(emulate, seed):
    out = emulate(PEERS.replace("LEAVE", STAYS), words=256, grid=8, cluster=4, seed=seed)
    expected = [100 * ((cta % 4 + 1) % 4) + lane for cta in range(8) for lane in range(32)]
    assert out.tolist() == expected


def test_shared_memory_of_a_cta_that_has_left_is_refused(emulate):
    with pytest.raises(build.EmulationError, match="which has left"):
        for seed in SEEDS:
            emulate(PEERS.replace("LEAVE", ""), words=256, grid=8, cluster=4, seed=seed)


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
