// Family cluster_exact: one thread block cluster per row, exact without sampling, for few long rows (sm_90 and later).
//
//   1. each CTA counts its segment into its own coarse histogram
//   2. rank 0 sums the histograms over distributed shared memory and publishes the exact boundary bin
//   3. each CTA scans its segment again: better bins go to the output, boundary-bin candidates stay local
//   4. rank 0 gathers its peers' candidates and histograms, and refines; peers stay resident until it has them
//
// Row reads: 2.
#include "select.cuh"
#include "workspace.cuh"

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// The same shared object in another CTA of the cluster, as a generic address.
template <class T> __device__ __forceinline__ T* in_rank(T* local, u32 rank) {
  u64 remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(local), "r"(rank));
  return reinterpret_cast<T*>(remote);
}

// Appends the peers' candidates, counts and histograms to rank 0's own. Behind a cluster barrier.
__device__ __forceinline__ void gather_peers(int splits) {
  SharedStorage& s = shared_storage();
  for (int rank = 1; rank < splits; ++rank) {
    SharedStorage& peer = *in_rank(&s, rank);
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
    __syncthreads(); // everybody knows where the next peer's begin
    if (threadIdx.x == 0) {
      s.listed += listed;
      atomicAdd(&s.count, peer.count);
      atomicMin(&s.least, peer.least);
      atomicMax(&s.greatest, peer.greatest);
    }
    __syncthreads(); // and the list has its new end
  }
}

__device__ __forceinline__ void select_clustered(const Params& p, int id, u32 rank) {
  SharedStorage& s = shared_storage();
  RowTask task = whole_row(p, load_row(p, id), nullptr);
  if (task.row.length <= slots_of(p, task.row)) { // the same for the whole cluster: nobody waits
    if (rank == 0) select_short(p, task.row);
    return;
  }
  int size = segment_size(task.row.length, p.splits);
  task.begin = min(static_cast<int>(rank) * size, task.row.length);
  task.end = min(task.begin + size, task.row.length);
  start_scan(task.row.scores, task.begin, task.end);
  clear_storage();
  __syncthreads(); // storage is empty
  CoarseCount counting;
  scan(task.row.scores, task.begin, task.end, counting);
  start_scan(task.row.scores, task.begin, task.end);
  cluster_sync(); // every segment is counted
  if (rank == 0) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      u32 sum = s.histogram[bin];
      for (int other = 1; other < p.splits; ++other)
        sum += in_rank(s.histogram, other)[bin];
      s.histogram[bin] = sum;
    }
    __syncthreads(); // the histogram is the whole row's
    find_boundary(open_slots(p));
  }
  cluster_sync(); // rank 0 has found the boundary; nobody reads a peer's coarse histogram any more
  if (rank != 0) clear_storage();
  SharedStorage& owner = *in_rank(&s, 0);
  trace_set(kColRoute, kDirect);
  trace_scans(1);
  Frontier frontier = classified(task, owner.found[0]);
  if (threadIdx.x == 0) s.rule.emitted = &owner.emitted;
  bool mine = certify(task, Stage::kClassified, false, frontier, [&] {
    cluster_sync(); // better bins are emitted, the boundary bin is stored in its segments
    if (rank == 0) gather_peers(p.splits);
    cluster_sync(); // nobody reads a peer's memory any more
    return rank == 0 ? Merged::kWhole : Merged::kOther;
  });
  if (mine) refine(frontier);
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_cluster(const __grid_constant__ Params p) {
  static_assert(kColumns == 0 && kSharedCapacity == kCapacity, "rank 0 keeps the whole frontier in shared memory");
  u32 rank = cluster_rank();
  wait_for_inputs();
  int clusters = gridDim.x / p.splits;
  for (int id = blockIdx.x / p.splits; id < p.rows; id += clusters) {
    trace_begin();
    select_clustered(p, id, rank);
    if (id + clusters >= p.rows) release_dependents();
    if (rank == 0) finish_row(p, id, sort_slice(p, blockIdx.x));
    if (rank == 0) trace_write(p, id);
    __syncthreads(); // nobody still works on the row
  }
}
