// On-chip state of one selecting CTA, and the bounded candidate array built on it.
#pragma once
#include "common/params.cuh"

// One boundary found in a histogram: the bin that holds the requested rank.
struct Boundary {
  int bin;
  int before; // members of better bins
  int count;  // members of the bin itself
};

// How a scan treats the scores that reach its cutoff.
enum class Mode {
  kInclusive,    // all are candidates
  kSeparateTies, // better ones are candidates; equal ones are counted, and fill the output from its end
  kClassify,     // some are better than the candidates, some are candidates
};

// Bins of a histogram over ordered keys: bin 0 takes every key up to `base`, and the ones after it equal steps.
struct Digit {
  u32 base;
  int shift;
};

// What the current scan does with each score; written by thread 0, read only where a score passes the cutoff.
struct ScanRule {
  Mode mode;
  u32 emit_from; // keys [emit_from, best): part of the answer already, straight to the output
  u32 best;      // keys [best, worst]: candidates
  u32 worst;
  Digit digit; // that candidates are counted by
  int k;
  int* row_out;
  int* num_selected; // output slots taken from the front: this CTA's counter, or its cluster's
  int* num_ties;     // and from the back, by scores equal to an exact boundary: this CTA's, or its row's
};

using RingSlot = Words;

enum class RowRoute : unsigned char {
  kNone,
  kStreamed,
  kShort,
  kResident
}; // kNone: past the rows; kShort: all is selected

// Where the k-th score of a row is looked for.
struct alignas(16) Bracket {
  u32 worst;   // ordered keys: its end
  u32 best;    // and its beginning
  int signs;   // whether some of those are not positive
  u32 plateau; // key of a score that kPlateau samples of a warp are, or more; 0: none
};

// A row that is copied whole, and the tile of it in this CTA: facts that one thread computes for all, and counters.
struct alignas(16) RowDescriptor {
  const void* body;   // what is copied 16 bytes at a time
  u32 bytes;          // of that
  int copy;           // parity of its bulk copy's number; -1: it is not copied in bulk
  const void* scores; // the row's first
  int* out;
  int id;
  int slots; // its k
  int begin; // of the part
  int end;
  int body_begin;      // the position where the body begins
  int valid;           // scores of the part that the copy has, from there on
  unsigned char first; // samples of a warp that are better than where the range begins; 32 times more: it is raised
  unsigned char last;  // and ends; or lengthened, by 2^times - 1 ranges
  bool edges;          // whether scores are outside the body
  RowRoute way;
  int base; // with windows: what is added to an index that is written
  Bracket range;
  int better;       // scores better than a plateau
  int equal;        // and equal to it
  int num_selected; // output positions collected by this CTA
  int tail_count;   // entries of `few`, or output slots taken by equal scores
};

template <bool kHalf> struct PlaceType {
  using Type = u32;
};
template <> struct PlaceType<true> {
  using Type = unsigned short;
};
using Place = PlaceType<kLocalIndex16>::Type;
constexpr int kColumnKeys = kColumns * kThreads * sizeof(u32); // bytes of the keys in all columns
constexpr int kColumnBytes = kColumnKeys + kColumns * kThreads * sizeof(Place);

constexpr int kMostChunks = 4; // of a row that is copied
constexpr int kDescriptors =
    kMaxResident ? 16 : 3; // places for what is known of rows; half of them are described at a time
constexpr int kSamples =
    kMaxResident ? kThreads : sizeof(RowDescriptor) / 2; // of each thread; or nothing, in place of a row

struct alignas(16) SharedStorage {
  RingSlot ring[kStages][kThreads]; // 16-byte loads in flight: common/load.cuh
  u32 histogram[kBins];             // all zero whenever a counting step begins
  alignas(8) unsigned char candidates[kColumnBytes + kSharedCapacity * sizeof(u64)]; // columns, then the list
  int thread_count[kColumns ? kThreads : 4];    // filled part of each column; its thread's own
  u64 tail[kTailMax];                           // the last unresolved candidates
  alignas(16) unsigned short samples[kSamples]; // of resident rows, ranked by their warps
  u32 warp_totals[32];
  ScanRule rule;
  u64* spill; // this worker's slice of global workspace
  Boundary found[2];
  u32 cutoff[2];      // inclusive ordered keys of the primary and the rescue boundary
  u32 view_best;      // best ordered key of the view
  int expect_plateau; // an exact boundary that the view saw more than once: expect a plateau
  int tail_count;     // entries of `few`, or output slots taken by members of the last frontier
  int listed;         // list slots handed out; may exceed kListed, storage never does
  int count;          // candidates admitted, stored or not
  int num_selected;   // output slots taken from the front
  int num_ties;       // and from the back
  u32 least;          // least and greatest key among candidates that found no slot
  u32 greatest;
  int next; // next row of a persistent CTA; of resident_block, the first that is not described
  int next_length;
  int origin; // position of the first score that thread 0 reads
  int flag;   // block-wide broadcast of the split family; of resident_block: whether rows are not resident
  int trace[kStatsColumns];
  const void* window;       // of windows: the row's first score
  int row_slots;            // its own k
  int base;                 // and what is added to an index that is written
  int tie_last;             // of tie-breaks: the row's last position
  int tie_from;             // and the position that ties are preferred from, one end of the row
  int tie_quota;            // what one more traversal has to collect: this many scores
  u32 tie_key;              // of this key
  u64 arrival[kMostChunks]; // of bulk copies
  int copies;               // that rows described so far take
  int next_id;              // of rows that are listed by length: the number of the one whose length was fetched
  RowDescriptor descriptors[kDescriptors]; // of resident_block: rows beside the current one, in turn; of a cluster one
};
static_assert(sizeof(SharedStorage) == KSIEVE_SHARED_BYTES, "planning/memory.py mirrors this struct");

extern __shared__ __align__(16) unsigned char shared_bytes[];

__device__ __forceinline__ SharedStorage& shared_storage() { return *reinterpret_cast<SharedStorage*>(shared_bytes); }

// A stored candidate: high word its ordered key, low word its index. A thread owns a column in shared memory, which
// it alone writes and reads, and every kThreads-th slot of the list, which holds what outgrows a column: the first
// kSharedCapacity slots of it in shared memory, later ones in the spill slice. All of kCapacity fits the list, so
// whatever the columns' share, a frontier up to kCapacity is stored; stream/certify.cuh scans again for a larger one.
constexpr int kListed = kCapacity;

__device__ __forceinline__ u64 make_entry(u32 high, int index) {
  return static_cast<u64>(high) << 32 | static_cast<u32>(index);
}
__device__ __forceinline__ u32 entry_key(u64 entry) { return static_cast<u32>(entry >> 32); }
__device__ __forceinline__ int entry_index(u64 entry) { return static_cast<int>(entry & 0xffffffffu); }

constexpr int kVector = kDtype == Dtype::kFloat32 ? 4 : 8; // scores in one 16-byte load
constexpr int kStep = kThreads * kVector;                  // scores between two vectors of a thread

// Columns hold keys, and in a separate array the index of each: itself, or, in two bytes less, its place among the
// scores that the thread reads, vector by vector (kLocalIndex16).
__device__ __forceinline__ u32& column_key(int at) {
  return reinterpret_cast<u32*>(shared_storage().candidates)[at * kThreads + static_cast<int>(threadIdx.x)];
}
__device__ __forceinline__ Place& column_place(int at) {
  return reinterpret_cast<Place*>(shared_storage().candidates +
                                  kColumnKeys)[at * kThreads + static_cast<int>(threadIdx.x)];
}

__device__ __forceinline__ u32 load_place(int at) {
  return load_shared_here<sizeof(Place)>(shared_address(&column_place(at)));
}

constexpr int kBatch = kStages / kBatches; // vectors that a thread looks at together
static_assert(kStages % kBatches == 0, "a turn of the ring is whole batches");

constexpr bool kSmall = kColumns > 0 && kThreads <= 256; // few columns, which many candidates soon outgrow

// Where this thread's vectors lie in the steps of a batch, given where they did `batches` before. Threads of small CTAs
// move on by a line each time: a period of the scores would otherwise meet the same few of them throughout. Larger ones
// would pay 1% for it.
__device__ __forceinline__ int moved_on(int place, int batches) {
  constexpr int kLine = 128 / 16 * kVector;
  static_assert((kStep & (kStep - 1)) == 0, "places go round");
  return kSmall ? (place + batches * kLine) & (kStep - 1) : place;
}

// Registers left for each thread beside the bucket numbers of a row in one CTA. They gate code that would spill.
constexpr int kRegisters = 65536 / (kThreads * KSIEVE_CTAS_PER_SM) / 8 * 8;
constexpr bool kOwns =
    kMaxResident > 0 && kMaxResident == (kStages + kOverflowVectors) * kStep && !KSIEVE_REGISTERS && !kEpilogue;
constexpr int kSpareRegisters = kOwns ? kRegisters - kMaxResident / kThreads / 2 : 0;
constexpr bool kRoomy = kSpareRegisters >= 24;
constexpr bool kKnownEarly =
    kSpareRegisters >= 30; // where a row's boundary is looked for, before every thread has come

// threadIdx.x where it is rarely needed: addresses made of it are then not kept from row to row, and spilled. Reading
// it takes as long as a load from shared memory, so it is kept where registers are left.
__device__ __forceinline__ int reread_tid() {
  return kSpareRegisters >= (kOverflowVectors ? 56 : 40) ? static_cast<int>(threadIdx.x) : read_tid();
}

__device__ __forceinline__ int own_place() { return static_cast<int>(threadIdx.x) * kVector; }

__device__ __forceinline__ int index_of_place(u32 place, int own = own_place()) {
  if (!kLocalIndex16) return static_cast<int>(place);
  int vector = static_cast<int>(place / kVector);
  int within = moved_on(own, vector / kBatch) + static_cast<int>(place % kVector);
  return shared_storage().origin + vector * kStep + within;
}

// An index in a form that any thread can decode: a place and its thread, or with the sign bit the index itself.
// Encoding costs one instruction for each entry of a column; only entries that are written are decoded.
__device__ __forceinline__ int code_of_place(u32 place) {
  return static_cast<int>(kLocalIndex16 ? threadIdx.x << 16 | place : place);
}
__device__ __forceinline__ int code_of_index(int index) { return kLocalIndex16 ? index | 1 << 31 : index; }
__device__ __forceinline__ int index_of_code(int code) {
  if (!kLocalIndex16) return code;
  int index = index_of_place(code & 0xffff, (code >> 16) * kVector);
  return code < 0 ? code & 0x7fffffff : index;
}

__device__ __forceinline__ u64 column_entry(int at) {
  return make_entry(column_key(at), index_of_place(column_place(at)));
}
__device__ __forceinline__ u64* shared_list(SharedStorage& s) {
  return reinterpret_cast<u64*>(s.candidates + kColumnBytes);
}

__device__ __forceinline__ u64& list_entry(int slot) {
  SharedStorage& s = shared_storage();
  return kSharedCapacity == kListed || slot < kSharedCapacity ? shared_list(s)[slot] : s.spill[slot - kSharedCapacity];
}

__device__ __forceinline__ int own_height() { return kColumns ? shared_storage().thread_count[threadIdx.x] : 0; }

// Stored candidates of this thread: its column, then its part of the list.
__device__ __forceinline__ int own_count() {
  int listed = min(shared_storage().listed, kListed) - static_cast<int>(threadIdx.x);
  return own_height() + max(listed + kThreads - 1, 0) / kThreads;
}

__device__ __forceinline__ u64 own_entry(int i, int thread_count) {
  return i < thread_count ? column_entry(i) : list_entry((i - thread_count) * kThreads + static_cast<int>(threadIdx.x));
}

// Calls visit(entry, at) for each entry of this thread's column. Entries are loaded four at a time, so that the lanes
// of a warp wait together.
template <class Visit> __device__ __forceinline__ void each_in_column(int thread_count, Visit visit) {
#pragma unroll 1
  for (int i = 0; i < thread_count; i += 4) {
    u64 entry[4];
#pragma unroll
    for (int b = 0; b < 4; ++b)
      entry[b] = column_entry(min(i + b, thread_count - 1));
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      if (i + b >= thread_count) break;
      visit(entry[b], i + b);
    }
  }
}

// Calls visit(entry) for each stored candidate of this thread.
template <class Visit> __device__ __forceinline__ void each_own(Visit visit) {
  if (kColumns) each_in_column(own_height(), [&](u64 entry, int) { visit(entry); });
  int listed = min(shared_storage().listed, kListed);
#pragma unroll 1
  for (int slot = threadIdx.x; slot < listed; slot += kThreads)
    visit(list_entry(slot));
}

// Folds keys of a warp's lanes into the extremes that `s` keeps. A barrier must follow.
__device__ __forceinline__ void fold_extremes(SharedStorage& s, u32 least, u32 greatest) {
  least = __reduce_min_sync(kFullWarp, least);
  greatest = __reduce_max_sync(kFullWarp, greatest);
  if ((threadIdx.x & 31) == 0) {
    atomicMin(&s.least, least);
    atomicMax(&s.greatest, greatest);
  }
}

// Forgets all candidates. Between barriers.
__device__ __forceinline__ void forget_candidates() {
  SharedStorage& s = shared_storage();
  if (kColumns) s.thread_count[threadIdx.x] = 0;
  if (threadIdx.x != 0) return;
  s.listed = s.count = 0;
  s.least = kNanKey;
  s.greatest = 0;
}

// The same, and what they were counted into. A barrier must follow.
__device__ __forceinline__ void clear_counts(int thread = static_cast<int>(threadIdx.x)) {
  constexpr int kSlots = kBins / 4;
#pragma unroll
  for (int first = 0; first < kSlots; first += kThreads)
    if (first + kThreads <= kSlots || thread < kSlots - first)
      reinterpret_cast<RingSlot*>(shared_storage().histogram)[first + thread] = {};
  forget_candidates();
}

// Empties everything a row leaves behind. A barrier must follow.
__device__ __forceinline__ void clear_storage() {
  SharedStorage& s = shared_storage();
  clear_counts();
  if (threadIdx.x == 0) {
    s.num_selected = s.tail_count = s.num_ties = s.expect_plateau = 0;
    s.view_best = kNanKey;
    if (kTies) s.tie_quota = 0;
  }
}
