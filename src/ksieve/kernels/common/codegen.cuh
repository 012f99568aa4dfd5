// Idioms that steer the compiler, and what registers decide. None changes what is computed; each says what ptxas does
// without it. docs/decisions/0017-code-generation.md has the measurements. Included by common/params.cuh alone.
#pragma once

// Returns the condition and marks its branch as rare: that code is kept out of the instructions that every row runs.
// Placement matters as much as length, since a CTA executes most instructions only once.
__device__ __forceinline__ bool unlikely(bool condition) { return __builtin_expect(condition, false); }

// Hides from the compiler how a value was computed: what depends on it is computed where it is used, instead of early,
// into a register that is then spilled. Macros, since ptxas schedules the callers of functions in another way.
#define KSIEVE_OPAQUE(value) asm volatile("" : "+r"(value))
#define KSIEVE_OPAQUE_64(value) asm volatile("" : "+l"(value))
// Waits here for a load of 16 bytes.
#define KSIEVE_AWAIT_WORDS(value)                                                                                      \
  asm volatile("" : "+r"((value).word[0]), "+r"((value).word[1]), "+r"((value).word[2]), "+r"((value).word[3]))

// Returns true, which the compiler does not know: ptxas would wait in front of a barrier for loads that are used behind
// it, but not in front of a branch.
__device__ __forceinline__ bool always(int positive) {
  KSIEVE_OPAQUE(positive);
  return positive > 0;
}

// Keeps apart what is before and behind: ptxas would interleave both, and spill. Call by whole warps.
__device__ __forceinline__ void keep_apart() { __syncwarp(); }

// Defines a function that reads a special register where it is called: kept in a register for long, it would be
// spilled.
#define KSIEVE_REREAD(type, name, source)                                                                              \
  __device__ __forceinline__ type name() {                                                                             \
    type value;                                                                                                        \
    asm volatile("mov.u32 %0, %%" source ";" : "=r"(value));                                                           \
    return value;                                                                                                      \
  }
KSIEVE_REREAD(int, read_tid, "tid.x")
KSIEVE_REREAD(int, grid_size, "nctaid.x")
KSIEVE_REREAD(int, cluster_number, "clusterid.x")
KSIEVE_REREAD(u32, cta_in_cluster, "cluster_ctarank")

// ---- Functions that are called where their callers would spill, and inlined elsewhere -------------------------------

#if KSIEVE_ORDER // rare functions, where slots are sorted
#define KSIEVE_COLD __device__ __noinline__
#else
#define KSIEVE_COLD __device__ __forceinline__
#endif
#if KSIEVE_POSITIONS && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200 // rows of 16-bit scores
#define KSIEVE_ENTRIES __device__ __noinline__
#else
#define KSIEVE_ENTRIES __device__ __forceinline__
#endif
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200) // distributed/select.cu
#define KSIEVE_RANKS __device__ __noinline__
#else
#define KSIEVE_RANKS __device__ __forceinline__
#endif
#if KSIEVE_FOLD // stream/refine.cuh
#define KSIEVE_RANKED __device__ __noinline__
#else
#define KSIEVE_RANKED __device__ __forceinline__
#endif

// ---- What registers suffice for: elsewhere ptxas would spill --------------------------------------------------------

constexpr int kSmThreads = kThreads * KSIEVE_CTAS_PER_SM;     // threads of a multiprocessor, which share its registers
constexpr int kRegisters = 65536 / kSmThreads / 8 * 8;        // of a thread
constexpr int kHeld = (kStages + kOverflowVectors) * kVector; // scores of a resident row for each thread
// An epilogue, or slots written by the selection, that leave no registers to the selection before.
constexpr bool kHungry = kWritesSlots ? kOverflowVectors > 0 : kEpilogue && (kSorts || !kExpand || kPositions);
constexpr bool kRowInOneCta =
    kMaxResident > 0 && kMaxResident == kHeld * kThreads && !kInRegisters && !kHungry && !kBlockRows;
// Registers of a thread besides the bucket numbers of a resident row, where one CTA has the row.
constexpr int kSpareRegisters = kRowInOneCta ? kRegisters - kHeld / 2 : 0;
constexpr bool kRoomy = kSpareRegisters >= 24;
constexpr bool kBracketKnownEarly = kSpareRegisters >= 30; // a bracket is read in front of the counts' barrier
constexpr bool kReadsVectorsAhead = kHeld <= 72 || kSmThreads <= 512; // while the one before is counted
constexpr bool kMasksEnds = kOverflowVectors == 0 && !(Stored::kConverts && kSmThreads >= 1024); // of a window
constexpr bool kTriesBothEnds = kHeld <= 64;                 // of a bracket, as the value of a plateau
constexpr bool kKeepsBins = kHeld <= (1 << 16) / kSmThreads; // of the scores in a bucket that is divided

// Returns threadIdx.x; where registers are short it is read again, so that addresses computed from it are not kept from
// row to row, and spilled. Reading it takes as long as a load from shared memory, so it is kept where registers are
// left.
__device__ __forceinline__ int reread_tid() {
  return kSpareRegisters >= (kOverflowVectors ? 56 : 40) ? static_cast<int>(threadIdx.x) : read_tid();
}
