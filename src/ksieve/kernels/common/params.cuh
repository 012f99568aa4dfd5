// Parameters of a launch and constants of a specialisation. On the host, backends/cuda/runtime/launch.py packs the
// struct and backends/cuda/jit/spec.py makes the defines.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// Selects one of two types by a condition.
template <bool kFirst, class First, class Second> struct Choose {
  using Type = First;
};
template <class First, class Second> struct Choose<false, First, Second> {
  using Type = Second;
};

#include "common/ptx.cuh"

#include "common/leading.cuh"
#include "common/options.cuh"

#include "common/dtypes.cuh"

// Members that locate a row come first: a kernel's first access waits for 64 bytes of constants, which have all of
// these members.
struct Params {
  const void* scores;  // (rows, width) scores, `pitch` apart
  const int* lengths;  // (rows,) valid prefix of each row, clamped; 64-bit with kLongLengths; null: every row is full
  const int* num_rows; // live row count, clamped here; null: all rows
  i64 pitch;           // elements; with kSegments those of the flat array
  int rows;
  int width;
  int k;
  int splits;               // CTAs per row, where several share one
  int* indices;             // (rows, k) result, `out_pitch` apart
  i64 out_pitch;            // elements
  int* stats;               // (rows, kStatsColumns); null unless KSIEVE_STATS
  unsigned char* workspace; // layout: common/workspace.cuh
  i64 lists;                // bytes of the workspace before the lists of rows or candidates
  int primary_rank;         // rank in the sample of the primary cutoff
  int rescue_rank;          // of the rescue cutoff; 0: there is none
#if KSIEVE_OPTIONS          // only the preprocessor can leave out a member
  Options options;
  static constexpr int kBytes = 96 + sizeof(Options);
#else
  static constexpr int kBytes = 96;
  static constexpr Options options = {};
#endif
#if KSIEVE_FOLD
  FoldOptions fold;
#endif
#if KSIEVE_LEADING
  Leading leading[kArrays];
#endif
};
static_assert(sizeof(Params) == Params::kBytes + kFoldBytes + kLeadingBytes,
              "the host packs 96 bytes, and what follows them");

constexpr bool kBulkCopies = __CUDA_ARCH__ >= 900; // resident rows are copied by bulk asynchronous copies

constexpr int kThreads = KSIEVE_THREADS;
constexpr int kWarps = kThreads / 32;
constexpr int kStages = KSIEVE_STAGES;       // 16-byte loads in flight per thread
constexpr int kBatches = KSIEVE_BATCHES;     // batches that these loads are committed in
constexpr bool kSampled = KSIEVE_STRIDE > 0; // otherwise every row takes the exact route
constexpr int kStride = kSampled ? KSIEVE_STRIDE : 1;
constexpr int kGroup = KSIEVE_GROUP;
constexpr int kPhaseMultiplier = KSIEVE_PHASE_MULTIPLIER;
constexpr bool kJitter = KSIEVE_JITTER != 0; // each period of a row samples another group, by a hash
// The hash's constants: core/policy.py, JITTER_*.
constexpr u32 kJitterRow = 0xC2B2AE35, kJitterPeriod = 0x85EBCA6B, kJitterMix = 0x9E3779B1;
constexpr int kJitterShift = 13;
constexpr int kPool = KSIEVE_POOLING ? 4 : 1; // adjacent scores whose best is one sample: core/policy.py, PEAK
constexpr bool kExactBoundary = KSIEVE_EXACT_BOUNDARY != 0; // a cutoff is a sample, not the end of its bin
constexpr bool kRescue = KSIEVE_RESCUE != 0;
constexpr int kColumns = KSIEVE_COLUMNS; // candidates in each thread's column
constexpr bool kLocalIndex16 =
    KSIEVE_LOCAL_INDEX16 != 0; // columns store 16-bit indices of a thread's scores: common/storage.cuh
constexpr int kSharedCapacity = KSIEVE_SHARED_CAPACITY; // candidates in the list behind the columns
constexpr int kSpillCapacity = KSIEVE_SPILL_CAPACITY;
constexpr int kCapacity = kSharedCapacity + kSpillCapacity;
constexpr int kMaxResident = KSIEVE_MAX_RESIDENT; // scores of the longest resident row; 0: no row is resident
// 16-byte loads of a resident row, per thread, that the ring has no room for.
constexpr int kOverflowVectors = KSIEVE_OPTION(KSIEVE_OVERFLOW_VECTORS);
constexpr bool kInRegisters = KSIEVE_OPTION(KSIEVE_REGISTERS); // rows stay in registers: register/
constexpr bool kStats = KSIEVE_STATS != 0;

constexpr u32 kFullWarp = 0xffffffffu;
constexpr u32 kNanKey = 0xffffffffu; // the worst ordered key
constexpr int kBinBits = 11;
constexpr int kBins = 1 << kBinBits; // bins of every histogram, coarse and exact
constexpr int kRounds = 3;           // exact digits of 11, 11 and 10 bits
constexpr int kTailMax = 32;         // undecided candidates that one warp ranks at once

// Columns of the statistics array: core/stats.py, STATS_COLUMNS.
constexpr int kStatsColumns = 16;
enum StatsColumn {
  kColRoute = 0,
  kColTau0 = 1,
  kColAdmitted0 = 3,
  kColFrontier0 = 5,
  kColCommitted0 = 9,
  kColFilled = 13,
  kColScans = 14,
  kColSampled = 15,
};
// kRecovered, kRecoveredAfterBand: the exact route, after a proposal admitted fewer than k scores; kDirect: the exact
// route from the start, without a proposal.
enum Route { kShort = 0, kCertified = 1, kRescued = 2, kRecovered = 3, kRecoveredAfterBand = 4, kDirect = 5 };

#include "common/codegen.cuh"
