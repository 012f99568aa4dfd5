// Idioms that steer the compiler. None changes what is computed; each says what ptxas does without it.
// docs/decisions/0017-code-generation.md has the measurements.
#pragma once
#include "common/ptx.cuh"

// Returns the condition and marks its branch as rare: that code is kept out of the instructions that every row runs.
// Placement matters as much as length, since a CTA executes most instructions only once.
__device__ __forceinline__ bool unlikely(bool condition) { return __builtin_expect(condition, false); }

// Hides from the compiler how a value was computed: what depends on it is computed where it is used, instead of early,
// into a register that is then spilled. Macros, since ptxas schedules the callers of functions in another way.
#define KSIEVE_OPAQUE(value) asm volatile("" : "+r"(value))
#define KSIEVE_OPAQUE_64(value) asm volatile("" : "+l"(value))
// Waits here for a load of 16 bytes.
#define KSIEVE_AWAIT_WORDS(value)                                                                                      \
  asm volatile("" : "+r"((value).word[0]), "+r"((value).word[1]), "+r"((value).word[2]), "+r"((value).word[3]))

// Rare functions are inlined, except where slots are sorted: registers do not suffice there.
#if KSIEVE_ORDER
#define KSIEVE_COLD __noinline__
#else
#define KSIEVE_COLD __forceinline__
#endif
