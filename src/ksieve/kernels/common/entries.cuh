// Rows with windows, among them those whose entries are selected in place of their scores (core/entries.py): blocks of
// scores, or with forced entries the others, which are a window of the row. Included by common/load.cuh alone.
#pragma once

constexpr bool kForcedEnds = kForced > 0 && !kPositions; // forced entries are the ends of a row

// All entries of a row.
template <class AnyRow> struct Entries {
  AnyRow row; // its slots are those for forced entries too; a row that gets none of either has no entries
  int before; // forced entries at its beginning and at its end
  int behind;
};

// Returns a row of `count` entries from the `first`-th on.
template <class AnyRow> __device__ __forceinline__ AnyRow part_of(AnyRow row, int first, int count) {
  row.length = count;
  row.base += first;
  if constexpr (kBlockRows) {
    constexpr i64 kBytes = KSIEVE_OPTION(KSIEVE_SOURCE_DTYPE) ? 2 : 4;
    row.from = static_cast<const unsigned char*>(row.from) + first * (kBytes * kBlockSize);
    row.low = max(row.low - first * kBlockSize, 0);
    row.high -= first * kBlockSize;
  } else {
    row.scores += first;
  }
  return row;
}

template <class AnyRow> __device__ __forceinline__ Entries<AnyRow> load_entries(const Params& p, int id) {
  const auto& o = p.options;
  const int live = p.num_rows ? min(max(*p.num_rows, 0), p.rows) : p.rows;
  const auto start = window_start(p, id);
  const int hidden = kTail && !kBlockRows ? 0 : hidden_of(p, id); // with a tail it is positions that differ by one
  const int valid = max(p.lengths ? length_entry(p, id / o.next_n) : p.width, hidden) - hidden;
  const bool ends = p.lengths == nullptr || o.flags & kEnds;
  int length;
  if constexpr (kSegments) {
    length = segment_length(p, id, start);
  } else {
    const int first = static_cast<int>(start);
    length = ends ? min(max(valid, first), p.width) - first : min(valid, p.width - first);
  }
  const int most = p.k + kForcedInside;
  const int own =
      (o.row_k ? min(max(o.row_k[KSIEVE_INDEX_AT(p, kRowK, id)], 0), most) : most) + (kForced - kForcedInside);
  const int base = !kSegments && o.flags & kAbsolute ? start : 0;
  Entries<AnyRow> all = {};
  all.row.id = id;
  all.row.slots = own;
  if constexpr (kBlockRows) {
    constexpr i64 kBytes = KSIEVE_OPTION(KSIEVE_SOURCE_DTYPE) ? 2 : 4;
    const int cut = base % kBlockSize; // scores of the first block in front of the window
    if (kTail) length = min(length, max(tail_length(p, id) - base, 0));
    all.row.base = base / kBlockSize;
    all.row.length = !length ? 0 : kTail ? (cut + length) / kBlockSize : (cut + length - 1) / kBlockSize + 1;
    all.row.from = static_cast<const unsigned char*>(p.scores) + (KSIEVE_SCORES_AT(p, id) + start - cut) * kBytes;
    all.row.low = cut;
    all.row.high = cut + length;
  } else {
    if (kTail && !kPositions) length = min(length, max(tail_length(p, id) / o.expand - base, 0));
    all.row.base = base;
    all.row.length = length;
    all.row.scores = static_cast<const Score*>(p.scores) + KSIEVE_SCORES_AT(p, id) + start;
  }
  if (id >= live || own == 0) all.row.length = 0;
  all.before = min(kForceFirst, all.row.length);
  all.behind = min(kForceLast, all.row.length - all.before);
  return all;
}

// Returns the entries that are not forced, as a row; with positions, which may be in any order, all of them.
template <class AnyRow> __device__ __forceinline__ AnyRow others_of(const Entries<AnyRow>& all) {
  if constexpr (kForced == 0) return all.row;
  const int slots = max(all.row.slots - kForced, 0);
  AnyRow row =
      kPositions ? all.row : part_of(all.row, all.before, slots ? all.row.length - all.before - all.behind : 0);
  row.slots = slots;
  return row;
}

// The slots of a row: `selected` ones of its other entries, and the forced ones that have room. Of these, the tie-break
// chooses. `others` is the row without forced entries.
template <class AnyRow, bool kSome = kForcedEnds> struct Slots {
  AnyRow row; // all of its entries: positions in slots count from its first one
  int selected;
  int before; // number of the first entry that is not forced
  int first;  // forced entries [first, first + firsts) and [last, last + lasts)
  int firsts;
  int last;
  int lasts;

  __device__ __forceinline__ Slots(const Params& p, const AnyRow& others)
      : Slots(p, load_entries<AnyRow>(p, others.id)) {}
  __device__ __forceinline__ Slots(const Params& p, const Entries<AnyRow>& all)
      : row(all.row), selected(min(max(row.length - all.before - all.behind, 0), max(row.slots - kForced, 0))),
        before(all.before), first(0), firsts(all.before), last(row.length - all.behind), lasts(all.behind) {
    const int left_out = max(firsts + lasts - row.slots, 0);
    const bool high = p.options.flags & kHighest;
    const int ahead = high ? min(left_out, firsts) : left_out - min(left_out, lasts); // of the first ones
    first = high ? ahead : 0;
    firsts -= ahead;
    last += high ? left_out - ahead : 0;
    lasts -= left_out - ahead;
  }

  __device__ __forceinline__ int used(int = 0) const { return selected + firsts + lasts; }

  // Returns the entry of a slot, counted from the row's first one, given that other(i) returns the i-th selected one of
  // those that are not forced; -1 for an unused slot. Without an order forced entries come last, so that no slot moves.
  template <class Other> __device__ __forceinline__ int entry_of(const Params& p, int slot, Other other) const {
    const int in_front = kOrder == Order::kAny ? 0 : kOrder == Order::kIndex ? firsts : firsts + lasts;
    const int at = slot - in_front;
    if (at >= 0 && at < selected) {
      const int found = other(at);
      return found < 0 ? -1 : before + found;
    }
    int number = at < 0 ? slot : slot - selected; // of a forced entry
    if (slot >= used()) return -1;
    if (kOrder == Order::kValue && p.options.flags & kHighest) number = firsts + lasts - 1 - number;
    return number < firsts ? first + number : last + number - firsts;
  }
};
template <class AnyRow> struct Slots<AnyRow, false> {
  const AnyRow& row;
  __device__ __forceinline__ Slots(const Params&, const AnyRow& others) : row(others) {}
  template <class Other> __device__ __forceinline__ int entry_of(const Params&, int slot, Other other) const {
    return other(slot);
  }
  __device__ __forceinline__ int used(int selected) const { return selected; }
};
