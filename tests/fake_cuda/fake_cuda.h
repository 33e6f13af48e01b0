// Test access to the fake driver: what tests set, break and count. The fake itself is reached
// through cuda.h's functions; tests/fake_cuda/README.md says what it reproduces.
//
// Settings live in the fake's directory ($EMBCACHE_TEST_FAKE_CUDA_DIR) and hold for every process
// that uses it, so a test can make the daemon's calls fail. Where `pid` is asked for, 0 means every
// process. A function is named as in CUDA's documentation, with or without "_v2".
//
// Link the target fakecuda, or look the functions up in libcuda.so.1. All are thread-safe.

#ifndef EMBCACHE_TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define EMBCACHE_TESTS_FAKE_CUDA_FAKE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Back to the settings given by the environment: nothing held, nothing failing, counters at 0. Does
// not free memory, and does not heal a context that has had a sticky error.
void fakecuda_reset(void);

// --- Counting -----------------------------------------------------------------------------------

// Calls of one function since the last fakecuda_reset(); of all functions for NULL. Calls that
// failed count, too.
uint64_t fakecuda_calls(int pid, const char* function);
// Asynchronous and synchronous copies from or to host memory that is not pinned.
uint64_t fakecuda_pageable_copies(int pid);
// Device memory counted as used, as in cuMemGetInfo: also what is freed but still imported.
uint64_t fakecuda_used_bytes(int device);
// Mappings of other processes' memory, over all handles; an allocation opened twice in one process
// counts twice.
uint64_t fakecuda_open_imports(int pid);
// Bytes of host memory that the calling process has registered or allocated as pinned.
uint64_t fakecuda_pinned_bytes(void);

// --- Failing ------------------------------------------------------------------------------------

// The nth call (1: the next one) of `function` in process `pid` answers `code` and does nothing.
// Returns 0, or -1 for an unknown function or when there are too many rules.
int fakecuda_fail(int pid, const char* function, int nth, int code);
// From now on every call of `function` fails; code 0 ends that.
int fakecuda_fail_always(int pid, const char* function, int code);
// Breaks the contexts of a process, or of all, as a faulting kernel does: from now on all that
// needs a context answers `code` (700: illegal address), work queued is dropped, and no host
// function runs.
void fakecuda_set_sticky(int pid, int code);
// Allocations of the calling process made from now on cannot be exported (as PyTorch's
// expandable_segments).
void fakecuda_set_exportable(int exportable);

// --- Setting ------------------------------------------------------------------------------------

void fakecuda_set_vram(int device, uint64_t bytes);
// Most bytes of host memory that one process may pin; more is refused with
// CUDA_ERROR_OUT_OF_MEMORY.
void fakecuda_set_host_limit(uint64_t bytes);
// How long after it was queued an operation begins.
void fakecuda_set_delay_us(uint64_t delay);
// While held, no operation of `pid` begins on any stream: what is queued stays pending.
void fakecuda_hold(int pid);
void fakecuda_release(void);
// Freeing memory that another process has open aborts the caller instead of being undefined.
void fakecuda_set_strict(int strict);

// --- Looking ------------------------------------------------------------------------------------

// Reads or writes device memory at this instant, in no order with any stream, as a running kernel
// would: bounded by the 2 MiB blocks that are mapped, not by allocations. 0, or -1 where nothing is
// mapped.
int fakecuda_peek(uint64_t address, void* to, size_t bytes);
int fakecuda_poke(uint64_t address, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // EMBCACHE_TESTS_FAKE_CUDA_FAKE_CUDA_H_
