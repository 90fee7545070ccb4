// The threads of one engine, which share the work of its kernels.
//
//     caller   run(n, piece)  --- publishes pieces 0 to n-1 --->  workers
//              takes pieces too                                   take pieces
//              waits until all n are done
//
// Pieces are handed out one at a time, so a thread that does not run (because another
// program has its core) delays nobody, unless it holds a piece. Workers spin between the
// regions of a step, because regions follow each other within microseconds, and sleep
// between steps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "tile_scope.h"

namespace trioserve {

class Pool {
 public:
  // Starts num_threads - 1 workers; the caller of `run` is the last thread.
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Wakes the workers, and lets them sleep again at the end of the scope.
  class Step {
   public:
    explicit Step(Pool& pool) : pool_(pool) { pool_.wake(); }
    ~Step() { pool_.rest(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    TileScope tiles_;
    Pool& pool_;
  };

  // Calls piece(i, thread) for each i in [0, n), in several threads; `thread` is below
  // num_threads, and no two calls at the same time have the same. Returns when all calls
  // have returned. One thread at a time may call it, within a Step.
  template <class Piece>
  void run(int n, Piece&& piece) {
    using Type = std::remove_reference_t<Piece>;
    if (n == 1) {
      piece(0, 0);
      return;
    }
    run_job({[](void* object, int i, int thread) { (*static_cast<Type*>(object))(i, thread); },
             const_cast<std::remove_const_t<Type>*>(&piece)},
            n);
  }

 private:
  struct Job {
    void (*call)(void*, int, int);
    void* object;
  };

  void wake();
  void rest();
  void run_job(Job job, int n);
  bool take_piece(int thread);
  void work(int thread);

  // The present job and its next piece, in one number, so that a thread takes a piece of
  // the job that it read:
  //     | number of the job, 24 bits | number of pieces, 20 | next piece, 20 |
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<int> num_done_[2] = {{0}, {0}};
  // Jobs take turns between two places: a thread may still look at the last one.
  Job jobs_[2] = {};
  alignas(64) std::atomic<bool> awake_{false};
  bool stopping_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread> workers_;
};

}  // namespace trioserve
