#include "server/daemon.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gpu/available_memory.h"
#include "server/device_choice.h"
#include "server/device_guard.h"
#include "server/directory_lock.h"
#include "server/start_check.h"
#include "spdlog/spdlog.h"
#include "storage/clock.h"
#include "storage/late_store.h"
#include "storage/rocksdb_store.h"

namespace embcache {
namespace {

// Disk work waiting for a thread; what the cache cannot schedule it answers with an error.
constexpr size_t kIoQueueLimit = 65536;
// What a message needs beside the largest inline value.
constexpr uint64_t kMessageOverheadBytes = uint64_t{16} << 20;
constexpr absl::Duration kRpcShutdownTimeout = absl::Seconds(1);
// gRPC waits for answers to be read before it lets go of a connection, for ever if need be.
constexpr absl::Duration kStopPatience = absl::Seconds(5);
// Of the above, what a copy on the device may take. Those of a device that works take milliseconds.
constexpr absl::Duration kDevicePatience = absl::Seconds(3);
constexpr uint64_t kBytesPerFastEntry = 64 * 1024;
constexpr uint64_t kMaxFastEntries = uint64_t{1} << 20;
constexpr mode_t kSocketDirMode = 0750;
constexpr mode_t kL3DirMode = 0700;

SessionLimits MakeSessionLimits(const Config& config) {
  SessionLimits limits;
  limits.max_sessions = static_cast<uint32_t>(config.max_sessions);
  limits.max_sessions_per_uid = static_cast<uint32_t>(config.max_sessions_per_uid);
  limits.max_leases = config.max_leases_per_session;
  const auto memory = static_cast<double>(config.l1_capacity_bytes + config.l2_capacity_bytes);
  // 0 would mean no bound.
  limits.max_pinned_bytes =
      std::max<uint64_t>(1, static_cast<uint64_t>(memory * config.max_pinned_fraction));
  if (config.lease_ttl > absl::ZeroDuration()) limits.lease_ttl = config.lease_ttl;
  limits.quarantine = config.quarantine;
  return limits;
}

// A pin cannot be made to expire, so a bound on the life of leases goes without them.
uint64_t FastIndexEntries(const Config& config) {
  if (!config.fast_path || config.lease_ttl > absl::ZeroDuration()) return 0;
  if (config.fast_index_entries > 0) return config.fast_index_entries;
  const uint64_t bytes = config.l1_capacity_bytes + config.l2_capacity_bytes;
  return std::clamp<uint64_t>(bytes / kBytesPerFastEntry, 1, kMaxFastEntries);
}

TieredCacheOptions MakeCacheOptions(const Config& config) {
  TieredCacheOptions options;
  options.l1 = {config.l1_capacity_bytes, config.segment_bytes, config.l1_max_entries};
  options.l2 = {config.l2_capacity_bytes, config.segment_bytes, config.l2_max_entries};
  options.l3_write =
      config.l3_write == Config::L3Write::kEvict ? L3WriteMode::kEvict : L3WriteMode::kThrough;
  options.l3_admit =
      config.l3_admit == Config::L3Admit::kSecondHit ? L3Admit::kSecondHit : L3Admit::kAlways;
  options.l3_queue_entries = config.l3_queue_entries;
  options.l3_queue_bytes = config.l3_queue_bytes;
  options.reservation_ttl = config.reservation_ttl;
  options.fast_index_entries = FastIndexEntries(config);
  return options;
}

PeerRules MakePeerRules(const Config& config) {
  PeerRules rules;
  rules.allowed_uids = {config.allow_uids.begin(), config.allow_uids.end()};
  rules.allowed_gids = {config.allow_gids.begin(), config.allow_gids.end()};
  rules.admin_uids = {config.admin_uids.begin(), config.admin_uids.end()};
  rules.admin_gids = {config.admin_gids.begin(), config.admin_gids.end()};
  // Who could do as it likes with the process anyway.
  rules.admin_uids.push_back(0);
  rules.admin_uids.push_back(geteuid());
  return rules;
}

// Ends the process, with success, unless it is destroyed within `patience`. For the last part of a
// stop, when all that must not be lost is on disk.
class ExitGuard {
 public:
  explicit ExitGuard(absl::Duration patience)
      : thread_([this, patience] {
          pthread_setname_np(pthread_self(), "exit-guard");
          if (done_.WaitForNotificationWithTimeout(patience)) return;
          spdlog::warn("a client does not read its answers: not waiting for it any longer");
          spdlog::default_logger()->flush();
          _exit(0);
        }) {}
  ~ExitGuard() {
    done_.Notify();
    thread_.join();
  }

 private:
  absl::Notification done_;
  std::thread thread_;
};

absl::Status InContext(absl::string_view what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

// The store of --l3-dir. An SSD that cannot be used now is no reason not to serve: it is tried
// again until it can be, and begins empty then. A directory that somebody else uses, or that is no
// store of a version we know, is a mistake of the operator's, who has to hear of it.
absl::StatusOr<std::unique_ptr<PersistentStore>> OpenL3(const Config& config, PutGate* gate) {
  RocksDbStoreOptions options;
  options.path = config.l3_dir;
  options.capacity_bytes = config.l3_capacity_bytes;
  options.direct_reads = config.l3_read == Config::L3Read::kDirect;
  options.pause = [gate] { gate->Wait(); };
  options.log = [](absl::string_view line) { spdlog::warn("l3: {}", std::string(line)); };
  const auto open = [options](bool discard) -> absl::StatusOr<std::unique_ptr<PersistentStore>> {
    absl::Status made = MakeDirectory(options.path, kL3DirMode);
    if (!made.ok()) return absl::UnavailableError(made.message());
    RocksDbStoreOptions now = options;
    now.discard = discard;
    return RocksDbStore::Open(now);
  };
  auto store = open(/*discard=*/false);
  if (store.ok() || absl::IsInvalidArgument(store.status()) ||
      absl::IsAlreadyExists(store.status()) || absl::IsFailedPrecondition(store.status())) {
    return store;
  }
  spdlog::error("l3: {} cannot be used; going on without L3, and trying again: {}", config.l3_dir,
                std::string(store.status().message()));
  LateStoreOptions late;
  late.open = [open] { return open(/*discard=*/true); };
  late.capacity_bytes = config.l3_capacity_bytes;
  late.log = options.log;
  return std::make_unique<LateStore>(std::move(late));
}

}  // namespace

std::string RpcSocketPath(const std::string& socket_dir) { return socket_dir + "/embcached.sock"; }

std::string ControlSocketPath(const std::string& socket_dir) {
  return socket_dir + "/control.sock";
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Config& config) {
  if (absl::Status valid = config.Validate(); !valid.ok()) return valid;
  std::unique_ptr<Daemon> daemon(new Daemon(config));
  if (absl::Status opened = daemon->OpenDirectory(); !opened.ok()) return opened;
  if (absl::Status opened = daemon->OpenCache(); !opened.ok()) return opened;
  if (absl::Status opened = daemon->OpenShared(); !opened.ok()) return opened;
  if (absl::Status opened = daemon->OpenSockets(); !opened.ok()) return opened;
  if (absl::Status opened = daemon->OpenHttp(); !opened.ok()) return opened;
  spdlog::info("embcached " EMBCACHE_VERSION " serves {}: L1 {} bytes, L2 {} bytes, L3 {}",
               config.socket_dir, config.l1_capacity_bytes, config.l2_capacity_bytes,
               config.l3_enabled() ? config.l3_dir : "off");
  return daemon;
}

Daemon::Daemon(const Config& config)
    : config_(config),
      epoch_(RandomToken()),
      peers_(MakePeerRules(config)),
      memory_(HostMemoryOptions{.huge_pages = config.huge_pages}) {}

Daemon::~Daemon() { Stop().IgnoreError(); }

absl::Status Daemon::OpenDirectory() {
  absl::StatusOr<SocketAccess> access = MakeSocketAccess(config_);
  if (!access.ok()) return access.status();
  access_ = *access;
  const bool is_there = ::access(config_.socket_dir.c_str(), F_OK) == 0;
  if (absl::Status made = MakeDirectory(config_.socket_dir, kSocketDirMode); !made.ok()) {
    return InContext("--socket-dir", made);
  }
  if (!is_there && access_.group.has_value() &&
      lchown(config_.socket_dir.c_str(), static_cast<uid_t>(-1), *access_.group) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("--socket-group: chown ", config_.socket_dir));
  }
  absl::StatusOr<UniqueFd> lock = LockDirectory(config_.socket_dir);
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status Daemon::CheckHostMemory() const {
  // Segments are reserved one by one, and each is checked then; but to find out at the last one
  // means to have pushed everybody else on the machine aside first.
  const AvailableMemory available = ReadAvailableMemory();
  const uint64_t wanted =
      (device_ == nullptr ? config_.l1_capacity_bytes : 0) + config_.l2_capacity_bytes;
  if (wanted <= available.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      device_ == nullptr ? "--l1-capacity and --l2-capacity ask for " : "--l2-capacity asks for ",
      wanted, " bytes, but only ", available.bytes, " are available (", available.source, ")"));
}

absl::StatusOr<uint64_t> Daemon::FreeBytes(TierId tier) const {
  if (device_ != nullptr && tier == TierId::kL1) return device_->FreeBytes();
  return ReadAvailableMemory().bytes;
}

absl::Status Daemon::OpenCache() {
  auto device = ChooseDevice(config_);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  if (absl::Status fits = CheckHostMemory(); !fits.ok()) return fits;
  TieredCacheDeps deps;
  deps.clock = SystemClock();
  if (device_ == nullptr) {
    copier_ = std::make_unique<HostCopyEngine>("copy", static_cast<int>(config_.copy_threads));
    deps.copier = copier_.get();
    deps.l1_memory = &memory_;
    deps.l2_memory = &memory_;
  } else {
    deps.copier = device_->copier();
    deps.l1_memory = device_->device_memory();
    deps.l2_memory = device_->pinned_memory();
  }
  io_ = std::make_unique<ThreadPoolExecutor>("io", static_cast<int>(config_.io_threads),
                                             kIoQueueLimit);
  if (config_.l3_enabled()) {
    auto store = OpenL3(config_, &put_gate_);
    if (!store.ok()) return InContext("--l3-dir", store.status());
    store_ = *std::move(store);
  }
  deps.executor = io_.get();
  deps.store = store_.get();
  deps.gate = &put_gate_;
  deps.fast_memory = &memory_;
  auto cache = TieredCache::Create(MakeCacheOptions(config_), deps);
  if (!cache.ok()) return cache.status();
  cache_ = *std::move(cache);
  registry_ =
      std::make_unique<SessionRegistry>(MakeSessionLimits(config_), cache_.get(), SystemClock());
  return absl::OkStatus();
}

absl::Status Daemon::OpenShared() {
  if (config_.shared_tier.empty()) return absl::OkStatus();
  SharedTierOptions options;
  absl::StatusOr<RedisAddress> address = ParseRedisAddress(config_.shared_tier);
  if (!address.ok()) return InContext("--shared-tier", address.status());
  options.store.redis = {*std::move(address), config_.shared_user, config_.shared_password_file};
  options.store.name_space = config_.shared_namespace;
  options.store.ttl = config_.shared_ttl;
  options.store.max_value_bytes = config_.shared_max_bytes;
  options.timeout = config_.shared_timeout;
  options.threads = static_cast<int>(config_.shared_threads);
  options.queue_entries = config_.shared_queue_entries;
  options.queue_bytes = config_.shared_queue_bytes;
  if (store_ != nullptr) {
    for (auto& [model, epoch] : store_->ModelEpochs()) {
      if (epoch > 0) options.not_shared.push_back(model);
    }
  }
  shared_ = std::make_unique<SharedTier>(options, cache_.get(), SystemClock());
  spdlog::info("shared tier: {}, namespace {}", config_.shared_tier, config_.shared_namespace);
  return absl::OkStatus();
}

absl::Status Daemon::OpenSockets() {
  history_ = std::make_unique<StatsHistory>(cache_.get(), SystemClock());
  resizer_ = std::make_unique<Resizer>(cache_.get(), &board_,
                                       [this](TierId tier) { return FreeBytes(tier); });
  if (config_.l1_idle_after > absl::ZeroDuration()) {
    idle_ = std::make_unique<IdleShrinker>(
        IdleShrinker::Options{config_.l1_idle_after, config_.l1_idle_capacity_bytes},
        MakeIdleL1(cache_.get(), resizer_.get(), &board_), SystemClock());
  }
  CacheServiceDeps deps;
  deps.cache = cache_.get();
  deps.registry = registry_.get();
  deps.clock = SystemClock();
  deps.epoch = epoch_;
  deps.limits.max_batch = static_cast<uint32_t>(config_.max_batch);
  deps.limits.inline_limit = config_.inline_limit_bytes;
  deps.version = EMBCACHE_VERSION;
  deps.device = device_.get();
  deps.max_watchers = config_.max_watchers;
  deps.claims.ttl = config_.claim_ttl;
  deps.claims.max_wait = config_.max_wait;
  deps.claims.max_claims_per_session = config_.max_claims_per_session;
  deps.claims.max_waiters = config_.max_waiters;
  deps.idle = idle_.get();
  deps.shared = shared_.get();
  cache_service_ = std::make_unique<CacheService>(std::move(deps));
  admin_service_ = std::make_unique<AdminService>(AdminServiceDeps{
      cache_.get(), registry_.get(), [this] { Drain(); },
      [this](absl::string_view model) { cache_service_->EpochAdvanced(model); }, resizer_.get(),
      [this](absl::string_view model) { cache_service_->EpochAdvancing(model); }});
  claim_timer_ = std::thread([service = cache_service_.get()] {
    pthread_setname_np(pthread_self(), "claims");
    service->ExpireClaims();
  });

  RpcServerOptions rpc = MakeRpcOptions();
  rpc.unix_socket = RpcSocketPath(config_.socket_dir);
  rpc.access = access_;
  rpc.peers = peers_;
  auto server = RpcServer::Start(std::move(rpc), cache_service_.get(), admin_service_.get());
  if (!server.ok()) return server.status();
  rpc_ = *std::move(server);
  if (absl::Status opened = OpenTcp(); !opened.ok()) return opened;

  ControlSocketOptions control;
  control.path = ControlSocketPath(config_.socket_dir);
  control.access = access_;
  control.peers = peers_;
  control.board = &board_;
  if (device_ != nullptr) control.device_uuid = device_->uuid();
  auto socket = ControlSocket::Start(
      std::move(control), registry_.get(), [this] { return MakeWelcome(); }, [this] { Tick(); });
  if (!socket.ok()) return socket.status();
  control_ = *std::move(socket);

  // A Drain that came while we were starting found no server to tell, or was overtaken by this.
  serving_ = true;
  SetServing(true);
  if (draining_) SetServing(false);
  if (device_ != nullptr) {
    SetDeviceServing(true);
    device_->OnLost(
        [this, cache = cache_.get()](const absl::Status& why) { DeviceLost(cache, why); });
  }
  return absl::OkStatus();
}

// Runs inside a copy of the cache's, which therefore lives, even while Stop destroys it.
void Daemon::DeviceLost(TieredCache* cache, const absl::Status& why) {
  cache->LoseTier(TierId::kL1);
  {
    absl::MutexLock lock(&device_mu_);
    if (serving_) SetDeviceServing(false);
  }
  spdlog::error("{}; its entries are gone, L2 and L3 serve on; restart embcached to use it again",
                std::string(why.message()));
}

absl::Status Daemon::OpenHttp() {
  absl::StatusOr<HttpAddress> address = ParseHttpAddress(config_.http_address, config_.socket_dir);
  if (!address.ok()) return InContext("--http-address", address.status());
  if (address->kind == HttpAddress::Kind::kOff) return absl::OkStatus();
  const bool local = address->kind == HttpAddress::Kind::kUnix || address->loopback();
  OperatorPages::Deps deps;
  deps.service = cache_service_.get();
  deps.admin = admin_service_.get();
  deps.cache = cache_.get();
  deps.history = history_.get();
  deps.shared = shared_.get();
  deps.rpc = rpc_.get();
  deps.tcp_rpc = tcp_rpc_.get();
  deps.clock = SystemClock();
  deps.caller = local ? Caller::kLocal : Caller::kNetwork;
  pages_ = std::make_unique<OperatorPages>(deps);
  HttpOptions options;
  options.address = *std::move(address);
  options.access = access_;
  options.peers = peers_;
  auto endpoint = HttpEndpoint::Start(
      options, [pages = pages_.get()](absl::string_view path) { return pages->Answer(path); });
  if (!endpoint.ok()) return InContext("--http-address", endpoint.status());
  http_ = *std::move(endpoint);
  spdlog::info("metrics and status page on {}", http_->address().ToString());
  return absl::OkStatus();
}

RpcServerOptions Daemon::MakeRpcOptions() const {
  RpcServerOptions rpc;
  rpc.connections = {config_.max_connections, config_.max_connections_per_uid};
  rpc.answers = {config_.max_unread_bytes, config_.max_unread_bytes_per_connection};
  rpc.max_in_flight = static_cast<int>(config_.max_calls_in_flight);
  rpc.threads = static_cast<int>(config_.rpc_threads);
  rpc.max_message_bytes =
      std::max(rpc.max_message_bytes, config_.inline_limit_bytes + kMessageOverheadBytes);
  return rpc;
}

absl::Status Daemon::OpenTcp() {
  if (config_.tcp_address.empty()) return absl::OkStatus();
  RpcServerOptions tcp = MakeRpcOptions();
  tcp.tcp_address = config_.tcp_address;
  tcp.tls = {config_.tls_cert, config_.tls_key, config_.tls_client_ca};
  tcp.threads = 1;  // for those who look on; the others' threads stay free
  auto server = RpcServer::Start(std::move(tcp), cache_service_.get(), admin_service_.get());
  if (!server.ok()) return InContext("--tcp-address", server.status());
  tcp_rpc_ = *std::move(server);
  spdlog::info("reads over TCP at {}, port {}, {}", config_.tcp_address, tcp_rpc_->tcp_port(),
               config_.insecure_tcp ? "without TLS" : "with TLS");
  return absl::OkStatus();
}

void Daemon::SetServing(bool serving) {
  rpc_->SetServing(serving);
  if (tcp_rpc_ != nullptr) tcp_rpc_->SetServing(serving);
}

void Daemon::SetDeviceServing(bool serving) {
  rpc_->SetDeviceServing(serving);
  if (tcp_rpc_ != nullptr) tcp_rpc_->SetDeviceServing(serving);
}

WelcomeInfo Daemon::MakeWelcome() const {
  WelcomeInfo info;
  info.epoch = epoch_;
  info.segments_version = cache_->segments_version();
  info.segments = cache_->Segments();
  info.version = EMBCACHE_VERSION;
  const SessionLimits limits = MakeSessionLimits(config_);
  info.limits.set_max_batch(static_cast<uint32_t>(config_.max_batch));
  info.limits.set_inline_limit(config_.inline_limit_bytes);
  info.limits.set_max_leases(limits.max_leases);
  info.limits.set_max_pinned_bytes(limits.max_pinned_bytes);
  // While L1 is shrunk for want of use this is what it will take: a client asks once.
  const uint64_t comes_back =
      idle_ == nullptr ? 0
                       : std::min(cache_->segment_bytes(TierId::kL1), idle_->given_back_bytes());
  info.limits.set_max_entry_bytes(std::max(cache_->max_entry_bytes(), comes_back));
  info.limits.set_reservation_ttl_ms(
      static_cast<uint64_t>(absl::ToInt64Milliseconds(config_.reservation_ttl)));
  info.limits.set_lease_ttl_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(config_.lease_ttl)));
  return info;
}

void Daemon::Drain() {
  if (!draining_.exchange(true)) spdlog::info("draining: nothing new is admitted");
  registry_->Drain();
  cache_service_->Drain();
  cache_->StopFastPath();
  if (serving_) SetServing(false);
}

bool Daemon::drained() const {
  const RegistryStats stats = registry_->GetStats();
  return stats.leases == 0 && stats.reservations == 0;
}

void Daemon::Tick() {
  cache_->Tick();
  history_->Tick();
  if (idle_ != nullptr && !draining_) idle_->Tick();
  absl::AnyInvocable<void()> asked;
  {
    absl::MutexLock lock(&asked_mu_);
    asked_.swap(asked);
  }
  if (asked) asked();
}

void Daemon::AskForSignOfLife(absl::AnyInvocable<void()> answer) {
  // One after the other, and each is stopped before the one that it asks: the control thread, whose
  // round takes the locks of sessions and cache, the pollers of TCP, those of the socket.
  absl::AnyInvocable<void()> ask_socket = [this, answer = std::move(answer)]() mutable {
    rpc_->AskPollers(std::move(answer));
  };
  absl::AnyInvocable<void()> question = [this, ask_socket = std::move(ask_socket)]() mutable {
    if (tcp_rpc_ == nullptr) return ask_socket();
    tcp_rpc_->AskPollers(std::move(ask_socket));
  };
  absl::MutexLock lock(&asked_mu_);
  asked_.swap(question);
}

absl::Status Daemon::FlushL3() {
  absl::Status flushed;
  if (cache_ == nullptr || store_ == nullptr) return flushed;
  absl::Notification done;
  cache_->Flush([&](absl::Status status) {
    flushed = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  return flushed;
}

absl::Status Daemon::Stop() {
  http_.reset();
  pages_.reset();
  if (resizer_ != nullptr) resizer_->Stop();
  if (control_ != nullptr) control_->Stop();
  // Clients may have it mapped until they see that their sessions are over.
  const bool mapped = registry_ != nullptr && registry_->GetStats().device_sessions > 0;
  if (device_ != nullptr && mapped) device_->KeepMemoryUntilExit();
  control_.reset();
  {
    absl::MutexLock lock(&device_mu_);
    serving_ = false;
  }
  std::optional<DeviceGuard> device_guard;
  device_guard.emplace(device_.get(), kDevicePatience, &device_given_up_);
  // First what must not be lost: a client that does not read its answers can hold up the rest.
  absl::Status flushed = FlushL3();
  ExitGuard guard(kStopPatience);
  // Calls that wait for others' claims or nodes are answered now.
  if (cache_service_ != nullptr) cache_service_->Drain();
  if (shared_ != nullptr) shared_->Stop();
  if (claim_timer_.joinable()) claim_timer_.join();
  const absl::Time deadline = absl::Now() + kRpcShutdownTimeout;
  if (tcp_rpc_ != nullptr) tcp_rpc_->Shutdown(deadline);
  if (rpc_ != nullptr) rpc_->Shutdown(deadline);
  tcp_rpc_.reset();
  rpc_.reset();
  flushed.Update(FlushL3());
  admin_service_.reset();
  cache_service_.reset();
  idle_.reset();
  resizer_.reset();
  shared_.reset();
  device_guard.reset();                         // what it gives up, it tells the cache
  if (device_ != nullptr) device_->OnLost({});  // freeing its memory may be what finds out
  device_guard.emplace(device_.get(), kDevicePatience, &device_given_up_);
  registry_.reset();
  history_.reset();
  cache_.reset();
  store_.reset();
  io_.reset();
  copier_.reset();
  device_guard.reset();
  device_.reset();
  lock_.Reset();
  return flushed.ok() ? flushed : InContext("writing to L3 before the end", flushed);
}

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kAlreadyExists:
      return kExitLocked;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      return kExitConfig;
    default:
      return kExitInternal;
  }
}

}  // namespace embcache
