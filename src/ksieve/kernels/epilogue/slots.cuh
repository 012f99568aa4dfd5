// What a slot holds beyond a position: pages, offsets, values, raw and 64-bit indices.
// Without an order or tie-break a slot depends only on its own position, so the selecting CTA writes it, from positions
// on chip (kWritesSlots; kWritesShares where CTAs share a row). It takes values from the ring where that still has the
// row (kKeepsScores), and the next row's copy then starts later. epilogue/epilogue.cuh writes all other slots, from the
// positions that the selection left in the last part of the row's output.
#pragma once
#include "common/output.cuh"

// Whether slots are moved without branches, two of a thread at once: with branches, and four at once where k seldom
// gives a thread of a cluster so many, they took a tenth of a call's time. Elsewhere registers do not suffice.
constexpr bool kNoBranches = kWritesSlots && kMaxResident > 0;

// Slots that a thread processes together: more would spill, and k seldom gives so many to a large CTA's threads.
constexpr int kInFlight =
    kForced || kPositions || (kWritesSlots && kThreads == 1024) || (kNoBranches && !kInRegisters) ? 2 : 4;

// Returns the bits of the score of a position, or what an unused slot holds.
constexpr u32 kUnusedBits = kBlockRows ? source::kUnused : kWorstNumberBits;
template <class AnyRow> __device__ __forceinline__ u32 bits_of_position(const AnyRow& row, int index) {
  if constexpr (kBlockRows) return index < 0 ? kUnusedBits : best_of_block(row, index).score;
  return index < 0 ? kUnusedBits : bits_of(row.scores[index]);
}
using Value = Source::Bits;
__device__ __forceinline__ void write_bits(void* values, i64 at, u32 bits) {
  static_cast<Value*>(values)[at] = static_cast<Value>(bits);
}

__device__ __forceinline__ void write_index(void* base, i64 at, bool wide, i64 index) {
  if (wide) {
    static_cast<i64*>(base)[at] = index;
  } else {
    static_cast<int*>(base)[at] = static_cast<int>(index);
  }
}

// Writes the number of used slots of a row. Call by all of its threads.
template <int kOwners = kThreads> __device__ __forceinline__ void write_count(const Params& p, int id, int used) {
  if (kCounts && threadIdx.x % kOwners == 0) p.options.counts[KSIEVE_INDEX_AT(p, kCounts, id)] = used;
}

// Whether CTAs of a cluster, and those that have a row in registers, write slots as they are to be: without an order
// each depends on its entry alone. Written behind the selection, positions would be read back from memory by one CTA.
constexpr bool kWritesShares = kEpilogue && !kSorts && !kTies && !kPositions && !kStats;

// The same of a CTA that has a row on chip to itself: expanded entries, and scores that have positions of their own.
constexpr bool kWritesEntries =
    kEpilogue && !kSorts && !kTies && !kStats && !kForced && !kBlockRows && (kExpand || kPositions);

// What slots need of a row besides positions. Loaded before these are known, it arrives meanwhile.
struct SlotFacts {
  int request = 0;
  int offset = 0;
  __device__ __forceinline__ static SlotFacts of(const Params& p, int id) {
    const auto& o = p.options;
    SlotFacts facts;
    if (o.flags & kPaged)
      facts.request = o.request_of ? o.request_of[KSIEVE_INDEX_AT(p, kRequestOf, id)] : id / o.next_n;
    if (o.offsets) facts.offset = o.offsets[KSIEVE_INDEX_AT(p, kOffsets, id)];
    return facts;
  }

  // Returns whether the page table has an entry of an index.
  __device__ __forceinline__ bool has_entry(const Params& p, int index) const {
    const u32 page = static_cast<u32>(index >> p.options.page_shift); // of an unused slot beyond every table
    return (page < static_cast<u32>(p.options.max_pages)) &
           (static_cast<u32>(request) < static_cast<u32>(p.options.requests));
  }

  // Returns the index that is written, with its offset, or through the page table; -1 without an entry, or where the
  // entry is negative.
  __device__ __forceinline__ i64 transformed(const Params& p, int index) const {
    const auto& o = p.options;
    if (index < 0) return -1;
    if (!(o.flags & kPaged)) return static_cast<i64>(index) + offset;
    if (!has_entry(p, index)) return -1;
    const int entry = o.page_table[request * o.page_pitch + (index >> o.page_shift)];
    return entry < 0 ? -1 : entry * (1ll << o.page_shift) + (index & ((1 << o.page_shift) - 1));
  }
};

// Scores of a row that are still on chip when its slots are written: scores[i] is that of position begin + i.
struct KeptScores {
  const Score* scores = nullptr;
  int begin = 0;
  u32 count = 0;
};

// Writes slots of a row whose scores begin at `scores`, the first of which has the index `base`.
struct SlotWriter {
  const Params& p;
  const Score* scores;
  int id;
  int base;
  SlotFacts facts;
  const int* table; // with kNoBranches: page numbers of the row's request
  u32 pages;        // of the table, none for a request without one; 1 without a table (0 makes two kernels spill)
  KeptScores kept;

  __device__ __forceinline__ SlotWriter(const Params& p, const Score* scores, int id, int base, SlotFacts facts,
                                        KeptScores kept = {})
      : p(p), scores(scores), id(id), base(base), facts(facts), table(nullptr), pages(1), kept(kept) {
    const auto& o = p.options;
    if constexpr (kNoBranches) {
      table = o.page_table + facts.request * o.page_pitch;
      KSIEVE_OPAQUE_64(table); // otherwise computed for each slot again
      if (paged()) pages = static_cast<u32>(facts.request) < static_cast<u32>(o.requests) ? o.max_pages : 0;
    }
  }
  __device__ __forceinline__ SlotWriter(const Params& p, const Score* scores, int id, int base)
      : SlotWriter(p, scores, id, base, SlotFacts::of(p, id)) {}

  __device__ __forceinline__ bool paged() const { return p.options.flags & kPaged; }
  __device__ __forceinline__ int page_of(int shown) const { return shown >> (paged() ? p.options.page_shift : 31); }
  __device__ __forceinline__ bool has_entry(int shown) const { return static_cast<u32>(page_of(shown)) < pages; }

  // The transform in two steps, so that the pages of several slots are loaded together: entry_at returns the entry in
  // the page table of an index, -1 without one, or the offset; and moved_by the index that is written.
  __device__ __forceinline__ int entry_at(int shown) const {
    const auto& o = p.options;
    if constexpr (kNoBranches) {
      int entry = paged() ? -1 : facts.offset;
      if (paged() && has_entry(shown)) entry = __ldg(table + page_of(shown));
      return entry;
    }
    if (!paged()) return facts.offset;
    return facts.has_entry(p, shown) ? o.page_table[facts.request * o.page_pitch + (shown >> o.page_shift)] : -1;
  }
  // The low half suffices where int32 is written.
  template <class Index> __device__ __forceinline__ Index moved_by(int entry, int shown) const {
    const auto& o = p.options;
    if constexpr (kNoBranches) {
      const Index pages_on = static_cast<Index>(entry) - page_of(shown);
      const bool none = (paged() ? entry : shown) < 0;
      return none ? -1 : pages_on * (Index{1} << (paged() ? o.page_shift : 0)) + shown;
    }
    if (!paged()) return shown < 0 ? -1 : static_cast<Index>(shown) + entry;
    return entry < 0 ? -1 : entry * (Index{1} << o.page_shift) + (shown & ((1 << o.page_shift) - 1));
  }

  // Returns the bits of the score of a position. Scores that change under a running kernel may leave any position, and
  // nothing behind the row may be read.
  __device__ __forceinline__ u32 read_bits(int position) const {
    const u32 at = static_cast<u32>(position - kept.begin);
    if (at < kept.count) return bits_of(kept.scores[at]);
    const Score* end = static_cast<const Score*>(p.scores) + KSIEVE_SCORES_AT(p, id) + KSIEVE_COLUMNS_OF(p);
    return scores + position < end ? bits_of(scores[position]) : kUnusedBits;
  }

  // Returns the number of an entry, or -1 if it has none: scores that change under a running kernel may leave any.
  __device__ __forceinline__ int number(int found) const {
    return static_cast<u32>(found) < static_cast<u32>(p.width) ? found : -1;
  }

  // Writes the indices of slots [begin, end), as of `write`; kAlone: int32, and no raw ones beside them.
  template <bool kAlone, class PositionAt>
  __device__ __forceinline__ void write_indices(int begin, int end, PositionAt position_at, int writers,
                                                int writer) const {
    const auto& o = p.options;
#pragma unroll 1
    for (int first = begin + writer; first < end; first += kInFlight * writers) {
      int shown[kInFlight];
      int entry[kInFlight];
#pragma unroll
      for (int b = 0; b < kInFlight; ++b) {
        const int position = position_at(first + b * writers);
        shown[b] = position < 0 ? -1 : position + base;
        entry[b] = entry_at(shown[b]);
      }
#pragma unroll
      for (int b = 0; b < kInFlight; ++b) {
        const int slot = first + b * writers;
        if (slot >= end) continue;
        if constexpr (kAlone) {
          p.indices[KSIEVE_ROW_AT(p, kIndices, id, p.out_pitch) + slot] =
              static_cast<int>(moved_by<u32>(entry[b], shown[b]));
        } else {
          const bool wide = o.flags & kWide;
          if (o.raw) write_index(o.raw, KSIEVE_ROW_AT(p, kRaw, id, o.raw_pitch) + slot, wide, shown[b]);
          write_index(p.indices, KSIEVE_ROW_AT(p, kIndices, id, p.out_pitch) + slot, wide,
                      moved_by<i64>(entry[b], shown[b]));
        }
      }
    }
  }

  // Writes slots [begin, end) with position_of(slot), -1 in unused ones, and the score whose bits bits_at(slot,
  // position) returns. Call by `writers` threads, numbered by `writer`.
  template <class PositionFor, class BitsAt>
  __device__ __forceinline__ void write(int begin, int end, PositionFor position_of, BitsAt bits_at, int writers,
                                        int writer) const {
    const auto& o = p.options;
    // Positions of a tail may lie behind the row.
    const u32 limit =
        kTail || kPositions ? 1u << 31 : static_cast<u32>(p.width) * (kExpand && !kBlockRows ? o.expand : 1);
    auto position_at = [&](int slot) {
      const int position = slot < end ? position_of(slot) : -1;
      return static_cast<u32>(position) < limit ? position : -1;
    };
    if (!kNoBranches || o.raw || o.flags & kWide) {
      write_indices<false>(begin, end, position_at, writers, writer);
    } else {
      write_indices<true>(begin, end, position_at, writers, writer);
    }
    if constexpr (!kWritesValues) return;
#pragma unroll 1
    for (int first = begin + writer; first < end; first += kInFlight * writers) {
      u32 bits[kInFlight];
#pragma unroll
      for (int b = 0; b < kInFlight; ++b) {
        const int position = position_at(first + b * writers);
        bits[b] = position < 0 ? kUnusedBits : bits_at(first + b * writers, position);
      }
#pragma unroll
      for (int b = 0; b < kInFlight; ++b)
        if (first + b * writers < end)
          write_bits(o.values, KSIEVE_ROW_AT(p, kValues, id, o.values_pitch) + first + b * writers, bits[b]);
    }
  }

  // The same; scores are read again.
  template <class PositionFor>
  __device__ __forceinline__ void write(int begin, int end, PositionFor position_of, int writers = kThreads,
                                        int writer = static_cast<int>(threadIdx.x)) const {
    write(begin, end, position_of, [&](int, int position) { return read_bits(position); }, writers, writer);
  }

  // Writes one slot.
  __device__ __forceinline__ void put(int slot, int position) const {
    write(slot, slot + 1, [&](int) { return position; }, 1, 0);
  }

  // Writes the slots of entries [begin, end), the numbers of which number_of(i) returns.
  template <class NumberOf>
  __device__ __forceinline__ void write_entries(int begin, int end, NumberOf number_of, int writers = kThreads,
                                                int writer = static_cast<int>(threadIdx.x)) const {
    if constexpr (!kExpand) return write(begin, end, number_of, writers, writer);
    const u32 expand = static_cast<u32>(p.options.expand);
    auto position_of = [&](int slot) {
      const u32 own = static_cast<u32>(slot) / expand;
      const int entry = number(number_of(static_cast<int>(own)));
      return entry < 0 ? -1 : static_cast<int>(entry * expand + (static_cast<u32>(slot) - own * expand));
    };
    auto bits_at = [&](int, int position) { return read_bits(static_cast<int>(static_cast<u32>(position) / expand)); };
    write(begin * p.options.expand, end * p.options.expand, position_of, bits_at, writers, writer);
  }

  // Writes the slots behind the `used` ones, and their number. Call by all threads of the CTA.
  __device__ __forceinline__ void finish(int used) const {
    write(used, written_slots(p, used, columns_of(p)), [](int) { return -1; });
    write_count(p, id, used);
  }

  // Writes all slots of a row with at most k scores, and their number. Call by all threads of the CTA.
  __device__ __forceinline__ void write_whole(int length) const {
    write(0, written_slots(p, length, columns_of(p)), [&](int slot) { return slot < length ? slot : -1; });
    write_count(p, id, length);
  }
};

// Positions behind the last whole entry of a row: `count` of them, up to `end`. `all` has all of the row's entries.
struct TailPositions {
  int end;
  int count;
  template <class AnyRow> __device__ __forceinline__ static TailPositions of(const Params& p, const AnyRow& all) {
    if (!kTail || all.id >= min(live_rows(p), p.rows)) return {0, 0};
    const int expand = p.options.expand;
    if constexpr (kBlockRows) {
      const int end = all.base * kBlockSize + all.high;
      return {end, max(min(end % expand, all.high - all.low), 0)};
    } else {
      const int end = tail_length(p, all.id);
      return {end, kPositions || end > all.base * expand ? end % expand : 0};
    }
  }
};

// Returns how many slots the last of a row's entries leaves out, which is a block with fewer scores than others.
template <class AnyRow> __device__ __forceinline__ int cut_slots(const AnyRow& all) {
  if constexpr (kBlockRows && kExpand) return max(all.length * kBlockSize - all.high, 0);
  return 0;
}

// Whether the slots of a row's selected entries can be written before all of them are known: a block with fewer scores
// than others moves the slots behind it. Values of blocks are left to the epilogue.
template <class AnyRow> __device__ __forceinline__ bool slots_stay(const Params& p, const AnyRow& others) {
  if constexpr (!kBlockRows || !kExpand || kWritesValues) {
    return !kBlockRows || !kWritesValues;
  } else {
    const Slots<AnyRow> slots(p, others);
    bool last = false; // it comes last
    if (kForcedEnds) last = slots.lasts > 0;
    return slots.row.low == 0 && (last || cut_slots(slots.row) == 0);
  }
}

// Writes the slots of a row from that of the selected entry `begin` on: of the selected ones, whose numbers
// number_of(i) returns, of forced ones, and of the tail; then -1; and the number of used slots. Call by all threads of
// the CTA.
template <class AnyRow, class NumberOf>
__device__ __forceinline__ void write_slots_from(const Params& p, const AnyRow& others, SlotFacts facts, int begin,
                                                 NumberOf number_of) {
  const int expand = kExpand ? p.options.expand : 1;
  const Slots<AnyRow> slots(p, others);
  const int used = slots.used(min(others.length, slots_of(p, others))) * expand - cut_slots(slots.row);
  const TailPositions tail = TailPositions::of(p, slots.row);
  // Positions here count from where the caller does.
  const SlotWriter writer(p, slots.row.scores - slots.row.base, others.id, 0, facts);
  auto position_of = [&](int slot) {
    if (slot >= used) return slot < used + tail.count ? tail.end - tail.count + slot - used : -1;
    const int own = slot / expand;
    const int entry = slots.entry_of(p, own, [&](int i) { return writer.number(number_of(i)); });
    return entry < 0 ? -1 : (entry + slots.row.base) * expand + slot - own * expand;
  };
  auto bits_at = [&](int slot, int position) {
    return slot < used ? writer.read_bits(position / expand) : kUnusedBits;
  };
  writer.write(begin * expand, written_slots(p, used + tail.count, columns_of(p)), position_of, bits_at, kThreads,
               static_cast<int>(threadIdx.x));
  write_count(p, others.id, used + tail.count);
}
