// Family cluster_exact: one thread block cluster per row, for few rows (sm_90 and later).
//
//   1. a row that the cluster holds is selected there (held.cuh), on distributed shared memory
// Otherwise, or where that cannot decide:
//   1. each CTA counts its segment into its own coarse histogram
//   2. rank 0 sums the histograms over distributed shared memory and publishes the exact boundary bin
//   3. each CTA scans its segment again: better bins go to the output, boundary-bin candidates stay local
//   4. rank 0 gathers its peers' candidates and histograms, and refines; peers stay resident until it has them
//
// Row reads: 1 held, else 2.
#include "held.cuh"
#include "workspace.cuh"

__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The same shared object in another CTA of the cluster, as a generic address.
template <class T> __device__ __forceinline__ T* in_rank(T* local, u32 rank) {
  u64 remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(local), "r"(rank));
  return reinterpret_cast<T*>(remote);
}

constexpr int kCluster = kHeld ? kHeld / kPart : 1;

constexpr int kOwn = 1; // the slot of what is known of this CTA's samples; slot 0 is the row's

// Binary logarithm of how many CTAs' samples end the range, which `pool` of kOwn keeps: of a row that is shorter than
// the cluster holds, the last ones have few scores or none.
__device__ __forceinline__ int samplers_of(int length) { return 31 - __clz(max(length / kPart, 1)); }

// Who holds a row (held.cuh): the CTAs of a cluster, a turn of the ring each.
struct Clustered {
  __device__ __forceinline__ static SharedStorage& owner() { return *in_rank(&shared_storage(), 0); }
  __device__ __forceinline__ static bool owns() { return cluster_rank() == 0; }
  __device__ __forceinline__ static void sync() { cluster_sync(); }

  // In this CTA first, then by a lane for each.
  __device__ __forceinline__ static void fold(const Sampled& warp, int slot) {
    SharedStorage& s = shared_storage();
    HeldRow& own = s.held[kOwn];
    if ((threadIdx.x & 31) == 0) fold_sampled(warp, own, kWarps);
    __syncthreads(); // every warp's samples are folded
    const u32 rank = threadIdx.x;
    const int samplers = own.pool;
    const bool counts = cluster_rank() >> samplers == 0;
    const Sampled all = {{own.most, counts ? own.least >> samplers : 0}, counts && own.signs, own.plateau};
    if (rank < kCluster) fold_sampled(all, in_rank(&s, rank)->held[slot], 1);
  }

  // What peers tell each other lies in the ring once all of it has been read. No row comes after this one.
  static constexpr int kSums = 0;       // the row's counts
  static constexpr int kShares = kBins; // how many positions each CTA has collected
  static_assert(!kHolds || (kBins + kCluster) * sizeof(u32) <= sizeof(SharedStorage::ring), "it has room for both");
  __device__ __forceinline__ static u32* told() { return reinterpret_cast<u32*>(shared_storage().ring); }

  // Every CTA adds up a slice of the bins, for all.
  template <class Then> __device__ __forceinline__ static Boundary find(int rank, Then) {
    constexpr int kSlice = kBins / kCluster;
    constexpr int kTurns = (kSlice + kThreads - 1) / kThreads;
    cluster_sync(); // every segment's tail is counted, and its ring has been read
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int within = turn * kThreads + static_cast<int>(threadIdx.x);
      if (within >= kSlice) break;
      const u32 bin = cluster_rank() * kSlice + within;
      u32 sum = 0;
#pragma unroll 8
      for (u32 peer = 0; peer < kCluster; ++peer)
        sum += *in_rank(shared_storage().histogram + bin, peer);
#pragma unroll 8
      for (u32 peer = 0; peer < kCluster; ++peer)
        *in_rank(told() + kSums + bin, peer) = sum;
    }
    cluster_sync(); // everybody has the counts of all, and nobody reads a segment's any more
    return find_boundary(rank, 0, told() + kSums);
  }

  // The first output slot of this CTA, behind a barrier: all of its positions are collected, and the last are listed.
  // Nobody looks at a peer's storage any more.
  __device__ __forceinline__ static int first_slot(int slot) {
    __syncthreads(); // all of this CTA's are collected
    const int lane = static_cast<int>(threadIdx.x & 31);
    if (threadIdx.x < kCluster)
      *in_rank(told() + kShares + cluster_rank(), threadIdx.x) = shared_storage().held[slot].emitted;
    cluster_sync(); // how many everybody has is known
    return __reduce_add_sync(kFullWarp, lane < static_cast<int>(cluster_rank()) ? told()[kShares + lane] : 0);
  }
};

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

constexpr bool kResident = kHeld > 0; // the planner sees to it that rows then fit

// This CTA's segment: a turn of the ring if the cluster holds rows.
__device__ __forceinline__ RowTask segment_of(const Params& p, const Row& row, u32 rank) {
  RowTask task = whole_row(p, row, nullptr);
  const int size = kResident ? kPart : segment_size(row.length, p.splits);
  task.begin = static_cast<int>(rank) * size;
  task.end = max(min(task.begin + size, row.length), task.begin);
  return task;
}

// The exact route.
__device__ __forceinline__ void select_exact(const Params& p, int id) {
  SharedStorage& s = shared_storage();
  const RowTask task = segment_of(p, load_row(p, id), cluster_rank());
  start_scan(task.row.scores, task.begin, task.end);
  clear_storage();
  __syncthreads(); // storage is empty
  CoarseCount counting;
  scan<kResident>(task.row.scores, task.begin, task.end, counting);
  if (!kResident) {
    start_scan(task.row.scores, task.begin, task.end);
    trace_scans(1);
  }
  cluster_sync(); // every segment is counted
  if (cluster_rank() == 0) {
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
  if (cluster_rank() != 0) clear_storage();
  SharedStorage& owner = *in_rank(&s, 0);
  trace_set(kColRoute, kDirect);
  Frontier frontier = classified(task, owner.found[0]);
  if (threadIdx.x == 0) s.rule.emitted = &owner.emitted;
  if (kResident) {
    __syncthreads(); // the rule is visible
    Classify classify(s.rule);
    scan<true>(task.row.scores, task.begin, task.end, classify);
  }
  bool mine = certify(task, Stage::kClassified, kResident, frontier, [&] {
    cluster_sync(); // better bins are emitted, the boundary bin is stored in its segments
    if (cluster_rank() == 0) gather_peers(p.splits);
    cluster_sync(); // nobody reads a peer's memory any more
    return cluster_rank() == 0 ? Merged::kWhole : Merged::kOther;
  });
  if (mine) refine(frontier);
}

// Returns whether peers may still look at this CTA's storage.
__device__ __forceinline__ bool select_clustered(const Params& p, int id, u32 rank) {
  SharedStorage& s = shared_storage();
  // Where rows are held, segments do not depend on a row's length: copies start while that is fetched.
  const int from = static_cast<int>(rank) * kPart;
  auto end_of = [&](int length) { return max(min(from + kPart, length), from); };
  constexpr bool early = kHolds && !KSIEVE_WINDOWS;
  EarlySample sample = {};
  if (early) {
    Row row = row_of_length(p, id, p.width);
    const Body body = body_of(row.scores, from, end_of(p.width));
    copy_body(row.scores + body.begin, body.end - body.begin);
    sample = load_sample(row.scores + body.begin, body.end - body.begin, id);
  }
  HeldRow& part = s.held[0];
  if (kHolds && threadIdx.x == 0) {
    clear_row(part);
    clear_row(s.held[kOwn]);
  }
  cluster_arrive(); // what peers fold their samples into is empty
  clear_counts();
  const Row row = load_row(p, id);
  if (kHolds && threadIdx.x == 0) {
#if KSIEVE_WINDOWS
    s.base = row.base;
#endif
    describe(p, row, from, end_of(row.length), early ? end_of(p.width) : 0, kWarps << samplers_of(row.length), part);
    s.held[kOwn].pool = samplers_of(row.length);
  }
  __syncthreads();                      // the part is described, and storage is empty
  cluster_wait();                       // everywhere
  if (row.length <= slots_of(p, row)) { // the same for the whole cluster: nobody waits
    arrived();
    whole_row(p, row, nullptr);
    __syncthreads(); // the row is known
    if (rank == 0) select_short(p, row);
    return true;
  }
  if constexpr (kHolds) {
    if (part.way == Way::kHeld) {
      if (early) {
        look_at<Clustered>(sample.score, sample.place, 0);
        arrived();
      } else {
        copy_body(part);
        sample_held<Clustered>(0);
      }
      return !select_held<Clustered>(0, [] {}, [] {});
    }
  }
  arrived();
  select_exact(p, id);
  return true;
}

extern "C" __global__ void __launch_bounds__(kThreads, KSIEVE_CTAS_PER_SM)
    ksieve_cluster(const __grid_constant__ Params p) {
  static_assert(kColumns == 0 && kSharedCapacity == kCapacity, "rank 0 keeps the whole frontier in shared memory");
  const int id = blockIdx.x / p.splits;
  wait_for_inputs();
  trace_begin();
  const bool looked_at = select_clustered(p, id, cluster_rank());
  release_dependents();
  if (looked_at || kFinish) cluster_sync(); // the row is written, and nobody looks at a peer's storage any more
  if (cluster_rank() != 0) return;
  finish_row(p, id, sort_slice(p, id));
  trace_write(p, id);
}
