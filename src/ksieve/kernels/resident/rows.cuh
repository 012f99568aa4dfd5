// How the resident rows of one CTA are described, copied and sampled, while rows before them are selected.
#pragma once
#include "resident/fallback.cuh"

static_assert(kMaxResident == 0 || kMaxResident == kTile, "the ring holds a row, except its overflow vectors");

// kScouts is the warp that describes rows: kAhead of them at a time, one in each of its first lanes, into the half of
// the descriptors' slots that is not in use. It is neither warp 0, which starts copies, nor the last warp, which ranks;
// where some warps take no samples, it is one of these.
constexpr int kScouts = kSamplers < kWarps ? kSamplers : 1;
constexpr int kAhead = kDescriptors / 2;

// Returns the slot of the next row. It is computed at each use: kept in a register, it would be spilled.
__device__ __forceinline__ int slot_after(int slot) {
  KSIEVE_OPAQUE(slot);
  return (slot + 1) & (kDescriptors - 1);
}

// Describes the next kAhead rows of this CTA, from the launch's `first`-th on, into the slots from `slot` on. `copies`
// bulk copies were started before; returns how many these rows will take. Call by one warp.
__device__ __forceinline__ int describe_rows(const Params& p, int slot, int first, int copies) {
  const u32 lane = static_cast<u32>(reread_tid()) & 31;
  const u32 number = static_cast<u32>(first) + lane * static_cast<u32>(grid_size());
  bool in_bulk = false;
  RowDescriptor& to = shared_storage().descriptors[slot + lane % kAhead];
  if (lane < kAhead) {
    to.route = RowRoute::kNone;
    to.copy = -1;
    if (number < static_cast<u32>(rows_of(p))) {
      const Row row = nth_row(p, static_cast<int>(number));
      describe(p, row, 0, row.length, limit_of(p), to);
      bracket_ranks(row.length, to.slots, kSamplers, to, row.length);
      clear_row(to);
      in_bulk = kBulkCopies && to.route == RowRoute::kResident;
    }
  }
  const u32 copied = __ballot_sync(kFullWarp, in_bulk);
  const int copy = copies + __popc(copied & lanes_below());
  if (in_bulk) to.copy = copy & 1;
  return __popc(copied);
}

// Describes the next rows, into the slots from `slot` on. Call by the warp kScouts, whose first lane keeps the
// counters.
__device__ __forceinline__ void describe_more(const Params& p, int slot) {
  SharedStorage& s = shared_storage();
  const bool keeps = (static_cast<u32>(reread_tid()) & 31) == 0;
  const int first = __shfl_sync(kFullWarp, keeps ? s.next : 0, 0);
  const int copies = __shfl_sync(kFullWarp, keeps ? s.copies : 0, 0);
  const int more = describe_rows(p, slot, first, copies);
  if (!keeps) return;
  s.next = first + kAhead * grid_size();
  s.copies = copies + more;
}

// Starts copying a row to the ring, if it is resident. Call by all threads.
__device__ __forceinline__ void copy_coming(int slot) {
  const RowDescriptor& row = shared_storage().descriptors[slot];
  if constexpr (kBulkCopies) {
    if (threadIdx.x / 32 == 0) copy_in_bulk(row);
  } else {
    if (row.route == RowRoute::kResident) copy_body(row.body, static_cast<int>(row.bytes / sizeof(Score)));
  }
}

// Samples a row from the ring, if it is resident. Call by all threads.
KSIEVE_COLD void sample_coming(int slot) {
  if (descriptor_at(slot).route == RowRoute::kResident) sample_resident(slot);
}

// Describes the first rows, and copies and samples the first one. Samples are loaded before the row's length is known,
// since they would queue behind the copies; but not where memory bandwidth is the limit and single sectors cost most.
__device__ __forceinline__ void start_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  if (reread_tid() == 0) {
    prepare_copies();
    s.has_fallback = 0;
  }
  // Rows of up to 8,192 scores gain nothing.
  if (kMaxResident > 8192 && rows_of(p) > grid_size())
    stagger_start<Score>(turn_of_cta(), [] { return kMaxResident; }, 40, 1 << 30);
  // Samples are loaded in front of the first row's copies: 512 rows of 16,384 scores take 15.4 us instead of 16.0, with
  // 512 threads. Not where four CTAs of 256 threads share a multiprocessor: 512 rows of 8,192 scores take 11.5 us
  // instead of 10.8.
  constexpr bool kLoads = !kWindows && !kBinned && (kThreads >= 512 || kEach >= 64);
  LoadedSample sample = {};
  if constexpr (!kWindows) {
    const Row row = nth_row(p, blockIdx.x);
    if (kLoads && is_sampler()) {
      const Row all = widest_row(p, blockIdx.x);
      const Body body = body_of(all.scores, 0, all.length);
      sample = load_sample(all.scores + body.begin, body.end - body.begin, all.id);
    }
    if (fits(row, slots_of(p, row))) {
      const Body body = copied_body(row, 0, row.length, limit_of(p));
      copy_first(row.scores + body.begin, body.end - body.begin);
    }
  }
  const int thread = reread_tid();
  if (thread / 32 == kScouts) {
    const int copies = describe_rows(p, 0, blockIdx.x, 0);
    if (thread % 32 == 0) {
      s.copies = copies;
      s.next = blockIdx.x + kAhead * grid_size();
    }
  }
  clear_counts(kInWord > 1 ? read_tid() : thread); // otherwise ptxas keeps the address for all rows, and spills it
  __syncthreads(); // the scouts wrote the descriptors, and every thread cleared its counters
  const bool resident = s.descriptors[0].route == RowRoute::kResident;
  if (kLoads && resident && is_sampler()) join_sample(widen(sample.score), sample.offset, 0);
  if (kWindows) copy_coming(0); // before the row is described there are no registers for a window's address
  if (!kWindows && resident) copy_rest(0);
  if (!kLoads) return sample_coming(0);
  if (resident && kChunks == 1) wait_copy(0);
}
