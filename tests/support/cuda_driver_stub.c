// A CUDA driver library without a GPU: it has the driver's names and signatures, keeps a current context, hands out
// host memory, and prints each call that matters to stdout. STUB_* variables make it fail in chosen ways.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
typedef unsigned int u32;

typedef struct {
  u32 grid[3], block[3], shared;
  void* stream;
  int* attributes;
  u32 count;
} LaunchConfig;

typedef struct {
  void *scores, *lengths, *num_rows;
  long long pitch;
  int rows, width, k, splits;
  void* indices;
  long long out_pitch;
  void *stats, *workspace;
  long long lists;
  int primary, rescue;
} Params;

static void* current;

static int option(const char* name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }

int cuInit(u32 flags) { return option("STUB_INIT", 0); }
int cuDriverGetVersion(int* v) { return *v = option("STUB_CUDA", 12080), 0; }
int cuDeviceGetCount(int* n) { return *n = 2, 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int device) { return strncpy(name, "Stub", size), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  switch (attribute) {
    case 75: return *value = option("STUB_MAJOR", 9), 0;
    case 76: return *value = 0, 0;
    case 16: return *value = 132, 0;
    case 81: return *value = 233472, 0;
    case 97: return *value = 232448, 0;
    case 38: return *value = 62914560, 0;
  }
  return 1;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)(0x7000ull + device), 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuModuleLoadData(void** module, const char* image) {
  printf("load %.3s in %p\n", image + 1, current);
  *module = (void*)0x8000;
  return option("STUB_LOAD", 0);
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  printf("function %s\n", name);
  return *function = (void*)0x9000, 0;
}
int cuFuncSetAttribute(void* f, int attribute, int value) { return printf("attribute %d=%d\n", attribute, value), 0; }
int cuFuncLoad(void* function) { return printf("loaded %p\n", function), 0; }
int cuStreamIsCapturing(void* stream, int* status) { return *status = option("STUB_CAPTURING", 0), 0; }
int cuMemsetD8Async(u64 at, unsigned char byte, size_t size, void* stream) {
  printf("zero %zu on %p\n", size, stream);
  return memset((void*)at, byte, size), 0;
}
int cuStreamSynchronize(void* stream) { return printf("wait %p\n", stream), 0; }
int cuMemAlloc_v2(u64* at, size_t size) {
  printf("allocate %zu\n", size);
  return *at = (u64)aligned_alloc(256, (size + 255) / 256 * 256), option("STUB_ALLOC", 0);
}
int cuMemFree_v2(u64 at) { return printf("free\n"), free((void*)at), 0; }
int cuMemcpyDtoH_v2(void* host, u64 at, size_t size) { return memcpy(host, (void*)at, size), 0; }
int cuGetErrorName(int error, const char** text) { return *text = "CUDA_ERROR_STUB", 0; }
int cuGetErrorString(int error, const char** text) { return *text = "stub failure", 0; }
int cuLaunchKernelEx(const LaunchConfig* c, void* function, void** arguments, void** extra) {
  const Params* p = arguments[0];
  printf("launch %p grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p context=%p ", function, c->grid[0], c->grid[1],
         c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, current);
  if (c->count) printf("attribute=%d:%d,%d,%d ", *c->attributes, c->attributes[2], c->attributes[3], c->attributes[4]);
  printf("rows=%d width=%d k=%d ranks=%d,%d splits=%d pitch=%lld,%lld extra=%p\n", p->rows, p->width, p->k, p->primary,
         p->rescue, p->splits, p->pitch, p->out_pitch, (void*)extra);
  *(int*)p->indices = 4242; // the first output slot
  if (p->stats) *(int*)p->stats = 5;
  return option("STUB_LAUNCH", 0);
}

// The bindings ask by unversioned name.
int cuGetProcAddress_v2(const char* name, void** function, int version, u64 flags, int* status) {
  char versioned[128];
  void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  snprintf(versioned, sizeof versioned, "%s_v2", name);
  *function = dlsym(self, versioned);
  if (!*function) *function = dlsym(self, name);
  if (status) *status = 0;
  return *function ? 0 : 500;
}
int cuGetProcAddress(const char* name, void** function, int version, u64 flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
