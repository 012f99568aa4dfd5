// Addresses, mbarriers and asynchronous copies. Shared memory is a window of 32-bit addresses, whose upper byte names a
// CTA of the cluster: its rank and 1, or 0 where a CTA is alone.
#pragma once

static inline uint8_t* aligned(const void* at, int bytes, int line) {
  if (__builtin_expect((uint64_t)at % bytes != 0, 0))
    stop(line, "an access of %d bytes at %p is misaligned", bytes, at);
  return (uint8_t*)at;
}

static inline Cta* cta_of(Thread* t, uint32_t address, int line) {
  const uint32_t rank = address >> kRankShift, alone = t->cta->cluster->ctas == 1;
  if (__builtin_expect(alone && rank == 0, 1)) return t->cta;
  if (rank == 0 || rank > (uint32_t)t->cta->cluster->ctas)
    stop(line, "shared address %#x is of no CTA of the cluster", address);
  Cta* other = t->cta->cluster->cta[rank - 1];
  if (other->alive == 0) stop(line, "shared memory of CTA %d, which has left", other->number);
  return other;
}

// Where the window of a thread's own CTA begins.
static inline uint32_t own_window(Thread* t) {
  uint32_t rank = 0;
  while (t->cta->cluster->cta[rank] != t->cta)
    ++rank;
  return kShared0 + (t->cta->cluster->ctas == 1 ? 0 : (rank + 1) << kRankShift);
}

static inline uint8_t* shared_at(Thread* t, uint64_t address, uint32_t bytes, int line) {
  const uint32_t offset = ((uint32_t)address & ((1u << kRankShift) - 1)) - kShared0;
  if (__builtin_expect(offset > (uint32_t)launch.shared_bytes || bytes > launch.shared_bytes - offset, 0))
    stop(line, "shared address %#llx is outside the %d bytes of the CTA", (long long)address, launch.shared_bytes);
  return aligned(cta_of(t, (uint32_t)address, line)->shared + offset, bytes > 16 ? 16 : bytes, line);
}

static inline uint64_t generic_of_shared(Thread* t, uint64_t address, int line) {
  return (uint64_t)(cta_of(t, (uint32_t)address, line)->shared + ((uint32_t)address & ((1u << kRankShift) - 1)) -
                    kShared0);
}
static inline uint32_t shared_in_rank(Thread* t, uint32_t address, uint32_t rank) {
  return (address & ((1u << kRankShift) - 1)) | (rank + 1) << kRankShift;
}
static inline uint64_t generic_in_rank(Thread* t, uint64_t address, uint32_t rank, int line) {
  if (rank >= (uint32_t)t->cta->cluster->ctas) stop(line, "rank %u is beyond the cluster", rank);
  Cta* other = t->cta->cluster->cta[rank];
  if (other->alive == 0) stop(line, "shared memory of CTA %d, which has left", other->number);
  return address - (uint64_t)t->cta->shared + (uint64_t)other->shared;
}

// ---- mbarriers: 8 bytes of shared memory, in a layout of this machine's own

typedef struct {
  int32_t bytes;
  uint16_t pending, expected;
} Arrival; // the phase is the sign bit of `expected`

static void arrival_settle(Arrival* a) {
  if (a->pending || a->bytes) return;
  a->pending = a->expected & 0x7fff;
  a->expected ^= 0x8000;
}
static void arrival_init(uint8_t* at, uint32_t count) {
  *(Arrival*)at = (Arrival){0, (uint16_t)count, (uint16_t)count};
}
static void arrival_expect(uint8_t* at, uint32_t bytes, int arrives, int line) {
  Arrival* a = (Arrival*)at;
  a->bytes += (int32_t)bytes;
  if (arrives) {
    if (!a->pending) stop(line, "more arrivals than an mbarrier expects");
    --a->pending;
  }
  arrival_settle(a);
}
static void arrival_complete(uint8_t* at, uint32_t bytes) {
  Arrival* a = (Arrival*)at;
  a->bytes -= (int32_t)bytes;
  arrival_settle(a);
}
static int arrival_passed(Thread* t, uint8_t* at, uint32_t parity) {
  const int passed = (((Arrival*)at)->expected >> 15) != (int)(parity & 1);
  if (!passed) poll(t);
  return passed;
}

// ---- copies

static void land(const Copy* c) {
  memcpy(c->to, c->from ? c->from : c->value, c->bytes);
  if (c->arrival) arrival_complete(c->arrival, c->bytes);
}

// Of one thread: cp.async.
static void copy_async(Thread* t, uint8_t* to, const uint8_t* from, uint32_t bytes, int line) {
  aligned(from, bytes, line);
  launch.read += bytes;
  const Copy c = {to, NULL, from, bytes, t->group, {0}};
  if (eager) {
    land(&c);
    return;
  }
  if (!t->copy) t->copy = malloc(kCopies * sizeof(Copy));
  if (t->copies == kCopies) stop(line, "more than %d copies of a thread in flight", kCopies);
  t->copy[t->copies++] = c;
}
static void copies_wait(Thread* t, uint32_t pending_groups) { // ~0: only leave
  int kept = 0;
  for (int i = 0; i < t->copies; ++i) {
    const Copy c = t->copy[i];
    if (t->group - c.group > pending_groups) {
      land(&c);
    } else {
      t->copy[kept++] = c;
    }
  }
  t->copies = kept;
}
static void copies_land(Thread* t) {
  for (int i = 0; i < t->copies; ++i)
    land(&t->copy[i]);
  t->copies = 0;
}

// Of the copy engine, or to another CTA: counted by an mbarrier.
static void fly(const Copy* c) {
  if (eager) {
    land(c);
    return;
  }
  if (in_flight == flying_room) flying = realloc(flying, (flying_room = 2 * flying_room + 64) * sizeof(Copy));
  flying[in_flight++] = *c;
}
static void copy_bulk(Thread* t, uint64_t to, uint64_t from, uint32_t bytes, uint64_t arrival, int line) {
  if (bytes % 16 || bytes == 0) stop(line, "a bulk copy of %u bytes", bytes);
  launch.read += bytes;
  const Copy c = {
      shared_at(t, to, bytes, line), shared_at(t, arrival, 8, line), aligned((uint8_t*)from, 16, line), bytes, 0, {0}};
  fly(&c);
}
static void store_async(Thread* t, uint64_t to, const void* value, uint32_t bytes, uint64_t arrival, int line) {
  Copy c = {shared_at(t, to, bytes, line), shared_at(t, arrival, 8, line), NULL, bytes, 0, {0}};
  memcpy(c.value, value, bytes);
  fly(&c);
}
static int land_some(void) {
  int landed = 0;
  for (int left = in_flight; left > 0; --left) {
    if (draw() % 4 == 0) continue;
    const int i = (int)(draw() % in_flight);
    const Copy c = flying[i];
    flying[i] = flying[--in_flight];
    land(&c);
    ++landed;
  }
  return landed;
}
