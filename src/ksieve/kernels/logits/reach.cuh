// Finds entries of a row at which the running mass reaches a target: that which completes a kept set, and that which is
// drawn. The CTAs of a cluster share the row; the first of them decides.
//   1. a scan counts the scores in bins
//   2. counts and the masses of the bins' middles guess bins around each entry
//   3. another scan sums the masses of the row and of what is better than these bins, and lists the entries of the bins
// A guess may fail, or list too many: then the same with other bins. Masses are integers, so that every order gives the
// same bytes.
#pragma once
#include "logits/scans.cuh"

// Returns the keys of bins.
__device__ __forceinline__ KeyRange keys_between(u32 first, u32 last, KeyRange all) {
  const Shared& s = shared();
  if (!s.linear) { // the last bin has all worse keys
    const KeyRange best = keys_of_bin(static_cast<int>(min(first, kBins - 1u)), s.digit, all);
    return {best.best, last >= kBins - 1 ? all.worst : keys_of_bin(static_cast<int>(last), s.digit, all).worst};
  }
  KeyRange found = all;
  if (first > 0) found.best = s.row.last_key([&](float score) { return s.row.bin(score) < first; }) + 1;
  found.worst = min(all.worst, s.row.last_key([&](float score) { return s.row.bin(score) <= last; }));
  return found;
}

// Returns the mass that p keeps at least, and that which a draw reaches.
__device__ __forceinline__ u64 needed(float p, double all) {
  return __double2ull_ru(__dmul_rn(static_cast<double>(p), all));
}
__device__ __forceinline__ u64 drawn_at(float uniform, double all) {
  return __double2ull_rz(__dmul_rn(static_cast<double>(uniform), all)) + 1;
}
__device__ __forceinline__ u64 drawn_of(const Row& row, u64 mass) {
  return min(drawn_at(row.uniform, __ull2double_rn(mass)), mass);
}

// Returns about the mass of a bin: above 0 if it has scores.
__device__ __forceinline__ u64 mass_of_bin(u32 bin) {
  const Shared& s = shared();
  const u32 middle = s.digit.base + (bin << s.digit.shift) + (1u << s.digit.shift >> 1);
  const u32 key = min(max(middle, s.counted.best), s.counted.worst);
  return s.counts[bin] ? s.counts[bin] * (s.row.mass(s.linear ? s.row.score_of_bin(bin) : score_of_key(key)) + 1) : 0;
}

// Guesses keys around the entries that are wanted, for every CTA. If the mass of all scores is not known, that of the
// bins tells about what the targets are. Call by all threads of the first CTA.
__device__ __forceinline__ void guess(bool knows_all) {
  Shared& s = shared();
  const u32 first = static_cast<u32>(read_tid()) * kEach; // held from one round to the next, it would be spilled
  u64 mass = 0;
  u32 number = 0;
#pragma unroll 1
  for (u32 i = first; i < first + kEach; ++i) {
    number += s.counts[i];
    mass += mass_of_bin(i);
  }
  const Sums sums = sum_threads(mass);
  number = static_cast<u32>(sum_threads(number).before);
  const u64 least = needed(s.row.p, __ull2double_rn(knows_all ? s.all : sums.all));
  const u64 kept = knows_all ? s.kept : s.row.p < 1 ? least : sums.all;
#pragma unroll 1
  for (int t = 0; t < kTargets; ++t) {
    u64 target = (t == kLast ? least : drawn_of(s.row, kept)) - s.searches[t].before;
    target = min(target, sums.all); // the last bin, if the masses are too small
    if (sums.before >= target || target > sums.before + mass) continue;
    u32 bin = first;
    for (u64 up_to = sums.before + mass_of_bin(bin); up_to < target; up_to += mass_of_bin(bin))
      ++bin;
    s.searches[t].bin = bin;
  }
  for (u32 i = first; i < first + kEach; ++i)
    s.counts[i] = number += s.counts[i]; // up to the bin
  __syncthreads();                       // the bins and the counts are known, for whole warps
  const u32 t = threadIdx.x / 32;
  if (t >= kTargets) return;
  Search& search = s.searches[t];
  auto last = [&](u32 around) { return min(search.bin + around, kParts - 1u); };
  auto before = [&](u32 around) { return max(search.bin, around) - around; };
  const u32 lane = threadIdx.x % 32;
  const u32 in = s.counts[last(lane)] - (before(lane) ? s.counts[before(lane) - 1] : 0);
  const u32 around = max(__popc(__ballot_sync(kFullWarp, in <= kWanted)), 1) - 1;
  KeyRange keys = {0, 0}; // keys of NaN
  if (search.wanted) {
    keys = keys_of_scores(keys_between(before(around), last(around), search.range));
    search.keys = keys; // the same by every lane
    search.better = search.listed = 0;
    search.number = search.ahead + (before(around) ? s.counts[before(around) - 1] : 0);
  }
  for (u32 cta = lane; cta < ctas_of_row(); cta += 32) {
    shared_of(cta).best[t] = score_of_key(keys.best);
    shared_of(cta).worst[t] = score_of_key(keys.worst);
  }
}

// Returns the position of the n-th score of a key. Call by all threads; has two barriers.
__device__ __forceinline__ u32 position_of(const Row& row, u32 key, u32 n) {
  Shared& s = shared();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int part = (row.length + kThreads - 1) / kThreads * 32;
  const int end = min(row.length, (warp + 1) * part);
  u32 mine = 0;
  for (int at = warp * part + lane; at < end; at += 32)
    mine += order_key(row.score_at(at)) == key;
  u32 seen = __shfl_sync(kFullWarp, static_cast<u32>(sum_threads(mine).before), 0); // before the warp's part
  for (int first = warp * part; first < end; first += 32) {
    const bool equal = first + lane < end && order_key(row.score_at(first + lane)) == key;
    const u32 votes = __ballot_sync(kFullWarp, equal);
    if (equal && seen + __popc(votes & ((2u << lane) - 1)) == n) s.place = first + lane;
    seen += __popc(votes);
  }
  __syncthreads(); // the position is known, for every thread
  return s.place;
}

// Finds the entry of a list at which the running mass reaches a target: Shared::entry, `mass` and `count`. Returns the
// mass of the list. Call by all threads.
__device__ __forceinline__ u64 reach(int t, u64 target) {
  Shared& s = shared();
  const u64* list = s.lists + t * kListed;
  const u32 listed = s.searches[t].listed;
  const u64 entry = threadIdx.x < listed ? list[threadIdx.x] : 0;
  const u64 own = threadIdx.x < listed ? s.row.mass(score_of_key(static_cast<u32>(entry >> 32))) : 0;
  s.masses[threadIdx.x] = own;
  const u64 all = sum_threads(own).all; // behind a barrier
  u64 mass = s.searches[t].better + own;
  u32 number = s.searches[t].number + 1;
  for (u32 i = 0; threadIdx.x < listed && i < listed; ++i) {
    const bool better = list[i] < entry;
    mass += better ? s.masses[i] : 0;
    number += better;
  }
  if (mass - own < target && target <= mass) { // of one thread
    s.entry = entry;
    s.mass = mass;
    s.count = number;
  }
  return all;
}

// Finds the entry at which the running mass reaches a target, if it is listed: Shared::entry, `mass` and `count`;
// `placed`: the entry's position too. Else the next round looks in other keys. Call by all threads of the first CTA;
// returns behind a barrier.
__device__ __noinline__ void settle(int t, u64 target, bool placed) {
  Shared& s = shared();
  const Search& search = s.searches[t];
  const KeyRange keys = search.keys;
  KeyRange divided = keys;
  KeyRange rest = {keys.best, search.range.worst}; // too many are listed
  u64 before = search.better;
  u32 ahead = search.number;
  bool open = true;
  if (before >= target) {
    rest = divided = {search.range.best, keys.best - 1};
    before = search.before;
    ahead = search.ahead;
  } else if (keys.best == keys.worst || search.listed <= kListed) {
    if (keys.best == keys.worst) {
      const u64 own = s.row.mass(score_of_key(keys.best));
      before += search.listed * own;
      if (target <= before) {
        const u32 n = static_cast<u32>((target - search.better + own - 1) / own);
        const u32 at = placed ? position_of(s.row, keys.best, n) : 0;
        s.entry = static_cast<u64>(keys.best) << 32 | at; // the same by every thread
        s.mass = search.better + n * own;
        s.count = ahead + n;
      }
    } else {
      before += reach(t, target);
    }
    open = target > before;
    ahead += search.listed;
    rest = divided = {keys.worst + 1, search.range.worst};
  }
  __syncthreads(); // every thread has read the search
  if (threadIdx.x == 0) {
    s.searches[t].open = s.searches[t].wanted = open;
    s.searches[t].range = rest;
    s.searches[t].before = before;
    s.searches[t].ahead = ahead;
  }
  if (open && threadIdx.x < ctas_of_row()) {
    Shared& other = shared_of(threadIdx.x);
    other.counted = rest;
    other.digit = digit_over(divided.best, divided.worst);
  }
  __syncthreads(); // the entry or the search is known, for every thread
}

// Prepares the searches of a row. Call by all threads of the first CTA.
__device__ __forceinline__ void begin_searches() {
  Shared& s = shared();
  const Row& row = s.row;
  if (threadIdx.x == 0) {
    if (row.cut == row.worst) s.all = s.enough; // 0 if neither is known
    const u64 least = needed(row.p, __ull2double_rn(s.all));
    const bool last = row.p < 1 && s.enough >= least;
    s.kept = last ? least : s.enough;
    for (int t = 0; t < kTargets; ++t) {
      s.searches[t].range = {order_key(row.best), row.worst};
      s.searches[t].before = s.searches[t].ahead = 0;
      s.searches[t].open = s.searches[t].wanted = t == kLast ? last : row.uniform >= 0;
    }
  }
  __syncthreads(); // the searches have begun, for every thread
}

// Settles what is listed, and tells every CTA whether another round follows. Call by all threads of the first CTA.
__device__ __forceinline__ void advance() {
  Shared& s = shared();
  if (threadIdx.x == 0 && s.linear) {
    if (!s.row.limited()) {
      s.enough = s.all;
      s.number = s.counts[kParts - 1];
    }
    if (!s.searches[kLast].open) s.kept = s.enough;
    s.kept_count = s.number; // unless a search finds less
  }
  __syncthreads(); // the masses are known, for every thread
#pragma unroll 1
  for (int t = 0; t < kTargets; ++t) {
    if (!s.searches[t].open) continue;
    settle(t, t == kLast ? needed(s.row.p, __ull2double_rn(s.all)) : drawn_of(s.row, s.kept), t == kDrawn);
    if (threadIdx.x == 0 && t == kLast) {
      s.kept = s.mass;
      s.kept_count = s.count;
      s.searches[kDrawn].wanted = false; // its list is kept
    }
    __syncthreads(); // the set is known, for every thread
    if (s.searches[t].open) break;
  }
  if (threadIdx.x < ctas_of_row()) {
    Shared& other = shared_of(threadIdx.x);
    other.again = s.searches[kLast].open || s.searches[kDrawn].open;
    other.linear = false;
  }
}

// Reads the row: Shared::kept and `kept_count`, and `entry` unless `uniform` is below 0. Call by all threads of all
// CTAs, with Shared::row; only the first CTA has the results.
__device__ __noinline__ void read_row() {
  Shared& s = shared();
  if (threadIdx.x == 0) {
    s.linear = true;
    s.digit = {0, 0};
    s.all = s.enough = 0;
    s.number = 0;
  }
  meet(); // every CTA has begun, and the sums are empty
  do {
    count_scores();
    if (own_cta() == 0) {
      if (s.linear) begin_searches();
      guess(!s.linear || s.row.limited());
    }
    meet(); // every CTA has the keys
    list_scores();
    if (own_cta() == 0) advance();
    meet(); // every CTA knows of the next round
  } while (s.again);
}
