// The epilogue: what a call's options add to a row's slots beyond the positions that the selection has written.
//   1. with an order, positions (and keys, for an order by score) are sorted where ring, histogram and candidates were
//   2. slots are written again: values, raw indices, transformed indices; unused slots last
// Selections that write slots as they are to be (epilogue/slots.cuh) leave to it rare rows alone.
// With an order, a row's slots depend on the selected set alone.
#pragma once
#include "common/sort.cuh"
#include "common/workspace.cuh"
#include "epilogue/slots.cuh"
#include "stream/certify.cuh"

// A key and an index: scores that are equal go by the distances of their positions, and unused slots come last.
struct PlacedEntry {
  u64 entry;

  __device__ __forceinline__ static int distance(int index) {
    return kTies ? tie_distance(index) : PositionedRow::of_row().position_of(index);
  }
  __device__ __forceinline__ bool operator<(const PlacedEntry& other) const {
    if (entry_key(entry) != entry_key(other.entry)) return entry_key(entry) < entry_key(other.entry);
    const int mine = entry_index(entry);
    const int its = entry_index(other.entry);
    if (mine < 0 || its < 0) return mine >= 0;
    return mine != its && distance(mine) < distance(its);
  }
};
__device__ __forceinline__ PlacedEntry __shfl_xor_sync(u32 lanes, const PlacedEntry& mine, int mask) {
  return {::__shfl_xor_sync(lanes, mine.entry, mask)};
}

// Key and distance, or position; of scores that have positions, key and index, or position and index.
using ByValue = Choose<kPositions, PlacedEntry, u64>::Type;
using Sorted = Choose<kOrder == Order::kValue, ByValue, Choose<kPositions, u64, u32>::Type>::Type;
constexpr u32 kBestKey = 0; // better than that of any score

// Returns the position that the selection left in a slot, -1 if none. Scores that change under a running kernel may
// leave any value there.
__device__ __forceinline__ int staged_position(const int* staged, int slot, int selected, int length) {
  int index = slot < selected ? __ldcg(staged + slot) : -1;
  return static_cast<u32>(index) < static_cast<u32>(length) ? index : -1;
}

// Returns the ordered key of a position's score; that of a block is computed again, since its entry may be gone.
template <class AnyRow> __device__ __forceinline__ u32 key_of_position(const AnyRow& row, int index) {
  if constexpr (kBlockRows) return best_of_block(row, index).key;
  return order_key(allowed_score(widen(row.scores[index]), index));
}

// Returns the element that a position is sorted as; unused slots (-1) come last.
template <class Element = Sorted> __device__ __forceinline__ Element sortable(const Row& row, int index) {
  if constexpr (kPositions) {
    const PositionedRow& own = PositionedRow::of_row();
    const int position = index < 0 ? -1 : own.position_of(index);
    if (index < 0 || kOrder == Order::kIndex) return Element{make_entry(static_cast<u32>(position), index)};
    return Element{make_entry(own.forces(position) ? kBestKey : order_key(widen(row.scores[index])), index)};
  } else if constexpr (kOrder == Order::kValue) {
    int distance = kTies ? tie_distance(index) : index;
    return index < 0 ? ~Element{0} : static_cast<Element>(make_entry(key_of_position(row, index), distance));
  } else {
    return static_cast<u32>(index);
  }
}

template <class Element> __device__ __forceinline__ int position_of(const Element& sorted) {
  if constexpr (kPositions && kOrder == Order::kValue) {
    return entry_index(sorted.entry);
  } else if constexpr (kPositions) {
    return entry_index(sorted);
  } else if constexpr (kOrder == Order::kValue) {
    int distance = static_cast<int>(sorted & 0xffffffffu);
    return kTies ? tie_position(distance) : distance;
  } else {
    return static_cast<int>(sorted);
  }
}

// The positions of a row of blocks, [begin, end): its first and its last block may have fewer than others, and slots
// behind theirs move up. Rows without blocks have whole entries.
template <class AnyRow> struct Cuts {
  const AnyRow& row;
  // Neither is found yet. Call by all threads of the CTA, when none uses counters of candidates any more.
  __device__ __forceinline__ void forget(int owner) const {
    if constexpr (!kBlockRows) return;
    if (owner == 0) shared_storage().least = shared_storage().greatest = ~0u;
    __syncthreads(); // thread 0 forgot them, for those that find one
  }
  // Keeps the slot `own` of an entry, if it is one of them. A barrier must follow.
  __device__ __forceinline__ void find(int index, int own) const {
    if (kBlockRows && index == 0) shared_storage().least = own;
    if (kBlockRows && index == row.length - 1) shared_storage().greatest = own;
  }
  __device__ __forceinline__ bool has(int position) const {
    if constexpr (kBlockRows) {
      const int at = position - row.base * kBlockSize;
      return position < 0 || (at >= row.low && at < row.high);
    }
    return true;
  }
  // Returns a slot of the entry in slot `entry` of a row of whole entries, as it moves up.
  __device__ __forceinline__ int slot(int slot, int entry) const {
    if constexpr (kBlockRows) {
      const SharedStorage& s = shared_storage();
      const u32 own = static_cast<u32>(entry);
      slot -= (own >= s.least ? row.low : 0) + (own > s.greatest ? cut_slots(row) : 0);
    }
    return slot;
  }
};

// Returns the position of one of the selected entries that are not forced, in their order.
__device__ __forceinline__ int position_at(const Params& p, const Row& row, int at, int selected, const Sorted* area) {
  if constexpr (kOrder == Order::kAny) return staged_position(row_output(p, row.id), at, selected, row.length);
  const int position = at < selected ? position_of(area[at]) : -1;
  return static_cast<u32>(position) < static_cast<u32>(row.length) ? position : -1;
}

// A row's owners are the kOwners threads that complete it: all of the CTA, or a warp. Returns this one's number.
template <int kOwners> __device__ __forceinline__ int owner_number() {
  return static_cast<int>(kOwners == kThreads ? threadIdx.x : threadIdx.x % kOwners);
}
template <int kOwners> __device__ __forceinline__ void sync_owners() {
  if (kOwners == kThreads) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

// Writes the slots of a row: `selected` positions from `area`, or without an order from the output, then -1. Call by
// its owners.
template <int kOwners>
__device__ __forceinline__ void write_slots(const Params& p, const Row& row, int selected, const Sorted* area) {
  constexpr bool kCta = kOwners == kThreads;
  const auto& o = p.options;
  bool wide = o.flags & kWide;
  const SlotFacts facts = SlotFacts::of(p, row.id);
  const Slots<Row> slots(p, row);
  int base = !kWindows ? 0 : kForcedEnds ? slots.row.base : kCta ? shared_storage().base : row.base;
  auto end = [&] { return kCounts ? written_slots(p, slots.used(selected), columns_of(p)) : columns_of(p); };
  for (int begin = 0; begin < end(); begin += kInFlight * kOwners) {
    int first = begin + owner_number<kOwners>();
    int index[kInFlight];
#pragma unroll
    for (int b = 0; b < kInFlight; ++b) {
      int slot = first + b * kOwners;
      index[b] = slots.entry_of(p, slot, [&](int at) { return position_at(p, row, at, selected, area); });
    }
    if constexpr (kFold) {
#pragma unroll
      for (int b = 0; b < kInFlight; ++b)
        if (index[b] >= 0 &&
            !fills(p, row.id, first + b * kOwners, allowed_score(widen(row.scores[index[b]]), index[b])))
          index[b] = -1;
    }
    // Every thread has read its positions: the 64-bit slots written below may overwrite them (row_output).
    if (kOrder == Order::kAny && wide) sync_owners<kOwners>();
    if constexpr (kWritesValues) {
      auto* values = static_cast<source::Bits*>(o.values) + KSIEVE_ROW_AT(p, kValues, row.id, o.values_pitch);
#pragma unroll
      for (int b = 0; b < kInFlight; ++b) {
        int slot = first + b * kOwners;
        if (slot < end()) write_bits(values, slot, bits_of_position(slots.row, index[b]));
      }
    }
#pragma unroll
    for (int b = 0; b < kInFlight; ++b) {
      int slot = first + b * kOwners;
      if (slot >= end()) continue;
      int shown = index[b] < 0 ? -1 : kPositions ? PositionedRow::of_row().position_of(index[b]) : index[b] + base;
      if (o.raw) write_index(o.raw, KSIEVE_ROW_AT(p, kRaw, row.id, o.raw_pitch) + slot, wide, shown);
      write_index(p.indices, KSIEVE_ROW_AT(p, kIndices, row.id, p.out_pitch) + slot, wide, facts.transformed(p, shown));
    }
  }
}

// Writes the positions of all entries of a row, `selected` numbers of which are where write_slots finds its positions;
// then those of the tail, then -1. Entries are listed where candidates are counted, so that slots are written in any
// order, four of an entry at a time where they are aligned. Call by the row's kOwners threads.
template <int kOwners>
__device__ __forceinline__ void write_expanded(const Params& p, const Row& row, int selected, const Sorted* area) {
  constexpr bool kCta = kOwners == kThreads;
  constexpr int kRoom = kBins / (kThreads / kOwners);      // entries that are listed at a time
  constexpr int kListedTogether = kRegisters > 64 ? 4 : 1; // entries that a thread loads together; more would spill
  const auto& o = p.options;
  const bool wide = o.flags & kWide;
  const SlotFacts facts = SlotFacts::of(p, row.id);
  const Slots<Row> slots(p, row);
  const int entries = slots.used(selected);
  const int owner = owner_number<kOwners>();
  auto number_at = [](int i) -> u32& {
    return shared_storage().histogram[kCta ? i : threadIdx.x / kOwners * kRoom + i];
  };
  auto score_at = [&](int i) -> u32& { return number_at(kRoom / 2 + i); }; // with values
  constexpr int kChunk = kWritesValues ? kRoom / 2 : kRoom;
  auto write = [&](int slot, int position, u32 score) {
    if (kWritesValues) write_bits(o.values, KSIEVE_ROW_AT(p, kValues, row.id, o.values_pitch) + slot, score);
    if (o.raw) write_index(o.raw, KSIEVE_ROW_AT(p, kRaw, row.id, o.raw_pitch) + slot, wide, position);
    write_index(p.indices, KSIEVE_ROW_AT(p, kIndices, row.id, p.out_pitch) + slot, wide,
                facts.transformed(p, position));
  };
  auto other = [&](int at) { return position_at(p, row, at, selected, area); };
  const Cuts<Row> cuts{slots.row};
  cuts.forget(owner);
  int* out = p.indices + KSIEVE_ROW_AT(p, kIndices, row.id, p.out_pitch);
  // Slots that are written together are those of one entry.
  const bool plain = o.expand % 4 == 0 && !(kWritesValues || wide || o.raw || o.flags & kPaged) && whole_fours(out, 4);
  const int together = plain ? 4 : 1;
#pragma unroll 1
  for (int begin = 0; begin < entries; begin += kChunk) {
    const int listed = min(entries - begin, kChunk);
    if (begin) sync_owners<kOwners>(); // every slot of the entries before is written
#pragma unroll kListedTogether
    for (int i = owner; i < listed; i += kOwners) {
      const int index = slots.entry_of(p, begin + i, other);
      cuts.find(index, begin + i);
      number_at(i) = index < 0 ? -1 : kPositions ? PositionedRow::of_row().position_of(index) : index + slots.row.base;
    }
    if constexpr (kWritesValues) { // in a loop of its own: registers do not suffice for both
#pragma unroll 1
      for (int i = owner; i < listed; i += kOwners) {
        const int index = slots.entry_of(p, begin + i, other);
        score_at(i) = bits_of_position(slots.row, index);
      }
    }
    // Entries are listed, and cut ones among them are found; the slots written below may overwrite those that the
    // selection wrote, but no entries behind (row_output).
    sync_owners<kOwners>();
#pragma unroll 1
    for (int at = owner * together; at < listed * o.expand; at += kOwners * together) {
      const int own = static_cast<int>(static_cast<u32>(at) / static_cast<u32>(o.expand));
      const int number = static_cast<int>(number_at(own));
      const int first = number < 0 ? -1 : (number - own) * o.expand + at;
      const int slot = cuts.slot(begin * o.expand + at, begin + own);
      if (plain && slot % 4 == 0 && cuts.has(first) && (first < 0 || cuts.has(first + 3))) {
        const int shown = first < 0 ? -1 : first + facts.offset;
        const int next = first < 0 ? 0 : 1;
        *reinterpret_cast<Four*>(out + slot) = {shown, shown + next, shown + 2 * next, shown + 3 * next};
        continue;
      }
#pragma unroll 1
      for (int i = 0; i < together; ++i) {
        const int position = first < 0 ? -1 : first + i;
        if (cuts.has(position)) write(slot + i, position, kWritesValues ? score_at(own) : kUnusedBits);
      }
    }
  }
  const int used = cuts.slot(entries * o.expand, entries);
  const TailPositions tail = TailPositions::of(p, slots.row);
  const int written = written_slots(p, used + tail.count, columns_of(p));
  for (int slot = used + owner; slot < written; slot += kOwners)
    write(slot, slot < used + tail.count ? tail.end - tail.count + slot - used : -1, kUnusedBits);
  write_count<kOwners>(p, row.id, used + tail.count);
  sync_owners<kOwners>(); // every listed entry has been read
  for (int i = owner; i < (kWritesValues ? kRoom : min(entries, kRoom)); i += kOwners)
    number_at(i) = 0;     // counts are zero between rows
  sync_owners<kOwners>(); // of the next row's too
}

// Writes the index of each forced score that has a position of its own behind those of the selection, from `out` on.
// Returns how many there are. Call by all threads; starts with a barrier.
__device__ __forceinline__ int stage_forced(const Row& row, int* out) {
  PositionedRow& own = PositionedRow::of_row();
  __syncthreads(); // no thread takes slots of the selection any more
  if (threadIdx.x == 0) own.taken = 0;
  __syncthreads(); // thread 0 cleared it, for all
#pragma unroll 1
  for (int first = 0; first < row.length; first += kThreads) { // the same number of iterations for every thread
    const int index = first + static_cast<int>(threadIdx.x);
    const bool there = index < row.length && own.forces(own.position_of(index));
    const int slot = reserve(&own.taken, there);
    if (there && slot < kForced) out[slot] = index;
  }
  __syncthreads(); // every forced score is counted
  return min(own.taken, kForced);
}

// Completes a row behind its selection, in the CTA or, without an order, the warp that selected it. Call by all of its
// kOwners threads. `slice`: kSortSlots elements of the workspace, of this CTA alone. The row is loaded again: kept in
// registers until here, it would cost every scan.
template <int kOwners = kThreads> __device__ __forceinline__ void run_epilogue(const Params& p, int id, u64* slice) {
  Row row = in_memory(p, load_row(p, id));
  int slots = slots_of(p, row);
  if (kTies && size_of(row) > slots) {
    if constexpr (kPositions) {
      collect_by_position(row, slots);
    } else {
      collect_ties(row, slots);
    }
  }
  int selected = min(size_of(row), slots);
  if constexpr (kPositions && kForced > 0) selected += stage_forced(row, row_output(p, id) + selected);
  if (!kExpand) write_count<kOwners>(p, id, Slots<Row>(p, row).used(selected));
  if constexpr (kEpilogue) {
    Sorted* area = reinterpret_cast<Sorted*>(kSortSlots ? reinterpret_cast<unsigned char*>(slice) : shared_bytes);
    if (kOwners == kThreads) __syncthreads(); // every slot has its position, and no candidate is read any more
    if constexpr (kOrder != Order::kAny) {
      const int* staged = row_output(p, id);
      int n = 1 << (32 - __clz(max(selected, kSortChunk) - 1));
      for (int first = threadIdx.x; first < n; first += kInFlight * kThreads) {
        int index[kInFlight];
#pragma unroll
        for (int b = 0; b < kInFlight; ++b)
          index[b] = staged_position(staged, first + b * kThreads, selected, row.length);
#pragma unroll
        for (int b = 0; b < kInFlight; ++b)
          if (first + b * kThreads < n) area[first + b * kThreads] = sortable(row, index[b]);
      }
      sort_area(area, n);
    }
    if constexpr (kExpand) return write_expanded<kOwners>(p, row, selected, area);
    write_slots<kOwners>(p, row, selected, area);
  } else if constexpr (kForcedEnds) {
    sync_owners<kOwners>(); // the selection wrote its slots, and unused ones
    const Slots<Row> all(p, row);
    for (int slot = min(row.length, slots) + owner_number<kOwners>();
         slot < written_slots(p, all.used(selected), columns_of(p)); slot += kOwners) {
      const int index = all.entry_of(p, slot, [](int) { return -1; });
      row_output(p, id)[slot] = index < 0 ? -1 : index + all.row.base;
    }
  } else if constexpr (kWindows) {
    if (row.length <= slots) return;
    int* out = row_output(p, id);
    for (int i = slots + owner_number<kOwners>(); i < p.k; i += kOwners)
      out[i] = -1;
  }
}
