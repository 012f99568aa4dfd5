// The answer of a row that one CTA has on chip, from what it has collected: indices for the epilogue, or slots as they
// are to be: all positions of each entry, or those that scores have of their own, read for the selected ones alone.
#pragma once
#include "resident/buckets.cuh"

// Writes slots [begin, end), four at a time where they are aligned, given the positions of an entry that number_of(i)
// returns the number of, or -1; behind `used` slots, rest(slot) is a position. Call as SlotWriter::write, where slots
// are int32 and nothing else is written.
template <class NumberOf, class Rest>
__device__ __forceinline__ void write_fours(const SlotWriter& slots, u32 expand, int begin, int end, int used,
                                            NumberOf number_of, Rest rest, int writers, int writer) {
  int* out = slots.p.indices + KSIEVE_ROW_AT(slots.p, kIndices, slots.id, slots.p.out_pitch);
  const int before = static_cast<int>(reinterpret_cast<u64>(out + begin) / sizeof(int) % 4);
#pragma unroll 1
  for (int first = begin - before + 4 * writer; first < end; first += 4 * writers) {
    const u32 from = static_cast<u32>(max(first, begin));
    u32 own = from / expand;
    u32 within = from - own * expand;
    int number = first < used ? number_of(static_cast<int>(own)) : -1;
    Four four = {};
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int slot = first + b;
      if (slot < begin || slot >= end) continue;
      if (within == expand && slot < used) {
        within = 0;
        number = number_of(static_cast<int>(++own));
      }
      const int position = static_cast<int>(number * expand + within++);
      const int found = slot >= used ? rest(slot) : number < 0 ? -1 : position;
      four.position[b] = found < 0 ? -1 : found + slots.base + slots.facts.offset;
    }
    if (first >= begin && first + 4 <= end) {
      *reinterpret_cast<Four*>(out + first) = four;
      continue;
    }
#pragma unroll
    for (int b = 0; b < 4; ++b)
      if (first + b >= begin && first + b < end) out[first + b] = four.position[b];
  }
}

// Writes the slots of a row of more than k scores, from what is collected and listed. Scores with positions are
// supposed to have one each: a row without one of those that are selected is no longer dense (PositionedRow), and its
// slots are not to be used. Call by all threads; no barrier follows.
KSIEVE_ENTRIES void write_entries_of(const Params& p, int slot, int listed, int remaining_k) {
  const auto& o = p.options;
  const int id = descriptor_at(slot).id;
  const SlotFacts facts = SlotFacts::of(p, id);
  int end = 0; // in positions; loaded before the barrier, as the facts are
  if (kTail) end = tail_length(p, id);
  __syncthreads(); // every thread's positions are collected, and its undecided scores listed
  const SlotWriter slots = writer_of(p, facts, slot);
  int expand = kExpand ? o.expand : 1;
  if (kExpand) KSIEVE_OPAQUE(expand); // otherwise what divides by it is kept in registers from row to row, and spilled
  const int k = descriptor_at(slot).slots;
  const int decided = k - (listed ? remaining_k : 0);
  const int thread = reread_tid();
  const bool ranks = listed && thread >= kThreads - 32; // the last warp, which writes what it ranks
  rank_last(listed, remaining_k, [&](int rank, int position) { collected()[decided + rank] = position; });
  __syncwarp(); // the last positions are collected, for the whole warp
  bool missing = false;
  // Scores that change under a running kernel may leave any number.
  auto index_of = [&](int i) {
    const int index = collected()[i];
    return static_cast<u32>(index) < static_cast<u32>(descriptor_at(slot).end) ? index : -1;
  };
  auto number_of = [&](int i) {
    const int index = index_of(i);
    if constexpr (!kPositions) return index;
    const int number = index < 0 ? -1 : PositionedRow::of_row().position_of(index);
    missing = missing || number < 0;
    return number;
  };
  const int used = k * expand;
  const int tail = kTail && (kPositions || end > slots.base) ? end % expand : 0;
  auto rest = [&](int at) { return at < used + tail ? end - tail + at - used - slots.base : -1; }; // the base is added
  auto position_of = [&](int at) {
    const int own = at / expand;
    const int number = at < used ? number_of(own) : -1;
    return at >= used ? rest(at) : number < 0 ? -1 : number * expand + at - own * expand;
  };
  auto bits_at = [&](int at, int) { return at < used ? slots.read_bits(index_of(at / expand)) : kUnusedBits; };
  const int columns = p.k * expand + (kTail ? expand - 1 : 0); // columns_of
  const int first = ranks ? decided * expand : 0;
  const int last = listed && !ranks ? decided * expand : written_slots(p, used + tail, columns);
  const int writers = ranks ? 32 : listed ? kThreads - 32 : kThreads;
  const int writer = ranks ? thread % 32 : thread;
  if (kExpand && !(kWritesValues || o.raw || o.flags & (kWide | kPaged))) {
    write_fours(slots, static_cast<u32>(expand), first, last, used, number_of, rest, writers, writer);
  } else {
    slots.write(first, last, position_of, bits_at, writers, writer);
  }
  if (kPositions && missing) PositionedRow::of_row().count = -1;
  write_count(p, id, used + tail);
  if (kPositions) return; // their caller clears what is counted (resident/positioned_rows.cuh)
  __syncthreads();        // every collected position has been read
  for (int i = thread; i < max(descriptor_at(slot).num_selected, k); i += kThreads)
    collected()[i] = 0;
}

// Writes the collected positions, clears their memory, which is the histogram, and writes the best `remaining_k` of the
// listed scores; with kWritesSlots or kWritesEntries all of the row's slots as they are to be. Call by all threads; no
// barrier follows.
__device__ __forceinline__ void write_answer(const Params& p, int slot, int listed, int remaining_k) {
  if constexpr (kWritesEntries) return write_entries_of(p, slot, listed, remaining_k);
  SlotFacts facts;
  if (kWritesSlots) facts = SlotFacts::of(p, descriptor_at(slot).id);
  __syncthreads(); // every thread's positions are collected, and its undecided scores listed
  const int num_selected = descriptor_at(slot).num_selected;
  const int count = min(num_selected, descriptor_at(slot).slots);
  if constexpr (kWritesSlots) {
    const SlotWriter slots = writer_of(p, facts, slot);
    slots.write(0, count, [&](int at) { return collected()[at]; });
    for (int i = reread_tid(); i < num_selected; i += kThreads) // those that this thread has read
      collected()[i] = 0;
    const int decided = descriptor_at(slot).slots - remaining_k;
    rank_last(listed, remaining_k, [&](int rank, int position) { slots.put(decided + rank, position); });
    return slots.finish(descriptor_at(slot).slots);
  }
  write_collected<true>(descriptor_at(slot).out, collected(), num_selected, count,
                        [&](int position) { return shown_position(position, slot); });
  write_last(slot, listed, remaining_k);
}
