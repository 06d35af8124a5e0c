// What a shard pays per frame beside the arithmetic: frames through a Shelf, without any network.
//
//   shelf_bench --benchmark_filter=32768
//
// Each iteration sums one round of one tensor: every worker pushes all frames of it, the answers are taken
// and dropped. GB/s (1e9 bytes) and s_per_push count contributions. The payloads come from 256 KiB of
// memory, as from a transport that reads into one buffer; the sums lie in the shelf's memory: a tensor of 1
// MiB stays in the cache, one of 256 MiB does not. `floor` moves and adds the same bytes between the same
// kinds of memory with memcpy for the first contribution and the kernel's addition for the others, and
// nothing else. Tensors of one 64-byte frame show the bookkeeping alone.
#include <algorithm>
#include <cstring>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/buffer.h"
#include "kernels/kernels.h"
#include "net/wire.h"
#include "server/shelf.h"

namespace byteps {
namespace {

constexpr std::size_t kReadBytes = 256 << 10;
constexpr std::uint64_t kPartitionBytes = 4'096'000;

Buffer filled(std::size_t bytes) {
  Buffer buffer(bytes);
  std::memset(buffer.span().data(), 0, bytes);
  return buffer;
}

void report(benchmark::State& state, std::uint64_t pushes, std::uint64_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
  state.counters["s_per_push"] = benchmark::Counter(
      static_cast<double>(pushes), benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

std::shared_ptr<const Placement> placed(std::uint64_t frame_bytes) {
  return std::make_shared<const Placement>(kPartitionBytes, frame_bytes,
                                           std::vector<std::uint32_t>{1});
}

wire::Header push_header(Key key) {
  wire::Header header;
  header.kind = wire::Kind::kPush;
  header.epoch = Epoch(1);
  header.key = key;
  header.tag = 1;
  return header;
}

wire::Declare float32_tensor(std::string name, std::uint64_t bytes) {
  wire::Declare declared;
  declared.name = std::move(name);
  declared.total_bytes = bytes;
  return declared;
}

// Arguments: workers, frame_bytes, tensor_bytes.
void shelf_sum(benchmark::State& state) {
  const auto worker_count = static_cast<std::uint32_t>(state.range(0));
  const auto frame_bytes = static_cast<std::uint64_t>(state.range(1));
  const auto tensor_bytes = static_cast<std::uint64_t>(state.range(2));
  BufferPool pool;
  Shelf shelf({}, pool);
  ShelfOutputs out;
  if (!shelf.begin_epoch({Epoch(1), worker_count, placed(frame_bytes)}).is_ok()) return;
  wire::Header header = push_header(key_of("x"));
  for (WorkerRank worker(0); worker.value < worker_count; ++worker.value) {
    header.worker = worker;
    header.kind = wire::Kind::kDeclare;
    shelf.step(worker, header, wire::encode(float32_tensor("x", tensor_bytes)), 0, out);
  }
  header.kind = wire::Kind::kPush;
  const Buffer received = filled(kReadBytes);
  std::uint64_t pushes = 0;
  TimeNs now = 0;
  for (auto _ : state) {
    for (std::uint64_t at = 0; at < tensor_bytes; at += frame_bytes) {
      header.part = PartIndex(static_cast<std::uint32_t>(at / kPartitionBytes));
      header.offset_bytes = at % kPartitionBytes;
      const std::size_t length = std::min(frame_bytes, tensor_bytes - at);
      for (WorkerRank worker(0); worker.value < worker_count; ++worker.value) {
        header.worker = worker;
        const std::size_t from = pushes++ * frame_bytes % kReadBytes;
        shelf.step(worker, header, received.span().subspan(from, length), now, out);
      }
      out.clear();
      now += 10 * kMicrosecond;
      shelf.tick(now, out);
    }
    ++header.round.value;
  }
  report(state, pushes,
         static_cast<std::uint64_t>(state.iterations()) * worker_count * tensor_bytes);
}

void floor_sum(benchmark::State& state) {
  const auto worker_count = static_cast<std::uint32_t>(state.range(0));
  const auto frame_bytes = static_cast<std::uint64_t>(state.range(1));
  const auto tensor_bytes = static_cast<std::uint64_t>(state.range(2));
  const SumKernels kernels = kernels_for(DType::kFloat32, Operation::kSum, best_kernels());
  const Buffer received = filled(kReadBytes);
  Buffer sums = filled(tensor_bytes);
  std::uint64_t pushes = 0;
  for (auto _ : state) {
    for (std::uint64_t at = 0; at < tensor_bytes; at += frame_bytes) {
      const std::size_t length = std::min(frame_bytes, tensor_bytes - at);
      const std::span sum = sums.span().subspan(at, length);
      for (std::uint32_t worker = 0; worker < worker_count; ++worker) {
        const auto input = received.span().subspan(pushes++ * frame_bytes % kReadBytes, length);
        if (worker == 0) {
          std::memcpy(sum.data(), input.data(), length);
        } else {
          kernels.add(sum, input);
        }
      }
      benchmark::ClobberMemory();
    }
  }
  report(state, pushes,
         static_cast<std::uint64_t>(state.iterations()) * worker_count * tensor_bytes);
}

// Many tensors of one small frame. Arguments: workers, tensors.
void shelf_small_tensors(benchmark::State& state) {
  const auto worker_count = static_cast<std::uint32_t>(state.range(0));
  BufferPool pool;
  Shelf shelf({}, pool);
  ShelfOutputs out;
  if (!shelf.begin_epoch({Epoch(1), worker_count, placed(32 << 10)}).is_ok()) return;
  std::vector<wire::Header> headers;
  for (std::int64_t tensor = 0; tensor < state.range(1); ++tensor) {
    const std::string name = "tensor." + std::to_string(tensor);
    headers.push_back(push_header(key_of(name)));
    wire::Header header = headers.back();
    header.kind = wire::Kind::kDeclare;
    for (; header.worker.value < worker_count; ++header.worker.value) {
      shelf.step(header.worker, header, wire::encode(float32_tensor(name, 64)), 0, out);
    }
  }
  const Buffer received = filled(64);
  std::uint64_t pushes = 0;
  TimeNs now = 0;
  for (auto _ : state) {
    for (wire::Header& header : headers) {
      for (header.worker = WorkerRank(0); header.worker.value < worker_count;
           ++header.worker.value) {
        shelf.step(header.worker, header, received.span(), now, out);
        ++pushes;
      }
      ++header.round.value;
      out.clear();
      now += 100 * worker_count;
      shelf.tick(now, out);
    }
  }
  report(state, pushes, pushes * 64);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"workers", "frame_bytes", "tensor_bytes"});
  for (const std::int64_t tensor_bytes : {1 << 20, 256 << 20}) {
    for (const std::int64_t workers : {2, 8}) bench->Args({workers, 32 << 10, tensor_bytes});
  }
}

BENCHMARK(floor_sum)->Apply(sizes);
BENCHMARK(shelf_sum)->Apply(sizes);
BENCHMARK(shelf_small_tensors)
    ->ArgNames({"workers", "tensors"})
    ->ArgsProduct({{2, 8, 64}, {1, 100, 10'000}});

}  // namespace
}  // namespace byteps

BENCHMARK_MAIN();
