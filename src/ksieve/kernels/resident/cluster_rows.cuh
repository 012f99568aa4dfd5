// The exact route of a cluster's row. Its second scan reads the ring where rows are resident, else global memory.
#pragma once
#include "common/workspace.cuh"
#include "resident/cluster_scope.cuh"
#include "resident/fallback.cuh"

// Appends the peers' candidates, counts and histograms to CTA 0's own. Call by all threads of CTA 0, behind a cluster
// barrier.
__device__ __forceinline__ void gather_peers(int splits) {
  SharedStorage& s = shared_storage();
  for (int cta = 1; cta < splits; ++cta) {
    SharedStorage& peer = *in_cta(&s, cta);
    int listed = min(peer.listed, kListed);
    int base = s.listed;
    for (int slot = threadIdx.x; slot < listed; slot += kThreads) {
      u64 entry = shared_list(peer)[slot];
      if (base + slot < kListed) {
        list_entry(base + slot) = entry;
      } else {
        track_overflow(entry_key(entry));
      }
    }
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads)
      if (peer.histogram[bin]) atomicAdd(&s.histogram[bin], peer.histogram[bin]);
    __syncthreads(); // every thread has read s.listed, which thread 0 changes
    if (threadIdx.x == 0) {
      s.listed += listed;
      atomicAdd(&s.count, peer.count);
      atomicMin(&s.least, peer.least);
      atomicMax(&s.greatest, peer.greatest);
    }
    __syncthreads(); // s.listed is where the next peer's candidates begin
  }
}

constexpr bool kResident = kMaxResident > 0; // the planner then gives this family no rows that are wider

// Returns this CTA's part of the row: a tile if rows are resident.
__device__ __forceinline__ RowTask part_of_cta(const Params& p, const Row& row, u32 cta) {
  RowTask task = whole_row(p, row, nullptr);
  const int size = kResident ? kTile : part_size(row.length, p.splits);
  task.begin = static_cast<int>(cta) * size;
  task.end = max(min(task.begin + size, row.length), task.begin);
  return task;
}

// Selects a row on the exact route: a row that is not resident, or not dense (PositionedRow), or any row with
// statistics or tie-breaks. Call by all threads of the cluster.
__device__ __forceinline__ void select_exact(const Params& p, int id) {
  SharedStorage& s = shared_storage();
  const RowTask task = part_of_cta(p, present_part(load_row(p, id)), cta_in_cluster());
  if (kPositions && fits(task.row, slots_of(p, task.row))) { // select_tile has copied it
    use_copied(task.row, task.begin, task.end);
  } else {
    start_scan(task.row.scores, task.begin, task.end);
  }
  clear_storage();
  __syncthreads(); // counters are zero, for every thread
  CoarseCount counting;
  scan<kResident>(task.row.scores, task.begin, task.end, counting);
  if (!kResident) {
    start_scan(task.row.scores, task.begin, task.end);
    trace_scans(1);
  }
  cluster_sync(); // every part is counted
  if (cta_in_cluster() == 0) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      u32 sum = s.histogram[bin];
      for (int other = 1; other < p.splits; ++other)
        sum += in_cta(s.histogram, other)[bin];
      s.histogram[bin] = sum;
    }
    __syncthreads(); // the histogram is the whole row's
    find_bin(open_slots(p));
  }
  cluster_sync(); // CTA 0 has found the k-th bin; no thread reads a peer's coarse histogram any more
  if (cta_in_cluster() != 0) clear_storage();
  SharedStorage& owner = *in_cta(&s, 0);
  trace_set(kColRoute, kDirect);
  Frontier frontier = classified(task, owner.found[0]);
  if (threadIdx.x == 0) s.rule.num_selected = &owner.num_selected;
  if (kResident) {
    __syncthreads(); // the rule is visible
    Classify classify(s.rule);
    scan<true>(task.row.scores, task.begin, task.end, classify);
  }
  bool mine = certify(task, ScanPurpose::kClassified, kResident, frontier, [&] {
    cluster_sync(); // better bins are emitted, the k-th bin is stored in its parts
    if (cta_in_cluster() == 0) gather_peers(p.splits);
    cluster_sync(); // no thread reads a peer's memory any more
    return cta_in_cluster() == 0 ? Merged::kWhole : Merged::kOther;
  });
  static_assert(!kKeepsKeys, "an epilogue follows");
  if (mine) refine(task, frontier);
}
