// The rows of one CTA, one after another.
#pragma once
#include "resident/fallback.cuh"

static_assert(kMaxResident == 0 || kMaxResident == kTile, "the ring holds a row, with what is beside it");

// Rows are described eight at a time, the half of the slots that is not in use, by as many threads of a warp other than
// that which copies rows, or ranks candidates, and that has no samples to look at, if there is one.
constexpr int kScouts = kSamplers < kWarps ? kSamplers : 1; // that warp
constexpr int kAhead = kDescriptors / 2;

// Computed wherever it is needed: kept, it would be spilled.
__device__ __forceinline__ int slot_after(int slot) {
  KSIEVE_OPAQUE(slot);
  return (slot + 1) & (kDescriptors - 1);
}

// Describes rows of this CTA from the `first`-th of the launch on, for as many slots, when `copies` were started in
// bulk before. How many of them will be.
__device__ __forceinline__ int describe_rows(const Params& p, int slot, int first, int copies) {
  const u32 lane = static_cast<u32>(reread_tid()) & 31;
  const u32 number = static_cast<u32>(first) + lane * static_cast<u32>(grid_size());
  bool in_bulk = false;
  RowDescriptor& to = shared_storage().descriptors[slot + lane % kAhead];
  if (lane < kAhead) {
    to.way = RowRoute::kNone;
    to.copy = -1;
    if (number < static_cast<u32>(rows_of(p))) {
      const Row row = nth_row(p, static_cast<int>(number));
      describe(p, row, 0, row.length, limit_of(p), to);
      bracket_ranks(row.length, to.slots, kSamplers, to);
      clear_row(to);
      in_bulk = kBulkCopies && to.way == RowRoute::kResident;
    }
  }
  const u32 copied = __ballot_sync(kFullWarp, in_bulk);
  const int copy = copies + __popc(copied & lanes_below());
  if (in_bulk) to.copy = copy & 1;
  return __popc(copied);
}

// Describes the next rows. By the warp of scouts, whose first lane keeps the counters.
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

// CTAs of a multiprocessor begin one after another when there are rows for several rounds. Otherwise all of them copy,
// then all count, and memory rests meanwhile. Rows of up to 8,192 scores gain nothing.
__device__ __forceinline__ void stagger_start(const Params& p) {
  constexpr i64 kClocks = 40; // per KiB of a row: one multiprocessor's share of memory takes 58
  if (kMaxResident <= 8192 || rows_of(p) <= grid_size()) return;
  const int before = static_cast<int>(blockIdx.x) * KSIEVE_CTAS_PER_SM / grid_size();
  const i64 late = before * (kMaxResident * static_cast<i64>(sizeof(Score)) / 1024 * kClocks);
  const i64 begin = clock64();
  while (before && clock64() - begin < late)
    __nanosleep(100);
}

// Starts copying a resident row.
__device__ __forceinline__ void copy_coming(int slot) {
  const RowDescriptor& row = shared_storage().descriptors[slot];
  if constexpr (kBulkCopies) {
    if (threadIdx.x / 32 == 0) copy_in_bulk(row);
  } else {
    if (row.way == RowRoute::kResident) copy_body(row);
  }
}

// Samples a resident row.
__device__ KSIEVE_COLD void sample_coming(int slot) {
  if (descriptor_at(slot).way == RowRoute::kResident) sample_held(slot);
}

// Describes the first rows, and copies and samples the first. What is sampled would queue up behind what is copied, so
// it is asked for before the row's length is known; but where memory is what they wait for, it had better not be asked
// for single sectors.
__device__ __forceinline__ void start_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  if (reread_tid() == 0) {
    prepare_copies();
    s.flag = 0;
  }
  stagger_start(p);
  // Samples are asked for beside the copies of a first row: 512 rows of 16,384 scores 16.0 -> 15.4 us with 512 threads.
  // Not where four CTAs of 256 threads share a multiprocessor: 512 rows of 8,192 scores 10.8 -> 11.5 us.
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
  clear_counts(thread);
  __syncthreads(); // rows are described, and storage is empty
  const bool resident = s.descriptors[0].way == RowRoute::kResident;
  if (kLoads && resident && is_sampler()) look_at(sample.score, sample.place, 0);
  if (kWindows) copy_coming(0); // registers do not suffice for a row that is not described
  if (!kWindows && resident) copy_rest(0);
  if (!kLoads) return sample_coming(0);
  if (resident && kChunks == 1) wait_copy(0);
}

// Selects the resident rows. Returns whether there are rows of another route.
__device__ __forceinline__ bool select_held_rows(const Params& p) {
  SharedStorage& s = shared_storage();
  start_rows(p);
  if (kKnownEarly) __syncthreads(); // the first row's range is known
  for (int slot = 0;; slot = slot_after(slot)) {
    const RowRoute way = descriptor_at(slot).way;
    if (way == RowRoute::kNone) break;
    auto look_ahead = [&] {
      if (slot % kAhead == 1 && reread_tid() / 32 == kScouts) describe_more(p, (slot + kAhead - 1) & kAhead);
      if (!kEpilogue) sample_coming(slot_after(slot));
    };
    bool looked = false;
    if (way != RowRoute::kResident) __syncwarp(); // or ptxas spills
    if (way != RowRoute::kStreamed) {
      auto copy_next = [&] {
        if (!kEpilogue) copy_coming(slot_after(slot)); // slots are sorted where the ring is
      };
      if (way == RowRoute::kResident) {
        looked = select_resident<BlockScope>(slot, copy_next, look_ahead);
      } else {
        write_short(descriptor_at(slot).out, descriptor_at(slot).end, p.k, descriptor_at(slot).base);
      }
      if (kOverlap && descriptor_at(slot_after(slot)).way == RowRoute::kNone) release_dependents();
      if (kEpilogue) {
        if (threadIdx.x == 0) s.base = descriptor_at(slot).base;
        run_epilogue(p, descriptor_at(slot).id, sort_slice(p, blockIdx.x));
      }
    } else {
      atomicOr(&s.flag, 1); // by all: where one thread did it, ptxas let that come to the barrier below by itself
    }
    if (kEpilogue || !looked) {
      if (kEpilogue || descriptor_at(slot).way != RowRoute::kResident) {
        __syncthreads(); // no thread needs the ring any more, nor the histogram
        if (kEpilogue) clear_counts(reread_tid());
        copy_coming(slot_after(slot));
        __syncthreads(); // it is known what the next row waits for
      }
      if (!looked) look_ahead();
      if (kEpilogue) sample_coming(slot_after(slot));
      if (kKnownEarly) __syncthreads(); // the next row's range is known
    }
    __syncwarp(); // rows are begun by whole warps
  }
  if (!s.flag) return false; // the same for all: each has seen every row
  __syncthreads();           // no thread still works on a row
  return true;
}
