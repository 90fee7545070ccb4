// Exchanges of processes on one machine, over memory that they share.
//
// Each process has two places for what it tells the others, and uses them in turns. It
// writes exchange n + 2 only after all have written n + 1, and so have read n: one wait is
// enough.
//
//     | written, one counter for each process, 64 bytes apart | places [2][processes] |
#pragma once

#include <sched.h>
#include <xmmintrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

namespace trioserve {

// The memory, as one process sees it; Python fills it in.
struct ExchangeSpec {
  std::uint8_t* memory;
  std::int64_t place_bytes;  // a multiple of 64
  std::int64_t num_done;     // exchanges so far
  std::int32_t index, count;
  double timeout_seconds;
};

class Exchange {
 public:
  explicit Exchange(ExchangeSpec& spec) : spec_(spec) {}

  // Tells all processes some bytes, place_bytes at most, and waits for theirs. Returns
  // false if a process is late.
  bool run(const void* bytes, std::int64_t size) {
    ++spec_.num_done;
    std::memcpy(place(spec_.index), bytes, static_cast<std::size_t>(size));
    written(spec_.index).store(spec_.num_done, std::memory_order_release);
    for (int i = 0; i < spec_.count; ++i) {
      if (!wait(written(i))) return false;
    }
    return true;
  }

  // What a process has told in the last exchange.
  std::uint8_t* place(int index) const {
    const std::int64_t turn = spec_.num_done % 2;
    return spec_.memory + spec_.count * kCounterBytes +
           (turn * spec_.count + index) * spec_.place_bytes;
  }

  static constexpr std::int64_t kCounterBytes = 64;

 private:
  std::atomic<std::int64_t>& written(int index) const {
    return *reinterpret_cast<std::atomic<std::int64_t>*>(spec_.memory + index * kCounterBytes);
  }

  // Turns without a system call, about 0.2 ms, in which the core leaves its resources to another
  // thread; and turns that let others run. After those, the wait is long, and nobody should
  // pay for it. The numbers are guesses.
  static constexpr int kSpins = 4000;
  static constexpr int kYields = 2000;

  bool wait(const std::atomic<std::int64_t>& counter) const {
    auto is_late = [&] { return counter.load(std::memory_order_acquire) < spec_.num_done; };
    for (int i = 0; i < kSpins && is_late(); ++i) _mm_pause();
    for (int i = 0; i < kYields && is_late(); ++i) sched_yield();
    if (!is_late()) return true;
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(spec_.timeout_seconds);
    while (is_late()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }

  ExchangeSpec& spec_;
};

}  // namespace trioserve
