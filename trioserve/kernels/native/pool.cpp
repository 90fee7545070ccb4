#include "pool.h"

#include <sched.h>
#include <xmmintrin.h>

namespace trioserve {
namespace {

constexpr int kPieceBits = 20;
constexpr std::uint64_t kPieceMask = (1u << kPieceBits) - 1;
constexpr std::uint64_t kJobMask = (1u << 24) - 1;

std::uint64_t make_ticket(std::uint64_t job, std::uint64_t n) {
  return (job & kJobMask) << (2 * kPieceBits) | n << kPieceBits;
}
std::uint64_t job_of(std::uint64_t ticket) { return ticket >> (2 * kPieceBits); }
int count_of(std::uint64_t ticket) {
  return static_cast<int>(ticket >> kPieceBits & kPieceMask);
}
int next_of(std::uint64_t ticket) { return static_cast<int>(ticket & kPieceMask); }

// Waits a moment. A thread that has waited for long gives up its core, because the thread
// that it waits for may need that core.
class Spin {
 public:
  void wait() {
    if (++turns_ < kTurns) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }

 private:
  // About 20 microseconds, longer than the serial parts between two regions.
  static constexpr int kTurns = 500;
  int turns_ = 0;
};

}  // namespace

Pool::Pool(int num_threads) {
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { work(thread); });
  }
}

Pool::~Pool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::wake() {
  {
    std::lock_guard lock(mutex_);
    awake_.store(true, std::memory_order_relaxed);
  }
  changed_.notify_all();
}

void Pool::rest() {
  std::lock_guard lock(mutex_);
  awake_.store(false, std::memory_order_relaxed);
}

void Pool::run_job(Job job, int n) {
  std::uint64_t number = job_of(ticket_.load(std::memory_order_relaxed)) + 1;
  // Invariant: nobody holds a piece of the job before the last one, whose place this is.
  jobs_[number & 1] = job;
  num_done_[number & 1].store(0, std::memory_order_relaxed);
  ticket_.store(make_ticket(number, static_cast<std::uint64_t>(n)), std::memory_order_release);
  while (take_piece(0)) {
  }
  for (Spin spin; num_done_[number & 1].load(std::memory_order_acquire) < n;) spin.wait();
}

bool Pool::take_piece(int thread) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  // One at a time, and never beyond the last: the count must not run into its neighbour.
  do {
    if (next_of(ticket) >= count_of(ticket)) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  std::uint64_t number = job_of(ticket);
  // Invariant: the job does not end, and its place is not used again, before this piece is
  // done.
  Job job = jobs_[number & 1];
  job.call(job.object, next_of(ticket), thread);
  num_done_[number & 1].fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void Pool::work(int thread) {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] {
        return stopping_ || awake_.load(std::memory_order_relaxed);
      });
      if (stopping_) return;
    }
    TileScope tiles;
    Spin spin;
    while (awake_.load(std::memory_order_relaxed)) {
      if (take_piece(thread)) {
        spin = Spin();
      } else {
        spin.wait();
      }
    }
  }
}

}  // namespace trioserve
