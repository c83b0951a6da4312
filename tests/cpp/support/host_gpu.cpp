#include "support/host_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <sstream>
#include <stdexcept>

#include "support/fibers.h"

namespace posenc::test {
namespace {

constexpr size_t kMostFailures = 8;     // told in full
constexpr int64_t kSharedGuard = 4096;  // bytes behind the shared memory that must stay as they are
constexpr unsigned char kPoison = 0xFF;  // a NaN in every dtype

/// Who touched an element last, and between which barriers.
struct Access {
  uint32_t launch = 0;
  int64_t block = -1;
  int thread = -1;  // −1: several threads of the block
  uint32_t block_epoch = 0, warp_epoch = 0;
};

struct Cell {
  int32_t writes = 0;
  Access write, read;
  bool read_by_blocks = false;
};

struct Copy {
  char* to;
  char bytes[16];
};

struct Stopped : std::exception {};

}  // namespace

struct HostGpu::Region {
  uint64_t begin = 0, end = 0;
  size_t size = 1;
  std::string name;
  bool is_writable = false;
  ReadBytes value;  // a virtual tensor's
  std::vector<Cell> cells;
  std::map<int64_t, Cell> sparse_cells;
  std::map<int64_t, std::vector<char>> sparse_bytes;

  Cell& cell(int64_t index) { return value ? sparse_cells[index] : cells[index]; }
  ~Region() {
    if (value) {
      munmap(reinterpret_cast<void*>(begin), end - begin);
    }
  }
};

struct HostGpu::Block {
  enum State { kReady, kWaiting, kDone };
  struct Thread {
    HostContext context;
    State state = kReady;
    Wait kind = Wait::kBlock;
    std::source_location where;
    uint32_t block_epoch = 0, warp_epoch = 0;
    uint32_t gathers = 0;
    std::deque<std::vector<Copy>> groups;  ///< the last one is open
  };
  Fibers fibers;
  std::vector<Thread> threads;
  std::vector<char> shared;
  std::vector<char> slots;
  int64_t shared_bytes = 0;
  int64_t number = 0;
  bool stopped = false;
  bool late_copies = false;
};

HostGpu::HostGpu() : block_(std::make_unique<Block>()) {}
HostGpu::~HostGpu() = default;

// --- tensors

void HostGpu::add_region(uint64_t begin, int64_t n, size_t size, const char* name, bool is_writable,
                         ReadBytes value) {
  auto region = std::make_unique<Region>();
  region->begin = begin;
  region->end = begin + static_cast<uint64_t>(n) * size;
  region->size = size;
  region->name = name;
  region->is_writable = is_writable;
  region->value = std::move(value);
  if (is_writable && !region->value) {
    region->cells.resize(static_cast<size_t>(n));
  }
  regions_.push_back(std::move(region));
}

uint64_t HostGpu::reserve(int64_t n, size_t size, const char* name, bool is_writable,
                          ReadBytes value) {
  void* base = mmap(nullptr, static_cast<size_t>(n) * size, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw std::runtime_error("host_gpu: no addresses for a virtual tensor");
  }
  add_region(reinterpret_cast<uint64_t>(base), n, size, name, is_writable, std::move(value));
  return reinterpret_cast<uint64_t>(base);
}

std::map<int64_t, std::vector<char>> HostGpu::written_bytes(uint64_t base) const {
  for (const auto& region : regions_) {
    if (region->begin == base && region->value) {
      return region->sparse_bytes;
    }
  }
  throw std::runtime_error("host_gpu: no virtual tensor at this address");
}

HostGpu::Region* HostGpu::find(uint64_t address, size_t bytes) {
  const auto holds = [&](const Region* r) {
    return r->begin <= address && address + bytes <= r->end;
  };
  if (last_ && holds(last_)) {
    return last_;
  }
  for (const auto& region : regions_) {
    if (holds(region.get())) {
      return last_ = region.get();
    }
  }
  return nullptr;
}

// --- accesses

namespace {

/// True where `access` is ordered before what `now` does.
bool ordered(const Access& access, const Access& now) {
  if (access.launch != now.launch || access.launch == 0) {
    return true;
  }
  if (access.block != now.block) {
    return false;
  }
  if (access.thread == now.thread || access.block_epoch < now.block_epoch) {
    return true;
  }
  return access.thread >= 0 && access.thread / 32 == now.thread / 32 &&
         access.warp_epoch < now.warp_epoch;
}

std::string place(const std::string& name, uint64_t begin, uint64_t address, size_t size) {
  std::ostringstream out;
  out << name << " + " << static_cast<int64_t>(address - begin) / static_cast<int64_t>(size);
  return out.str();
}

}  // namespace

void HostGpu::load_bytes(const HostContext& thread, uint64_t address, size_t bytes, void* out) {
  ++accesses_;
  wide_ += bytes == 16;
  std::memset(out, kPoison, bytes);
  if (address % bytes != 0) {
    fail(&thread, "load of " + std::to_string(bytes) + " bytes at an address that is no multiple");
    return;
  }
  Region* region = find(address, bytes);
  if (!region || (address - region->begin) % region->size != 0 || bytes % region->size != 0) {
    std::string near = "none of them";
    uint64_t least = 1 << 20;
    for (const auto& r : regions_) {
      const uint64_t distance = address < r->begin ? r->begin - address
                                : address > r->end ? address - r->end
                                                   : 0;
      if (distance < least) {
        least = distance;
        near = place(r->name, r->begin, address, r->size);
      }
    }
    fail(&thread, "load of " + std::to_string(bytes) + " bytes outside of the tensors, at " + near);
    return;
  }
  const auto first = static_cast<int64_t>((address - region->begin) / region->size);
  const auto count = static_cast<int64_t>(bytes / region->size);
  if (!region->value) {
    std::memcpy(out, reinterpret_cast<const void*>(address), bytes);
  }
  const Block::Thread& state = block_->threads[thread.thread_];
  const Access now{launch_, block_->number, thread.thread_, state.block_epoch, state.warp_epoch};
  for (int64_t i = first; i < first + count; ++i) {
    if (region->value) {
      char* element = static_cast<char*>(out) + (i - first) * region->size;
      const auto kept = region->sparse_bytes.find(i);
      if (kept != region->sparse_bytes.end()) {
        std::memcpy(element, kept->second.data(), region->size);
      } else {
        region->value(i, element);
      }
    }
    if (!region->is_writable) {
      continue;
    }
    Cell& cell = region->cell(i);
    if (!ordered(cell.write, now)) {
      fail(&thread, "load of " + place(region->name, region->begin, address, region->size) +
                        ", which another thread has written");
    }
    const bool same_block = cell.read.launch == launch_ && cell.read.block == now.block;
    cell.read_by_blocks = cell.read.launch == launch_ && (cell.read_by_blocks || !same_block);
    const bool several =
        same_block && cell.read.thread != now.thread && cell.read.block_epoch == now.block_epoch;
    cell.read = now;
    if (several) {
      cell.read.thread = -1;
    }
  }
}

void HostGpu::store_bytes(const HostContext& thread, uint64_t address, size_t bytes,
                          const void* from) {
  ++accesses_;
  wide_ += bytes == 16;
  if (address % bytes != 0) {
    fail(&thread, "store of " + std::to_string(bytes) + " bytes at an address that is no multiple");
    return;
  }
  Region* region = find(address, bytes);
  if (!region || (address - region->begin) % region->size != 0 || bytes % region->size != 0) {
    fail(&thread, "store of " + std::to_string(bytes) + " bytes outside of the tensors");
    return;
  }
  const std::string where = place(region->name, region->begin, address, region->size);
  if (!region->is_writable) {
    fail(&thread, "store to " + where + ", which is to be read only");
    return;
  }
  const auto first = static_cast<int64_t>((address - region->begin) / region->size);
  const auto count = static_cast<int64_t>(bytes / region->size);
  if (!region->value) {
    std::memcpy(reinterpret_cast<void*>(address), from, bytes);
  }
  const Block::Thread& state = block_->threads[thread.thread_];
  const Access now{launch_, block_->number, thread.thread_, state.block_epoch, state.warp_epoch};
  for (int64_t i = first; i < first + count; ++i) {
    if (region->value) {
      const char* element = static_cast<const char*>(from) + (i - first) * region->size;
      region->sparse_bytes[i].assign(element, element + region->size);
    }
    Cell& cell = region->cell(i);
    if (!ordered(cell.write, now)) {
      fail(&thread, "store to " + where + ", which another thread has written");
    }
    if (!ordered(cell.read, now) || (cell.read.launch == launch_ && cell.read_by_blocks)) {
      fail(&thread, "store to " + where + ", which another thread reads");
    }
    ++cell.writes;
    cell.write = now;
  }
}

void HostGpu::expect_counts(uint64_t base, int64_t n, const std::function<int(int64_t)>& times) {
  Region* region = nullptr;
  for (const auto& r : regions_) {
    if (r->begin <= base && base < std::max(r->end, r->begin + 1) && r->is_writable) {
      region = r.get();
    }
  }
  if (!region) {
    throw std::runtime_error("host_gpu: no writable tensor at this address");
  }
  const auto first = static_cast<int64_t>((base - region->begin) / region->size);
  for (int64_t i = 0; i < n; ++i) {
    const int writes =
        region->value
            ? (region->sparse_cells.count(first + i) ? region->sparse_cells[first + i].writes : 0)
            : region->cells[first + i].writes;
    if (writes != times(i)) {
      fail(nullptr, region->name + " + " + std::to_string(first + i) + " was written " +
                        std::to_string(writes) + " times, expected " + std::to_string(times(i)));
    }
  }
}

// --- threads

char* HostGpu::shared_memory(const HostContext& thread, int64_t offset, size_t bytes) {
  if (offset < 0 || offset + static_cast<int64_t>(bytes) > block_->shared_bytes) {
    stop(thread, "shared memory at byte " + std::to_string(offset) + " of " +
                     std::to_string(block_->shared_bytes));
  }
  return block_->shared.data() + offset;
}

char* HostGpu::warp_slots(const HostContext& thread) {
  const uint32_t turn = block_->threads[thread.thread_].gathers++ & 1;
  return block_->slots.data() + (thread.warp() * 2 + turn) * 32 * kLaneBytes;
}

void HostGpu::start_copy(const HostContext& thread, void* to, const void* from) {
  auto* const place = static_cast<char*>(to);
  const int64_t offset = place - block_->shared.data();
  if (shared_memory(thread, offset, sizeof(Copy::bytes)) != place || offset % 16 != 0) {
    stop(thread, "an asynchronous copy to byte " + std::to_string(offset) + " of shared memory");
  }
  Copy copy{place, {}};
  load_bytes(thread, reinterpret_cast<uint64_t>(from), sizeof(copy.bytes), copy.bytes);
  if (!block_->late_copies) {
    std::memcpy(copy.to, copy.bytes, sizeof(copy.bytes));
  }
  auto& groups = block_->threads[thread.thread_].groups;
  if (groups.empty()) {
    groups.emplace_back();
  }
  groups.back().push_back(copy);
}

void HostGpu::commit_copies(const HostContext& thread) {
  auto& groups = block_->threads[thread.thread_].groups;
  if (groups.empty()) {
    groups.emplace_back();
  }
  groups.emplace_back();
}

void HostGpu::finish_copies(const HostContext& thread, size_t pending) {
  auto& groups = block_->threads[thread.thread_].groups;
  while (groups.size() > pending + 1) {
    for (const Copy& copy : groups.front()) {
      if (block_->late_copies) {
        std::memcpy(copy.to, copy.bytes, sizeof(copy.bytes));
      }
    }
    groups.pop_front();
  }
}

void HostContext::copy_async(void* to, const void* from) const {
  gpu_->start_copy(*this, to, from);
}

void HostContext::commit_copies() const { gpu_->commit_copies(*this); }

void HostGpu::wait(const HostContext& thread, Wait kind, const std::source_location& where) {
  Block::Thread& state = block_->threads[thread.thread_];
  state.state = Block::kWaiting;
  state.kind = kind;
  state.where = where;
  block_->fibers.yield();
}

void HostContext::sync(std::source_location where) const {
  gpu_->wait(*this, HostGpu::Wait::kBlock, where);
}

void HostContext::sync_warp(std::source_location where) const {
  gpu_->wait(*this, HostGpu::Wait::kWarp, where);
}

void HostContext::require(bool condition, const char* text) const {
  if (!condition) {
    gpu_->stop(*this, std::string("required: ") + text);
  }
}

void HostGpu::fail(const HostContext* thread, const std::string& text) {
  if (++failed_ <= static_cast<int64_t>(kMostFailures)) {
    std::ostringstream out;
    if (thread) {
      out << "block (" << thread->block(0) << ", " << thread->block(1) << ", " << thread->block(2)
          << ") thread " << thread->thread() << ": ";
    }
    failures_.push_back(out.str() + text);
  }
}

void HostGpu::stop(const HostContext& thread, const std::string& text) {
  fail(&thread, text);
  block_->stopped = true;
  throw Stopped();
}

std::string HostGpu::report() {
  std::string text;
  for (const std::string& failure : failures_) {
    text += failure + "\n";
  }
  if (failed_ > static_cast<int64_t>(kMostFailures)) {
    text += "and " + std::to_string(failed_ - static_cast<int64_t>(kMostFailures)) + " more\n";
  }
  failures_.clear();
  failed_ = 0;
  return text;
}

void HostGpu::run_blocks(const core::GridShape& grid, std::vector<int64_t> blocks,
                         std::function<void(const HostContext&)> body, Order order) {
  if (grid.threads <= 0 || grid.threads > 1024 || grid.threads % 32 != 0) {
    fail(nullptr, "a block of " + std::to_string(grid.threads) + " threads");
    return;
  }
  if (grid.x > core::kMaxGridX || grid.y > core::kMaxGridYZ || grid.z > core::kMaxGridYZ) {
    fail(nullptr, "a grid of more blocks than CUDA takes");
    return;
  }
  ++launch_;
  if (blocks.empty()) {
    for (int64_t i = 0; i < grid.x * grid.y * grid.z; ++i) {
      blocks.push_back(i);
    }
  }
  if (order == kBackwards) {
    std::reverse(blocks.begin(), blocks.end());
  }
  Block& block = *block_;
  block.late_copies = order == kBackwards;
  block.shared_bytes = grid.shared_bytes;
  block.slots.resize(static_cast<size_t>(grid.threads) * 2 * kLaneBytes);
  for (const int64_t number : blocks) {
    block.number = number;
    block.stopped = false;
    block.shared.assign(static_cast<size_t>(grid.shared_bytes + kSharedGuard),
                        static_cast<char>(kPoison));
    block.threads.assign(grid.threads, Block::Thread());
    for (int t = 0; t < grid.threads; ++t) {
      HostContext& context = block.threads[t].context;
      context.gpu_ = this;
      context.grid_ = &grid;
      context.thread_ = t;
      context.block_[0] = static_cast<int>(number % grid.x);
      context.block_[1] = static_cast<int>(number / grid.x % grid.y);
      context.block_[2] = static_cast<int>(number / grid.x / grid.y);
    }
    block.fibers.reset(grid.threads, [&](int t) {
      try {
        body(block.threads[t].context);
      } catch (const Stopped&) {
      } catch (const std::exception& error) {
        fail(&block.threads[t].context, error.what());
        block.stopped = true;
      }
      block.threads[t].state = Block::kDone;
    });
    run_block(block, order);
    const auto guard = block.shared.begin() + grid.shared_bytes;
    if (std::any_of(guard, block.shared.end(),
                    [](char c) { return c != static_cast<char>(kPoison); })) {
      fail(&block.threads[0].context, "a store past the end of shared memory");
    }
    if (block.stopped) {
      return;
    }
  }
}

void HostGpu::run_block(Block& block, Order order) {
  const int n = static_cast<int>(block.threads.size());
  const auto same = [](const Block::Thread& a, const Block::Thread& b) {
    return a.state == b.state && a.kind == b.kind && a.where.line() == b.where.line() &&
           a.where.column() == b.where.column() &&
           std::strcmp(a.where.file_name(), b.where.file_name()) == 0;
  };
  while (true) {
    for (int i = 0; i < n; ++i) {
      const int t = order == kForwards ? i : n - 1 - i;
      if (block.threads[t].state == Block::kReady) {
        block.fibers.resume(t);
        if (block.stopped) {
          return;
        }
      }
    }
    // Now every thread waits or is done. Warps whose lanes all wait for one another go on.
    bool released = false;
    for (int first = 0; first < n; first += 32) {
      const auto begin = block.threads.begin() + first, end = begin + 32;
      const auto waits_for_warp = [](const Block::Thread& thread) {
        return thread.state == Block::kWaiting && thread.kind != Wait::kBlock;
      };
      const auto waiting = std::find_if(begin, end, waits_for_warp);
      if (waiting == end) {
        continue;
      }
      for (auto thread = begin; thread != end; ++thread) {
        if (!same(*thread, *waiting)) {
          fail(&thread->context, "misses the warp's operation at line " +
                                     std::to_string(waiting->where.line()) + " of " +
                                     waiting->where.file_name());
          return;
        }
      }
      for (auto thread = begin; thread != end; ++thread) {
        thread->warp_epoch += thread->kind == Wait::kWarp;
        thread->state = Block::kReady;
      }
      released = true;
    }
    if (released) {
      continue;
    }
    const auto waiting =
        std::find_if(block.threads.begin(), block.threads.end(),
                     [](const Block::Thread& thread) { return thread.state != Block::kDone; });
    if (waiting == block.threads.end()) {
      for (const Block::Thread& thread : block.threads) {
        for (const auto& group : thread.groups) {
          if (!group.empty()) {
            fail(&thread.context, "ends before its copies to shared memory are there");
            return;
          }
        }
      }
      return;
    }
    for (Block::Thread& thread : block.threads) {
      if (!same(thread, *waiting)) {
        fail(&thread.context, "misses the block's barrier at line " +
                                  std::to_string(waiting->where.line()) + " of " +
                                  waiting->where.file_name());
        return;
      }
    }
    for (Block::Thread& thread : block.threads) {
      ++thread.block_epoch;
      thread.state = Block::kReady;
    }
  }
}

}  // namespace posenc::test
