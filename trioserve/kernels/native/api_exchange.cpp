// Functions that Python calls: exchanges of processes.
#include <algorithm>

#include "exchange.h"

using namespace trioserve;

#pragma GCC visibility push(default)
extern "C" {

// Replaces numbers by the sum of those of all processes, added in the order of the
// processes: all get the same bits. Returns 0 if a process is late.
std::int32_t trioserve_sum_shared(ExchangeSpec* spec, float* numbers, std::int64_t count) {
  Exchange exchange(*spec);
  const std::int64_t most = spec->place_bytes / static_cast<std::int64_t>(sizeof(float));
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const std::int64_t size = std::min(most, count - begin);
    float* to = numbers + begin;
    if (!exchange.run(to, size * static_cast<std::int64_t>(sizeof(float)))) return 0;
    std::memcpy(to, exchange.place(0), static_cast<std::size_t>(size) * sizeof(float));
    for (int other = 1; other < spec->count; ++other) {
      const float* from = reinterpret_cast<const float*>(exchange.place(other));
      for (std::int64_t i = 0; i < size; ++i) to[i] += from[i];
    }
  }
  return 1;
}

// Gathers `size` bytes of each process into `to`, (processes, size). Returns 0 if a process
// is late.
std::int32_t trioserve_gather_shared(ExchangeSpec* spec, const std::uint8_t* bytes,
                                     std::int64_t size, std::uint8_t* to) {
  Exchange exchange(*spec);
  for (std::int64_t begin = 0; begin < size; begin += spec->place_bytes) {
    const std::int64_t part = std::min(spec->place_bytes, size - begin);
    if (!exchange.run(bytes + begin, part)) return 0;
    for (int i = 0; i < spec->count; ++i) {
      std::memcpy(to + i * size + begin, exchange.place(i), static_cast<std::size_t>(part));
    }
  }
  return 1;
}

}  // extern "C"
#pragma GCC visibility pop
