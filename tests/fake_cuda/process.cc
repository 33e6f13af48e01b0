#include "tests/fake_cuda/process.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mutex>
#include <sstream>
#include <string>

namespace fakecuda {
namespace {

struct ProcessState {
  std::mutex mutex;
  Attachment* attached = nullptr;  // guarded by mutex until published below
  std::atomic<Attachment*> initialised{nullptr};
  std::atomic<pid_t> pid{0};
  std::vector<int> visible;  // constant once initialised
  CUctx_st contexts[kMaxDevices];
};

// Never destroyed: stream threads and other libraries' destructors may come later.
ProcessState& State() {
  static auto* state = new ProcessState;
  return *state;
}

std::string UuidText(int device) {
  const CUuuid uuid = UuidOfDevice(device);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// Ordinals or (beginnings of) UUIDs; what follows the first unknown one is invisible, as in CUDA.
std::vector<int> ReadVisible(int devices) {
  std::vector<int> visible;
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int device = 0; device < devices; ++device) visible.push_back(device);
    return visible;
  }
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    int found = -1;
    for (int device = 0; device < devices; ++device) {
      if (item == std::to_string(device)) found = device;
      if (item.size() > 4 && UuidText(device).compare(0, item.size(), item) == 0) found = device;
    }
    if (found < 0) break;
    visible.push_back(found);
  }
  return visible;
}

Attachment* Attach() {
  ProcessState& state = State();
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.attached == nullptr) state.attached = Attachment::Open();
  return state.attached;
}

// Guards the rules by the shared lock; only called when there are some.
CUresult InjectedFailure(Shared* shared, Function function) {
  SharedLock lock(shared);
  for (Rule& rule : shared->rules) {
    if (rule.nth == 0 || rule.function != function) continue;
    if (rule.pid != 0 && rule.pid != getpid()) continue;
    if (rule.nth < 0) return static_cast<CUresult>(rule.code);
    if (--rule.nth > 0) continue;
    shared->rule_count.fetch_sub(1);
    return static_cast<CUresult>(rule.code);
  }
  return CUDA_SUCCESS;
}

bool Forked() {
  const pid_t pid = State().pid.load();
  return pid != 0 && pid != getpid();
}

}  // namespace

Attachment* attachment() { return State().initialised.load(); }

CUresult Initialise() {
  ProcessState& state = State();
  if (Forked()) return CUDA_ERROR_NOT_INITIALIZED;
  Attachment* attached = Attach();
  if (attached == nullptr) return CUDA_ERROR_NO_DEVICE;
  std::lock_guard<std::mutex> lock(state.mutex);
  if (state.initialised.load() != nullptr) return CUDA_SUCCESS;
  state.visible = ReadVisible(attached->shared()->devices);
  if (state.visible.empty()) return CUDA_ERROR_NO_DEVICE;
  for (size_t ordinal = 0; ordinal < state.visible.size(); ++ordinal) {
    state.contexts[ordinal].ordinal = static_cast<int>(ordinal);
    state.contexts[ordinal].device = state.visible[ordinal];
  }
  state.pid = getpid();
  state.initialised = attached;
  return CUDA_SUCCESS;
}

int VisibleDevices() { return static_cast<int>(State().visible.size()); }

int DeviceOfOrdinal(int ordinal) {
  return ordinal >= 0 && ordinal < VisibleDevices() ? State().visible[ordinal] : -1;
}

CUuuid UuidOfDevice(int device) {
  CUuuid uuid;
  for (int i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<char>(0xfa + 7 * i);
  uuid.bytes[15] = static_cast<char>(device);
  return uuid;
}

CUcontext PrimaryContext(int ordinal) { return &State().contexts[ordinal]; }

std::vector<CUcontext>& ContextStack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

CUcontext CurrentContext() {
  const std::vector<CUcontext>& stack = ContextStack();
  return stack.empty() ? nullptr : stack.back();
}

CUresult StickyError() { return static_cast<CUresult>(attachment()->process().sticky.load()); }

void SetStickyError(CUresult error) {
  int32_t none = CUDA_SUCCESS;
  attachment()->process().sticky.compare_exchange_strong(none, error);
}

bool& InHostFunction() {
  thread_local bool inside = false;
  return inside;
}

CUresult Begin(Function function, Needs needs) {
  if (Forked() && needs != Needs::kNothing) return CUDA_ERROR_NOT_INITIALIZED;
  if (Attachment* attached = Attach(); attached != nullptr && !Forked()) {
    attached->process().calls[function].fetch_add(1);
    if (attached->shared()->rule_count.load() > 0) {
      const CUresult injected = InjectedFailure(attached->shared(), function);
      if (injected != CUDA_SUCCESS) return injected;
    }
  }
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  if (attachment() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (InHostFunction()) return CUDA_ERROR_NOT_PERMITTED;
  if (needs == Needs::kInit) return CUDA_SUCCESS;
  const CUcontext current = CurrentContext();
  if (current == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (current->retained.load() == 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return StickyError();
}

}  // namespace fakecuda
