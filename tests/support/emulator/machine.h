// A multiprocessor made of one processor: threads are fibers that run until they have to wait, in an order drawn from a
// seed. What hardware leaves open is left open here too: shared memory begins full of dirt, and copies arrive at once
// or as late as they may. What hardware forbids (a misaligned access, one outside shared memory, a warp that meets
// itself at two barriers, a wait that nobody ends) stops the launch with a message.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { kPatience = 5000, kShared0 = 1024, kRankShift = 24, kBarriers = 16, kCopies = 1024 };
typedef unsigned __int128 u128;

typedef struct Cta Cta;
typedef struct Warp Warp;

typedef struct {
  uint8_t *to, *arrival;
  const uint8_t* from;
  uint32_t bytes, group;
  uint8_t value[16];
} Copy;

struct Thread {
  jmp_buf context;
  Cta* cta;
  Warp* warp;
  uint8_t* stack;
  const volatile int* wait; // runs no further while *wait == unless
  int unless;
  int tid, lane, done, waiting, fuel, polling;
  int site; // of the collective or the barrier that it is at
  uint32_t op, mask, value, aux, out;
  int found;
  int cluster_phase;
  uint32_t group;
  int copies;
  Copy* copy;
};

struct Warp {
  Thread* lane[32];
};

typedef struct {
  int arrived, generation;
} Barrier;

struct Cta {
  uint8_t* shared;
  Thread* thread;
  Warp* warp;
  Barrier barrier[kBarriers];
  int number, alive, rank;
  struct Cluster* cluster;
};

typedef struct Cluster {
  Cta** cta;
  int ctas, arrived, phase, alive, number;
} Cluster;

typedef struct {
  int grid, threads, cluster, resident, shared_bytes, seed;
  const uint8_t* params;
  uint64_t read; // bytes of global memory that the kernel asked for, but for those that CTAs wait for
} Launch;

static Launch launch;
static jmp_buf scheduler, failure;
static char message[512];
static Thread* me;
static int unfinished; // threads of the group that runs
static uint64_t draw_state, ticks;
static int eager;
static Copy* flying;
static int in_flight, flying_room;

static uint32_t draw(void) {
  draw_state = draw_state * 6364136223846793005ull + 1442695040888963407ull;
  return (uint32_t)(draw_state >> 33);
}

__attribute__((noreturn, noinline, cold, format(printf, 2, 3))) static void stop(int line, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (me) {
    snprintf(message, sizeof message, "%s (PTX line %d, CTA %d, thread %d)", text, line, me->cta->number, me->tid);
  } else {
    snprintf(message, sizeof message, "%s", text);
  }
  me = NULL;
  _longjmp(failure, 1);
}

static __attribute__((noinline)) void pause_thread(Thread* t) {
  if (!_setjmp(t->context)) _longjmp(scheduler, 1);
}

static void wait_until_changed(Thread* t, const volatile int* at, int value) {
  t->wait = at;
  t->unless = value;
  pause_thread(t);
}

// Others run; a loop that polls is left in the end.
static __attribute__((noinline)) void poll(Thread* t) {
  t->polling = 1;
  pause_thread(t);
}

static __attribute__((noinline)) void preempt(Thread* t) {
  t->fuel = 2000 + (int)(draw() % 20000);
  t->polling = 1;
  pause_thread(t);
}

#include "arithmetic.h"
#include "memory.h"
#include "together.h"

// ---- launches

static void thread_body(void) {
  Thread* t = me;
  kernel(t);
  copies_land(t);
  t->done = 1;
  --unfinished;
  --t->cta->alive;
  --t->cta->cluster->alive;
  barrier_settle(t->cta, 0, 0);
  cluster_settle(t->cta->cluster);
  lane_leaves(t->warp);
  for (int i = 0; t->cta->alive == 0 && i < in_flight; ++i)
    if (flying[i].to >= t->cta->shared && flying[i].to < t->cta->shared + launch.shared_bytes)
      stop(t->site, "the CTA leaves while bytes are on their way to it");
  _longjmp(scheduler, 1);
}

static void begin_thread(Thread* t) {
  ucontext_t context, back;
  getcontext(&context);
  context.uc_stack.ss_sp = t->stack;
  context.uc_stack.ss_size = EMULATOR_STACK - t->tid % 64 * 320; // tops apart, or caches keep few of them
  context.uc_link = NULL;
  makecontext(&context, thread_body, 0);
  swapcontext(&back, &context);
}

static void run_thread(Thread* t, int begins) {
  me = t;
  if (!_setjmp(scheduler)) {
    if (begins) {
      begin_thread(t);
    } else {
      _longjmp(t->context, 1);
    }
  }
  me = NULL;
}

// Orders: warps forward, warps backward, or all threads shuffled again and again.
enum { kForward, kBackward, kShuffled, kOrders };

// CTAs that are resident together, until all have left. But for shuffled ones, the lanes of a warp run until all of
// them wait for other warps, which is what most of a processor's caches are for.
static void run_group(Thread* threads, int count, int* order, uint8_t* begun) {
  const int how = launch.seed % kOrders, together = how == kShuffled ? count : 32;
  long idle = 0;
  memset(begun, 0, count);
  unfinished = count;
  for (int i = 0; i < count; ++i)
    order[i] = how == kBackward ? count - 1 - i : i;
  while (unfinished) {
    int moved = 0, ran = 0;
    if (how == kShuffled)
      for (int i = count - 1; i > 0; --i) {
        const int j = (int)(draw() % (i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
      }
    for (int first = 0; first < count; first += together) {
      int goes_on;
      do {
        goes_on = 0;
        for (int i = first; i < first + together && i < count; ++i) {
          Thread* t = &threads[order[i]];
          if (t->done || (t->wait && *t->wait == t->unless)) continue;
          t->wait = NULL;
          t->polling = 0;
          ++ran;
          run_thread(t, !begun[order[i]]);
          begun[order[i]] = 1;
          goes_on |= !t->polling;
        }
        moved |= goes_on;
      } while (goes_on && how != kShuffled);
    }
    moved |= land_some();
    idle = moved ? 0 : idle + 1;
    if ((!ran && !in_flight) || idle > kPatience) {
      for (int i = 0; i < count; ++i)
        if (!threads[i].done) {
          me = &threads[i];
          stop(threads[i].site, ran ? "threads poll for what never comes" : "threads wait for what never comes");
        }
    }
  }
}

// Runs a kernel; the message of what went wrong, or NULL.
const char* emulator_run(Launch* asked) {
  launch = *asked;
  launch.read = 0;
  launch.shared_bytes += kStaticShared;
  draw_state = (uint64_t)launch.seed * 0x9E3779B97F4A7C15ull + 1;
  eager = launch.seed % 2;
  in_flight = 0;
  const int group = launch.resident * launch.cluster < launch.grid ? launch.resident * launch.cluster : launch.grid;
  const int count = group * launch.threads, shared = (launch.shared_bytes + 255) / 256 * 256, canary = 256;
  const int warps = (launch.threads + 31) / 32, clusters = (group + launch.cluster - 1) / launch.cluster;
  Thread* threads = calloc(count, sizeof(Thread));
  Warp* warp = calloc((size_t)group * warps, sizeof(Warp));
  Cta* cta = calloc(group, sizeof(Cta));
  Cluster* cluster = calloc(clusters, sizeof(Cluster));
  Cta** of_cluster = calloc(group, sizeof(Cta*));
  int* order = calloc(count, sizeof(int));
  uint8_t* begun = calloc(count, 1);
  uint8_t* memory = aligned_alloc(256, (size_t)group * (shared + canary) + canary);
  uint8_t* stacks = mmap(NULL, (size_t)count * EMULATOR_STACK, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const char* told = NULL;
  if (stacks == MAP_FAILED) return "no memory for the stacks of so many threads";
  if (_setjmp(failure)) {
    told = message;
  } else {
    for (int first = 0; first < launch.grid; first += group) {
      const int here = launch.grid - first < group ? launch.grid - first : group;
      for (size_t i = 0; i < (size_t)group * (shared + canary) + canary; ++i)
        memory[i] = i % 256 == 0 || i < 256 ? 0xA5 : (uint8_t)draw();
      for (int c = 0; c < here; ++c) {
        Cluster* mine = &cluster[c / launch.cluster];
        const int rank = c % launch.cluster;
        if (rank == 0) *mine = (Cluster){&of_cluster[c], 0, 0, 0, 0, (first + c) / launch.cluster};
        cta[c] = (Cta){.shared = memory + canary + (size_t)c * (shared + canary),
                       .thread = threads + c * launch.threads,
                       .warp = warp + c * warps,
                       .number = first + c,
                       .alive = launch.threads,
                       .rank = rank,
                       .cluster = mine};
        memset(cta[c].shared + launch.shared_bytes, 0xA5, shared + canary - launch.shared_bytes);
        of_cluster[c] = &cta[c];
        ++mine->ctas;
        mine->alive += launch.threads;
        memset(cta[c].warp, 0, warps * sizeof(Warp));
        for (int i = 0; i < launch.threads; ++i) {
          Thread* t = &cta[c].thread[i];
          Copy* kept = t->copy;
          memset(t, 0, sizeof *t);
          t->copy = kept;
          t->cta = &cta[c];
          t->warp = &cta[c].warp[i / 32];
          t->tid = i;
          t->lane = i % 32;
          t->fuel = 2000 + (int)(draw() % 20000);
          t->stack = stacks + (size_t)(c * launch.threads + i) * EMULATOR_STACK;
          t->warp->lane[i % 32] = t;
        }
      }
      run_group(threads, here * launch.threads, order, begun);
      for (int c = 0; c < here; ++c)
        for (int i = launch.shared_bytes; i < shared + canary; ++i)
          if (cta[c].shared[i] != 0xA5) stop(0, "bytes behind the shared memory of CTA %d were written", first + c);
    }
  }
  asked->read = launch.read;
  for (int i = 0; i < count; ++i)
    free(threads[i].copy);
  munmap(stacks, (size_t)count * EMULATOR_STACK);
  free(memory);
  free(begun);
  free(order);
  free(of_cluster);
  free(cluster);
  free(cta);
  free(warp);
  free(threads);
  return told;
}
