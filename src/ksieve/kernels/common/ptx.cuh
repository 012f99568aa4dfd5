// All inline PTX. Each function is one instruction, or one short sequence that ptxas must not take apart, because CUDA
// C++ has no intrinsic for it or compiles the intrinsic to more.
#pragma once

struct alignas(16) Words {
  unsigned word[4];
};

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// ---- Numbers ------------------------------------------------------------------------------------------------------

// Returns the bits of the nearest float16. NVRTC ships no cuda_fp16.h.
__device__ __forceinline__ unsigned short half_of(float value) {
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
__device__ __forceinline__ float float_of_half(unsigned short half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
// Converts two floats to float16, `low` in the low half.
__device__ __forceinline__ unsigned halves_of(float high, float low) {
  unsigned halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
  return halves;
}
// Returns all ones in each half that is NaN, and zero in the others.
__device__ __forceinline__ unsigned nan_halves(unsigned halves) {
  unsigned nan;
  asm("set.nan.u32.f16x2 %0, %1, %1;" : "=r"(nan) : "r"(halves));
  return nan;
}
// Return all ones in each half that is at least the other word's half, or equals it, and zero in the others: numbers of
// float16, or bfloat16 (from sm_90 on).
#define KSIEVE_COMPARE_HALVES(name, comparison)                                                                        \
  template <bool kBFloat> __device__ __forceinline__ unsigned name(unsigned halves, unsigned others) {                 \
    unsigned found;                                                                                                    \
    if constexpr (kBFloat) {                                                                                           \
      asm("set." comparison ".u32.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(halves), "r"(others));                       \
    } else {                                                                                                           \
      asm("set." comparison ".u32.f16x2 %0, %1, %2;" : "=r"(found) : "r"(halves), "r"(others));                        \
    }                                                                                                                  \
    return found;                                                                                                      \
  }
KSIEVE_COMPARE_HALVES(halves_reaching, "ge")
KSIEVE_COMPARE_HALVES(equal_halves, "eq")
// Returns the greater bfloat16 number of each half; of a number and NaN, the number.
__device__ __forceinline__ unsigned greater_halves(unsigned halves, unsigned others) {
  unsigned greater;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(halves), "r"(others));
  return greater;
}
// Return the greater number, or NaN if one of both is; of halves, each half's.
__device__ __forceinline__ float greater_or_nan(float a, float b) {
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
}
template <bool kBFloat> __device__ __forceinline__ unsigned greater_or_nan_halves(unsigned a, unsigned b) {
  unsigned greater;
  if constexpr (kBFloat) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(greater) : "r"(a), "r"(b));
  }
  return greater;
}
// Returns each half's sign bit, repeated in all of its bits.
__device__ __forceinline__ unsigned signs_of_halves(unsigned halves) {
  unsigned negative;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(halves));
  return negative;
}

// Return 1 if a >= b or a > b, else 0; NaN is neither. Compute capability 9.0 adds floats at twice the rate of
// integers.
__device__ __forceinline__ float one_if_at_least(float a, float b) {
  float one;
  asm("set.ge.f32.f32 %0, %1, %2;" : "=f"(one) : "f"(a), "f"(b));
  return one;
}
__device__ __forceinline__ float one_if_above(float a, float b) {
  float one;
  asm("set.gt.f32.f32 %0, %1, %2;" : "=f"(one) : "f"(a), "f"(b));
  return one;
}

// ---- Lanes and threads --------------------------------------------------------------------------------------------

// Returns the mask of the lanes before this one.
__device__ __forceinline__ unsigned lanes_below() {
  unsigned mask;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
  return mask;
}
// Returns the sum of `mine` over the lanes up to and including this one: the shuffle's own predicate says whether there
// is a lane below. Call by whole warps.
__device__ __forceinline__ unsigned lanes_up_to(unsigned mine) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2)
    asm volatile("{\n"
                 ".reg .u32 other;\n"
                 ".reg .pred there;\n"
                 "shfl.sync.up.b32 other|there, %0, %1, 0, -1;\n"
                 "@there add.u32 %0, %0, other;\n"
                 "}"
                 : "+r"(mine)
                 : "r"(offset));
  return mine;
}

// ---- Global memory ------------------------------------------------------------------------------------------------

// Loads 16 bytes of a row that is read once and exceeds L1: no line of L1 is replaced.
__device__ __forceinline__ Words load_once(const void* address) {
  Words raw;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(raw.word[0]), "=r"(raw.word[1]), "=r"(raw.word[2]), "=r"(raw.word[3])
      : "l"(address));
  return raw;
}
// Loads 8 or 16 bytes that are read again soon: L2 replaces their line last.
template <int kBytes> __device__ __forceinline__ Words load_kept_in_l2(const void* address) {
  Words raw = {};
  unsigned long long kept;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(kept));
  if constexpr (kBytes == 16) {
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(raw.word[0]), "=r"(raw.word[1]), "=r"(raw.word[2]), "=r"(raw.word[3])
        : "l"(address), "l"(kept));
  } else {
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
        : "=r"(raw.word[0]), "=r"(raw.word[1])
        : "l"(address), "l"(kept));
  }
  return raw;
}
template <bool kEvictLast> __device__ __forceinline__ void prefetch_to_l2(const void* address) {
  if constexpr (kEvictLast) {
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(address));
  } else {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
  }
}

// Relaxed accesses at GPU scope, single-copy atomic up to 16 bytes: messages between CTAs.
__device__ __forceinline__ void store_relaxed(unsigned* to, unsigned value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(unsigned long long* to, unsigned long long value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(Words* to, const Words& value) {
  asm volatile("{\n"
               ".reg .b64 low;\n"
               ".reg .b64 high;\n"
               ".reg .b128 all;\n"
               "mov.b64 low, {%1, %2};\n"
               "mov.b64 high, {%3, %4};\n"
               "mov.b128 all, {low, high};\n"
               "st.relaxed.gpu.global.b128 [%0], all;\n"
               "}" ::"l"(to),
               "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}
__device__ __forceinline__ unsigned load_relaxed(const unsigned* from) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* from) {
  unsigned long long value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ Words load_relaxed(const Words* from) {
  Words value;
  asm volatile("{\n"
               ".reg .b64 low;\n"
               ".reg .b64 high;\n"
               ".reg .b128 all;\n"
               "ld.relaxed.gpu.global.b128 all, [%4];\n"
               "mov.b128 {low, high}, all;\n"
               "mov.b64 {%0, %1}, low;\n"
               "mov.b64 {%2, %3}, high;\n"
               "}"
               : "=r"(value.word[0]), "=r"(value.word[1]), "=r"(value.word[2]), "=r"(value.word[3])
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ void add(unsigned* to, unsigned value) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
// Loads 16 bytes of counts that other CTAs add to; each word is single-copy atomic, all four together are not.
__device__ __forceinline__ void load_relaxed_words(const unsigned* from, unsigned (&word)[4]) {
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(from)
               : "memory");
}
__device__ __forceinline__ void add_release(unsigned* to) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(to) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
// Adds, and returns the previous value. Releases what this CTA wrote before its last barrier, and acquires what earlier
// adds released.
__device__ __forceinline__ unsigned add_acq_rel(unsigned* to) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(to) : "memory");
  return before;
}
__device__ __forceinline__ unsigned long long add_acq_rel(unsigned long long* to, unsigned long long value) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(to), "l"(value) : "memory");
  return before;
}

// ---- Shared memory, by address ------------------------------------------------------------------------------------

template <class Score> __device__ __forceinline__ Score load_shared(unsigned from) {
  Score value;
  if constexpr (sizeof(Score) == 2) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(from));
  } else {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from));
  }
  return value;
}
// Loads 2 or 4 bytes here and not where they are used: the lanes that use them wait together.
template <int kBytes> __device__ __forceinline__ unsigned load_shared_here(unsigned from) {
  unsigned value;
  if constexpr (kBytes == 2) {
    asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(from));
  } else {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from));
  }
  return value;
}
__device__ __forceinline__ Words load_shared_words(unsigned from) {
  Words raw;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.word[0]), "=r"(raw.word[1]), "=r"(raw.word[2]), "=r"(raw.word[3])
               : "r"(from)
               : "memory");
  return raw;
}
__device__ __forceinline__ void store_shared(unsigned to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned to, int value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}
template <int kOffset> __device__ __forceinline__ void store_shared_at(unsigned to, int value) {
  asm volatile("st.shared.u32 [%0 + %2], %1;" ::"r"(to), "r"(value), "n"(kOffset) : "memory");
}
template <int kOffset> __device__ __forceinline__ void store_shared_at(unsigned to, unsigned short value) {
  asm volatile("st.shared.u16 [%0 + %2], %1;" ::"r"(to), "h"(value), "n"(kOffset) : "memory");
}
template <unsigned kWord> __device__ __forceinline__ void fill_shared_words(unsigned to) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(kWord) : "memory");
}
__device__ __forceinline__ void store_shared_words(unsigned to, const Words& raw) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(raw.word[0]), "r"(raw.word[1]),
               "r"(raw.word[2]), "r"(raw.word[3])
               : "memory");
}
// Stores where `wanted` is not zero, and then advances `to` by 4 bytes; without a branch.
__device__ __forceinline__ void store_shared_if(unsigned& to, unsigned wanted, int value) {
  asm volatile("{\n"
               ".reg .pred chosen;\n"
               "setp.ne.u32 chosen, %1, 0;\n"
               "@chosen st.shared.u32 [%0], %2;\n"
               "@chosen add.u32 %0, %0, 4;\n"
               "}"
               : "+r"(to)
               : "r"(wanted), "r"(value)
               : "memory");
}
// Stores `one`, and where `more` is not zero `other` behind it; without a branch.
__device__ __forceinline__ void store_shared_one_or_two(unsigned to, int one, int other, unsigned more) {
  asm volatile("{\n"
               ".reg .pred more;\n"
               "setp.ne.u32 more, %3, 0;\n"
               "st.shared.u32 [%0], %1;\n"
               "@more st.shared.u32 [%0 + 4], %2;\n"
               "}" ::"r"(to),
               "r"(one), "r"(other), "r"(more)
               : "memory");
}
// Adds one, without a return value: the hardware combines the lanes of a warp that add to one address.
template <int kOffset> __device__ __forceinline__ void count_shared(unsigned at) {
  asm volatile("red.shared.add.u32 [%0 + %1], 1;" ::"r"(at), "n"(kOffset) : "memory");
}
// Adds one, unless `number` is kNone.
template <unsigned kNone> __device__ __forceinline__ void count_shared_unless(unsigned at, unsigned number) {
  asm volatile("{\n"
               ".reg .pred there;\n"
               "setp.ne.u32 there, %1, %2;\n"
               "@there red.shared.add.u32 [%0], 1;\n"
               "}" ::"r"(at),
               "r"(number), "n"(kNone)
               : "memory");
}

// ---- Asynchronous copies of a thread ------------------------------------------------------------------------------

// Copies 16 bytes to shared memory, bypassing registers and L1.
__device__ __forceinline__ void copy_ahead(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_int_ahead(int& to, const int* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft> __device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}
// Waits for all asynchronous copies of this thread.
__device__ __forceinline__ void wait_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- Bulk asynchronous copies (sm_90 and later): one thread requests kilobytes, an mbarrier reports their arrival --

// Initialises an mbarrier. Call by one thread, once per launch; publish_mbarriers() and a barrier must come before the
// first wait.
__device__ __forceinline__ void init_mbarrier(unsigned long long* mbarrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(mbarrier)) : "memory");
}

// Makes initialised mbarriers visible to the cluster. Call by the thread that initialised them, before its loads: the
// fence would wait for them.
__device__ __forceinline__ void publish_mbarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders ordinary accesses to shared memory before a bulk copy into it. Call behind the barrier that ended these
// accesses.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Arrives at an mbarrier, with the number of bytes that the phase waits for. Call by one thread, once for each phase.
__device__ __forceinline__ void expect_bytes(unsigned bytes, unsigned long long* mbarrier) {
  unsigned address = shared_address(mbarrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}

// Adds to the bytes that an mbarrier's phase waits for. A barrier must come before another thread arrives for the
// phase.
__device__ __forceinline__ void expect_more(unsigned bytes, unsigned long long* mbarrier) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(mbarrier)), "r"(bytes)
               : "memory");
}

// Copies some of the bytes that an mbarrier waits for. Call by one thread; addresses and size are multiples of 16
// bytes.
__device__ __forceinline__ void copy_expected(void* to, const void* from, unsigned bytes,
                                              unsigned long long* mbarrier) {
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(mbarrier))
               : "memory");
}

// Waits for a phase of an mbarrier; `parity` is the parity of the number of phases before it.
__device__ __forceinline__ void wait_mbarrier(unsigned long long* mbarrier, unsigned parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;\n"
               "}" ::"r"(shared_address(mbarrier)),
               "r"(parity)
               : "memory");
}

// ---- Barriers, clusters, launches ---------------------------------------------------------------------------------

// A named barrier of kThreads threads: warps with kWaits wait at it, others only arrive.
template <bool kWaits, int kThreads> __device__ __forceinline__ void barrier_of_writers() {
  if (kWaits) {
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(kThreads) : "memory");
  } else {
    asm volatile("barrier.cta.arrive 1, %0;" ::"n"(kThreads) : "memory");
  }
}

// Arrives at the cluster barrier without release semantics, where peers need only see initialised mbarriers:
// outstanding loads go on.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  cluster_wait();
}

// Returns the generic address that a shared object of this CTA has in CTA `cta` of the cluster.
template <class T> __device__ __forceinline__ T* in_cta(T* local, unsigned cta) {
  unsigned long long remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(local), "r"(cta));
  return reinterpret_cast<T*>(remote);
}

// Stores 4, 8 or 16 bytes to CTA `cta` of the cluster and counts them on an mbarrier there. `to` and `mbarrier` are
// the addresses of these objects in this CTA.
template <class T>
__device__ __forceinline__ void send(T* to, const T& value, unsigned cta, unsigned long long* mbarrier) {
  unsigned there;
  unsigned counted;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(to)), "r"(cta));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(shared_address(mbarrier)), "r"(cta));
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
                 "r"(value), "r"(counted)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(there),
                 "l"(value), "r"(counted)
                 : "memory");
  } else {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
        "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3]), "r"(counted)
        : "memory");
  }
}

// Programmatic dependent launch: waits until the kernels before have finished, and lets the next one start.
__device__ __forceinline__ void wait_for_kernels_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
