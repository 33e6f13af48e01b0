#include <functional>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/process.h"

using fakecuda::Attachment;
using fakecuda::attachment;
using fakecuda::Memory;
using fakecuda::Process;
using fakecuda::Rule;
using fakecuda::Shared;
using fakecuda::SharedLock;

namespace {

// Tests look and set before their process, or instead of it, uses the device.
Attachment* Attached() {
  fakecuda::Initialise();
  return attachment();
}

void ForEachProcess(Attachment* attached, int pid,
                    const std::function<void(int, Process&)>& visit) {
  if (attached == nullptr) return;
  for (int slot = 0; slot < fakecuda::kMaxProcesses; ++slot) {
    Process& process = attached->shared()->processes[slot];
    if (process.pid != 0 && (pid == 0 || process.pid == pid)) visit(slot, process);
  }
}

int AddRule(int pid, const char* name, int nth, int code) {
  const int function = fakecuda::FunctionByName(name);
  Attachment* attached = Attached();
  if (function < 0 || attached == nullptr) return -1;
  Shared* shared = attached->shared();
  SharedLock lock(shared);
  for (Rule& rule : shared->rules) {
    if (rule.nth != 0) continue;
    rule = {pid, function, nth, code};
    ++shared->rule_count;
    return 0;
  }
  return -1;
}

}  // namespace

extern "C" {

void fakecuda_reset() {
  if (Attached() == nullptr) return;
  attachment()->ResetSettings();
  Memory::Get().set_exportable(true);
}

uint64_t fakecuda_calls(int pid, const char* name) {
  const int function = name == nullptr ? -1 : fakecuda::FunctionByName(name);
  uint64_t sum = 0;
  ForEachProcess(Attached(), pid, [&](int, Process& process) {
    for (int i = 0; i < fakecuda::kFunctionCount; ++i) {
      if (name == nullptr || i == function) sum += process.calls[i];
    }
  });
  return sum;
}

uint64_t fakecuda_pageable_copies(int pid) {
  uint64_t sum = 0;
  ForEachProcess(Attached(), pid, [&](int, Process& process) { sum += process.pageable_copies; });
  return sum;
}

uint64_t fakecuda_used_bytes(int device) {
  if (Attached() == nullptr) return 0;
  SharedLock lock(attachment()->shared());
  return attachment()->UsedBytes(device);
}

uint64_t fakecuda_open_imports(int pid) {
  if (Attached() == nullptr) return 0;
  SharedLock lock(attachment()->shared());
  attachment()->Sweep();
  uint64_t sum = 0;
  ForEachProcess(attachment(), pid, [&](int slot, Process&) {
    for (const auto& allocation : attachment()->shared()->allocations) {
      if (allocation.id != 0) sum += allocation.imports[slot];
    }
  });
  return sum;
}

uint64_t fakecuda_pinned_bytes() { return Memory::Get().pinned_bytes(); }

int fakecuda_fail(int pid, const char* function, int nth, int code) {
  return nth < 1 ? -1 : AddRule(pid, function, nth, code);
}

int fakecuda_fail_always(int pid, const char* name, int code) {
  if (code != 0) return AddRule(pid, name, -1, code);
  const int function = fakecuda::FunctionByName(name);
  if (function < 0 || Attached() == nullptr) return -1;
  Shared* shared = attachment()->shared();
  SharedLock lock(shared);
  for (Rule& rule : shared->rules) {
    if (rule.nth == 0 || rule.function != function || rule.pid != pid) continue;
    rule = {};
    --shared->rule_count;
  }
  return 0;
}

void fakecuda_set_sticky(int pid, int code) {
  ForEachProcess(Attached(), pid, [&](int, Process& process) { process.sticky = code; });
}

void fakecuda_set_exportable(int exportable) { Memory::Get().set_exportable(exportable != 0); }

void fakecuda_set_vram(int device, uint64_t bytes) {
  if (Attached() == nullptr || device < 0 || device >= fakecuda::kMaxDevices) return;
  SharedLock lock(attachment()->shared());
  attachment()->shared()->vram[device] = bytes;
}

void fakecuda_set_host_limit(uint64_t bytes) {
  if (Attached() != nullptr) attachment()->shared()->host_limit = bytes;
}

void fakecuda_set_delay_us(uint64_t delay) {
  if (Attached() != nullptr) attachment()->shared()->delay_us = delay;
}

void fakecuda_hold(int pid) {
  if (Attached() != nullptr) attachment()->shared()->held_pid = pid;
}

void fakecuda_release() {
  if (Attached() != nullptr) attachment()->shared()->held_pid = -1;
}

void fakecuda_set_strict(int strict) {
  if (Attached() != nullptr) attachment()->shared()->strict = strict;
}

int fakecuda_peek(uint64_t address, void* to, size_t bytes) {
  return Memory::Get().Peek(address, to, bytes) ? 0 : -1;
}

int fakecuda_poke(uint64_t address, const void* from, size_t bytes) {
  return Memory::Get().Poke(address, from, bytes) ? 0 : -1;
}

}  // extern "C"
