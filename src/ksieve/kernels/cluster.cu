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

// Appends the peers' candidates, counts and histograms to rank 0's own.
__device__ __forceinline__ void gather_peers(int splits) {
  SharedStorage& s = shared_storage();
  int count = s.count;
  u32 least = s.least;
  u32 greatest = s.greatest;
  __syncthreads(); // rank 0's own counts are read
  for (int rank = 1; rank < splits; ++rank) {
    const SharedStorage& peer = *in_rank(&s, rank);
    int members = peer.count;
    for (int i = threadIdx.x; i < min(members, kSharedCapacity); i += kThreads) {
      u32 key = peer.keys[i];
      if (count + i < kCapacity) {
        s.keys[count + i] = key;
        s.index[count + i] = peer.index[i];
      } else {
        track_overflow(key);
      }
    }
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      u32 counted = peer.histogram[bin];
      if (counted) s.histogram[bin] += counted;
    }
    least = min(least, peer.least);
    greatest = max(greatest, peer.greatest);
    count += members;
  }
  __syncthreads(); // every peer's share is stored
  if (threadIdx.x == 0) {
    s.count = count;
    s.least = min(s.least, least);
    s.greatest = max(s.greatest, greatest);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_cluster(const __grid_constant__ Params p) {
  static_assert(kSharedCapacity == kCapacity, "rank 0 keeps the whole frontier in shared memory");
  SharedStorage& s = shared_storage();
  trace_begin();
  u32 rank = cluster_rank();
  int id = blockIdx.x / p.splits;
  RowTask task = whole_row(p, load_row(p, id), nullptr);
  if (task.row.length <= p.k) { // the same for the whole cluster: nobody waits
    if (rank == 0 && select_short(p, task.row)) trace_write(p, id);
    return;
  }
  clear_storage();
  __syncthreads(); // storage is empty
  int size = segment_size(task.row.length, p.splits);
  task.begin = min(static_cast<int>(rank) * size, task.row.length);
  task.end = min(task.begin + size, task.row.length);
  scan(task.row.scores, task.begin, task.end, CoarseCount{});
  cluster_sync(); // every segment is counted
  if (rank == 0) {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      u32 sum = s.histogram[bin];
      for (int other = 1; other < p.splits; ++other)
        sum += in_rank(s.histogram, other)[bin];
      s.histogram[bin] = sum;
    }
    __syncthreads(); // the histogram is the whole row's
    find_boundary(p.k);
  }
  cluster_sync(); // rank 0 has found the boundary; nobody reads a peer's coarse histogram any more
  if (rank != 0) clear_storage();
  SharedStorage& owner = *in_rank(&s, 0);
  trace_set(kColRoute, kDirect);
  trace_scans(1);
  Frontier frontier = classified(task, owner.found[0]);
  if (threadIdx.x == 0) s.rule.emitted = &owner.emitted;
  bool mine = certify(task, Stage::kClassified, false, frontier, [&] {
    cluster_sync(); // better bins are emitted, the boundary bin is stored and counted in its segments
    if (rank == 0) gather_peers(p.splits);
    cluster_sync(); // nobody reads a peer's memory any more
    return rank == 0;
  });
  if (!mine) return;
  refine(task.candidates, frontier);
  trace_write(p, id);
}
