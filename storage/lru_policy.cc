#include "storage/lru_policy.h"

#include "storage/check.h"

namespace embcache {
namespace {

class LruPolicy : public EvictionPolicy {
 public:
  LruPolicy() { ring_.previous = ring_.next = &ring_; }
  // Hooks left linked would point into a dead policy, so they are cut loose.
  ~LruPolicy() override {
    while (ring_.next != &ring_) Unlink(ring_.next);
  }

  LruPolicy(const LruPolicy&) = delete;
  LruPolicy& operator=(const LruPolicy&) = delete;

  void Insert(PolicyHook* hook) override {
    EMB_CHECK(!hook->linked());
    LinkAsNewest(hook);
  }

  void Touch(PolicyHook* hook) override {
    Unlink(hook);
    LinkAsNewest(hook);
  }

  void Remove(PolicyHook* hook) override { Unlink(hook); }

  void VisitCandidates(absl::FunctionRef<bool(PolicyHook*)> visit) const override {
    for (PolicyHook* hook = ring_.next; hook != &ring_; hook = hook->next) {
      if (!visit(hook)) return;
    }
  }

 private:
  void LinkAsNewest(PolicyHook* hook) {
    hook->previous = ring_.previous;
    hook->next = &ring_;
    ring_.previous->next = hook;
    ring_.previous = hook;
  }

  static void Unlink(PolicyHook* hook) {
    EMB_CHECK(hook->linked());
    hook->previous->next = hook->next;
    hook->next->previous = hook->previous;
    hook->previous = hook->next = nullptr;
  }

  PolicyHook ring_;  // next is the oldest entry, previous the newest
};

}  // namespace

std::unique_ptr<EvictionPolicy> NewLruPolicy() { return std::make_unique<LruPolicy>(); }

}  // namespace embcache
