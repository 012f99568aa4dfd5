// The selection of a row by one CTA: propose, certify, refine. Kernels differ in which CTA works on which rows and
// parts.
#pragma once
#include "epilogue/epilogue.cuh"
#include "length_bins.cuh"
#include "stream/fold_end.cuh"
#include "stream/refine.cuh"

// Writes the index of every score that has a position, in any order. Call by all threads.
__device__ __forceinline__ void select_present(const Params& p, const Row& row) {
  PositionedRow& own = PositionedRow::of_row();
  int* out = row_output(p, row.id);
#pragma unroll 1
  for (int first = 0; first < row.length; first += kThreads) { // the same number of iterations for every thread
    const int index = first + static_cast<int>(threadIdx.x);
    const bool there = index < row.length && own.at(index) >= 0;
    const int slot = reserve(&own.taken, there);
    if (there && slot < p.k) out[slot] = index;
  }
}

// Selects every position of a row with at most k scores. Returns whether the row has so few.
__device__ __forceinline__ bool select_short(const Params& p, const Row& row) {
  if (size_of(row) > slots_of(p, row)) return false;
  trace_set(kColCommitted0, size_of(row));
  if constexpr (kPositions) {
    select_present(p, row);
    return true;
  }
  write_short(row_output(p, row.id), row.length, written_slots(p, row.length, p.k), row.base);
  return true;
}

// Finds the positions of a row's forced scores, which are no longer counted among the others then. Call as
// find_present, which has counted them together. A function template, since rows without windows lack members.
template <class AnyRow> __device__ __forceinline__ void set_forced_apart(const Params& p, const AnyRow& row) {
  PositionedRow& own = PositionedRow::of_row();
  const int count = own.count;
  Entries<AnyRow> all = load_entries<AnyRow>(p, row.id);
  all.row.length = count;
  all.before = min(kForceFirst, count);
  all.behind = min(kForceLast, count - all.before);
  const Slots<AnyRow, true> order(p, all);
  // Returns a number that as many positions of the row are below.
  auto behind = [&](int positions) {
    if (positions == 0 || positions == count) return positions ? own.limit : 0;
    return 1u + static_cast<u32>(last_of_least(row, positions, [&](int index) { return own.position_of(index); }));
  };
  const u32 first = behind(order.first);
  const u32 first_end = behind(order.first + order.firsts);
  const u32 last = behind(order.last);
  const u32 last_end = behind(order.last + order.lasts);
  __syncthreads(); // every thread has read the count
  if (threadIdx.x == 0) {
    own.first = first;
    own.first_end = first_end;
    own.last = last;
    own.last_end = last_end;
    own.count = row.slots ? count - all.before - all.behind : 0;
  }
  __syncthreads(); // thread 0 wrote what is forced, for all
}

// Describes the positions of a row, none of which is counted yet. Call by one thread.
__device__ __forceinline__ void describe_positions(const Params& p, const Row& row) {
  const auto& o = p.options;
  constexpr u32 kLimit = 1u << 31;
  u32 limit = kLimit / o.expand; // int32 holds all positions of an entry
  if (kTail) limit = min(limit, static_cast<u32>(tail_length(p, row.id) / o.expand));
  const int* positions = o.positions + KSIEVE_ROW_AT(p, kPositions, row.id, o.positions_pitch);
  PositionedRow::of_row() = {positions, row.base, o.block, limit, 0, 0, 0, 0, 0, limit};
}

// Finds the scores of a row that have a position, if they have any of their own. Call by all threads, when none works
// on the row before any more; ends with a barrier.
__device__ __forceinline__ void find_present(const Params& p, const Row& row) {
  if constexpr (!kPositions) return;
  PositionedRow& own = PositionedRow::of_row();
  if (threadIdx.x == 0) describe_positions(p, row);
  __syncthreads(); // thread 0 wrote where the positions are, for all
  int mine = 0;
  int end = 0;
  if (own.block == 0) {
#pragma unroll 8
    for (int index = threadIdx.x; index < row.length; index += kThreads) {
      if (own.position_of(index) < 0) continue;
      ++mine;
      end = index + 1;
    }
  } else {
    const int from = row.base / own.block;
    const int behind = row.length ? (row.base + row.length - 1) / own.block + 1 : from;
#pragma unroll 8
    for (int number = from + static_cast<int>(threadIdx.x); number < behind; number += kThreads) {
      const i64 position = static_cast<i64>(own.positions[number]) * own.block;
      const int first = number * own.block - row.base; // index of the block's first score
      const int room = position < 0 ? 0 : static_cast<int>(min(max(own.limit - position, 0ll), i64{own.block}));
      const int last = min(first + room, row.length);
      if (last <= max(first, 0)) continue;
      mine += last - max(first, 0);
      end = last;
    }
  }
  mine = static_cast<int>(__reduce_add_sync(kFullWarp, mine));
  end = __reduce_max_sync(kFullWarp, end);
  if ((threadIdx.x & 31) == 0 && mine) {
    atomicAdd(&own.count, mine);
    atomicMax(&own.end, end);
  }
  __syncthreads(); // every score is counted
  if constexpr (kForced > 0) set_forced_apart(p, row);
}

// Returns the task of a whole row. Call by all threads; a barrier must follow before the facts that thread 0 writes are
// read.
__device__ __forceinline__ RowTask whole_row(const Params& p, const Row& row, u64* spill) {
  if (threadIdx.x == 0) {
    shared_storage().spill = spill;
    if constexpr (kWindows) {
      shared_storage().row_slots = row.slots;
      shared_storage().window = row.scores;
      shared_storage().base = row.base;
    }
#if KSIEVE_ALLOWED
    shared_storage().allowed = p.fold.allowed + row.id * p.fold.allowed_pitch;
#endif
    if constexpr (kTies) {
      const int last = kPositions ? kMaxTieDistance : row.length - 1;
      shared_storage().tie_last = last;
      shared_storage().tie_from = p.options.flags & kHighest ? last : 0;
    }
  }
  return {p, row, 0, row.length};
}

// Selects a row whose `view` is being loaded. Call by all threads. `first`: the CTA's first row, with counters zero;
// its view is waited for in front of other loads, since all CTAs begin at once, and memory would serve whole rows of
// the scan before the view's lines. announce_next() runs behind a barrier, before the row is scanned; prefetch_next()
// runs when the row has been read and only on-chip work is left, but not for a short row. Returns whether slots are as
// they are to be.
template <class Announce, class Prefetch>
__device__ __forceinline__ bool select_row(const RowTask& t, bool first, LoadedView& view, Announce announce_next,
                                           Prefetch prefetch_next) {
  SharedStorage& s = shared_storage();
  if (select_short(t.params, t.row)) {
    wait_all_copies();
    fold_short(t.params, t.row);
    __syncthreads(); // every thread has read the row; slots may be sorted where its copies were
    announce_next();
    return false;
  }
  prefetch_references(t.row);
  begin_fold();
  if (first) {
    if (!kFold) view.wait();
  } else {
    clear_storage();
  }
  start_scan(t.row.scores, t.begin, t.end);
  __syncthreads();                // counters are zero, for every thread
  if (kFold) view.load(t.row, 0); // with the references; held in registers until here, it would be spilled
  note_references(t.row);
  ScanPurpose purpose = ScanPurpose::kNoCutoff;
  trace_set(kColRoute, kDirect);
  if (view_usable(t.params, t.row)) {
    propose(t.params, t.row, view, 1, s.proposal);
    set_proposal_rule(t, s.proposal, &s.num_ties);
    purpose = ScanPurpose::kProposed;
  }
  announce_next();
  wait_for_references(t.params, t.row);
  Frontier frontier;
  certify(t, purpose, false, frontier, [] { return Merged::kWhole; });
  finish_fold(t.params, t.row, true);
  prefetch_next();
  return refine(t, frontier);
}
