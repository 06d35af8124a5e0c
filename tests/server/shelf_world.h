// A Shelf with its pool and output, and short words to speak with it.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/dtype.h"
#include "kernels/half.h"
#include "net/wire.h"
#include "server/shelf.h"

namespace byteps {

using Bytes = std::vector<std::byte>;

// Small whole numbers as elements of a kind, and back. Numbers must be exact in that kind.
template <typename T>
void append_element(Bytes& bytes, T element) {
  const auto raw = std::as_bytes(std::span(&element, 1));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}
inline void append_number(Bytes& bytes, DType dtype, double number) {
  const auto whole = static_cast<std::int64_t>(number);
  switch (dtype) {
    case DType::kFloat32:
      return append_element(bytes, static_cast<float>(number));
    case DType::kFloat64:
      return append_element(bytes, number);
    case DType::kFloat16:
      return append_element(bytes, half_of_float(static_cast<float>(number)));
    case DType::kBfloat16:
      return append_element(bytes, bfloat_of_float(static_cast<float>(number)));
    case DType::kUint8:
    case DType::kInt8:
      return append_element(bytes, static_cast<std::uint8_t>(whole));
    case DType::kInt16:
    case DType::kUint16:
      return append_element(bytes, static_cast<std::uint16_t>(whole));
    case DType::kInt32:
    case DType::kUint32:
      return append_element(bytes, static_cast<std::uint32_t>(whole));
    case DType::kInt64:
    case DType::kUint64:
      return append_element(bytes, whole);
    case DType::kBool:
      return append_element(bytes, static_cast<std::uint8_t>(whole != 0));
  }
}
inline Bytes elements(DType dtype, const std::vector<double>& numbers) {
  Bytes bytes;
  for (const double number : numbers) append_number(bytes, dtype, number);
  return bytes;
}
inline Bytes floats(const std::vector<float>& numbers) {
  Bytes bytes;
  for (const float number : numbers) append_element(bytes, number);
  return bytes;
}
inline Bytes filled(std::size_t bytes, int value) {
  return Bytes(bytes, static_cast<std::byte>(value));
}
inline Bytes bytes_of(std::span<const std::byte> span) {
  return {span.begin(), span.end()};
}

inline wire::Declare declaration(std::string name, DType dtype, std::uint64_t total_bytes,
                                 Operation operation = Operation::kSum, std::uint32_t root = 0) {
  wire::Declare declared;
  declared.name = std::move(name);
  declared.dtype = dtype;
  declared.operation = operation;
  declared.total_bytes = total_bytes;
  declared.root = WorkerRank(root);
  return declared;
}

struct Place {  // which frame
  std::uint32_t part = 0;
  std::uint64_t offset = 0;
};

inline std::shared_ptr<const Placement> placed(std::uint64_t partition_bytes,
                                               std::uint64_t frame_bytes) {
  return std::make_shared<const Placement>(partition_bytes, frame_bytes,
                                           std::vector<std::uint32_t>{1});
}

// What a shelf wants done, each kind in its order.
struct Told {
  std::vector<ShelfOutput::Answer> answers;
  std::vector<ShelfOutput::Forward> forwards;
  std::vector<ShelfOutput::Wanted> wanted;
  std::vector<ShelfOutput::Missing> missing;
  std::vector<ShelfOutput::Spoiled> spoiled;
  std::vector<ShelfOutput::InputsDone> inputs_done;
  std::vector<ShelfOutput::Renew> renewed;
  std::vector<ShelfOutput::Violation> violations;
  std::vector<ShelfOutput::Failure> failures;
  std::vector<ShelfOutput::Ask> given;  // of kGive
  std::vector<ShelfOutput::Ask> again;  // of kAgain
  std::vector<ShelfOutput::ForgottenByAll> forgotten_by_all;
  std::vector<ShelfOutput::Had> had;
  std::vector<ShelfOutput::CrewHas> crew_has;
  std::vector<Key> crews_gone;
  std::vector<ShelfOutput::Settled> settled;
  std::vector<ShelfOutput::Ask> settled_frames;  // of kSettled
  std::vector<ShelfOutput::Absence> absences;
  std::vector<Key> forgotten;
  int inputs_ends = 0;

  bool empty() const {
    return answers.empty() && forwards.empty() && wanted.empty() && missing.empty() &&
           spoiled.empty() && inputs_done.empty() && renewed.empty() && violations.empty() &&
           failures.empty() && forgotten.empty() && given.empty() && again.empty() &&
           settled.empty() && forgotten_by_all.empty() && inputs_ends == 0;
  }
  void clear() { *this = {}; }
  void add(ShelfOutputs&& outputs) {
    const Overloads keep{
        [this](ShelfOutput::Answer& it) { answers.push_back(std::move(it)); },
        [this](ShelfOutput::Forward& it) { forwards.push_back(std::move(it)); },
        [this](ShelfOutput::Wanted& it) { wanted.push_back(it); },
        [this](ShelfOutput::Missing& it) { missing.push_back(std::move(it)); },
        [this](ShelfOutput::Spoiled& it) { spoiled.push_back(std::move(it)); },
        [this](ShelfOutput::InputsDone& it) { inputs_done.push_back(it); },
        [this](ShelfOutput::Renew& it) { renewed.push_back(std::move(it)); },
        [this](ShelfOutput::Violation& it) { violations.push_back(std::move(it)); },
        [this](ShelfOutput::Ask& it) {
          const bool is_settled = it.kind == wire::Kind::kSettled;
          (is_settled                     ? settled_frames
           : it.kind == wire::Kind::kGive ? given
                                          : again)
              .push_back(it);
        },
        [this](ShelfOutput::ForgottenByAll& it) { forgotten_by_all.push_back(it); },
        [this](ShelfOutput::Settled& it) { settled.push_back(it); },
        [this](ShelfOutput::Absence& it) { absences.push_back(std::move(it)); },
        [this](ShelfOutput::InputsEnd&) { ++inputs_ends; },
        [this](ShelfOutput::Forgotten& it) { forgotten.push_back(it.key); },
        [this](ShelfOutput::Had& it) { had.push_back(std::move(it)); },
        [this](ShelfOutput::CrewHas& it) { crew_has.push_back(it); },
        [this](ShelfOutput::CrewGone& it) { crews_gone.push_back(it.key); },
        [this](ShelfOutput::Failure& it) { failures.push_back(std::move(it)); }};
    for (auto& output : outputs) std::visit(keep, output);
  }
};

// Where an answer belongs in its tensor, from the start of that.
inline std::ptrdiff_t place_of(const ShelfOutput::Answer& answer, const Placement& placement,
                               const wire::Declare& tensor) {
  const Placement::Part part =
      placement.part(answer.header.key, tensor.total_bytes, answer.header.part.value);
  return static_cast<std::ptrdiff_t>(part.offset + answer.header.offset_bytes);
}

struct ShelfWorld {
  // `machines`: of the workers, by rank; empty: each has its own.
  explicit ShelfWorld(std::uint32_t worker_count, std::uint64_t partition_bytes = 256,
                      std::uint64_t frame_bytes = 64, ShelfSettings settings = {},
                      const std::vector<std::uint64_t>& machines = {})
      : ShelfWorld(
            {Epoch(7), worker_count, placed(partition_bytes, frame_bytes),
             machines.empty() ? nullptr : std::make_shared<const Groups>(machines), std::nullopt},
            settings) {}
  ShelfWorld(const ShelfEpoch& epoch, const ShelfSettings& settings)
      : shelf(settings, pool), facts(epoch) {
    EXPECT_TRUE(shelf.begin_epoch(facts).is_ok());
    for (std::uint32_t worker = 0; worker < facts.worker_count; ++worker) reconnect(worker);
  }

  void declare(std::uint32_t worker, const wire::Declare& declared) {
    wire::Header header = about(worker, declared.name);
    header.kind = wire::Kind::kDeclare;
    step(worker, header, wire::encode(declared));
  }
  void declare_all(const wire::Declare& declared) {
    for (std::uint32_t worker = 0; worker < facts.worker_count; ++worker) declare(worker, declared);
  }
  void push(std::uint32_t worker, const std::string& name, std::uint32_t round,
            const Bytes& payload, Place place = {}, std::uint8_t flags = 0, std::uint32_t tag = 1) {
    wire::Header header = about(worker, name);
    header.kind = wire::Kind::kPush;
    header.flags = flags;
    header.part = PartIndex(place.part);
    header.round = Round(round);
    header.offset_bytes = place.offset;
    header.tag = tag;
    step(worker, header, payload);
  }
  void forget(std::uint32_t worker, const std::string& name) {
    wire::Header header = about(worker, name);
    header.kind = wire::Kind::kForget;
    step(worker, header, {});
  }
  // As a relay.
  void say_missing(std::uint32_t worker, const std::string& name,
                   const std::vector<std::uint32_t>& ranks) {
    wire::Header header = about(worker, name);
    header.kind = wire::Kind::kMissing;
    step(worker, header, wire::encode(wire::Missing{Members(ranks)}));
  }
  void say_mismatch(std::uint32_t worker, const std::string& name, const std::string& text) {
    wire::Header header = about(worker, name);
    header.kind = wire::Kind::kMismatch;
    step(worker, header,
         wire::encode(wire::Text{text, static_cast<std::uint32_t>(Code::kMismatch)}));
  }
  void no_more_inputs(std::uint32_t worker, std::uint32_t generation = 0) {
    inputs(worker, generation, wire::kNoMore);
  }
  void inputs(std::uint32_t worker, std::uint32_t generation, std::uint8_t flags) {
    wire::Header header = about(worker, "");
    header.kind = wire::Kind::kInputs;
    header.key = Key();
    header.round = Round(generation);
    header.flags = flags;
    step(worker, header, {});
  }
  // Of a shard that took another one's place: the worker has sums of the frames in the bitmap of this round, and
  // perhaps of the others of the one before.
  void have(std::uint32_t worker, const std::string& name, std::uint32_t round, const Bytes& bitmap,
            std::uint8_t flags = 0, std::uint32_t part = 0) {
    wire::Header header = about(worker, name);
    header.kind = wire::Kind::kHave;
    header.flags = flags;
    header.part = PartIndex(part);
    header.round = Round(round);
    step(worker, header, bitmap);
  }
  void told_all(std::uint32_t worker) { have(worker, "", 0, {}, wire::kAll); }
  void disconnect(std::uint32_t worker) {
    ShelfOutputs outputs;
    shelf.disconnect(WorkerRank(worker), outputs);
    out.add(std::move(outputs));
  }
  void reconnect(std::uint32_t worker) {
    ShelfOutputs outputs;
    shelf.connect(WorkerRank(worker), outputs);
    out.add(std::move(outputs));
  }
  void leave(std::uint32_t worker) {
    ShelfOutputs outputs;
    shelf.leave(WorkerRank(worker), outputs);
    out.add(std::move(outputs));
  }
  void lose(std::uint32_t worker) {
    ShelfOutputs outputs;
    shelf.lose(WorkerRank(worker), outputs);
    out.add(std::move(outputs));
  }
  void tick(TimeNs at) {
    now = at;
    ShelfOutputs outputs;
    shelf.tick(now, outputs);
    out.add(std::move(outputs));
  }
  void step(std::uint32_t worker, const wire::Header& header, std::span<const std::byte> payload) {
    ShelfOutputs outputs;
    shelf.step(WorkerRank(worker), header, payload, now, outputs);
    out.add(std::move(outputs));
  }
  wire::Header about(std::uint32_t worker, const std::string& name) const {
    wire::Header header;
    header.epoch = facts.epoch;
    header.key = key_of(name);
    header.worker = WorkerRank(worker);
    return header;
  }
  // What came out since the last call, moved away.
  Told take() { return std::exchange(out, {}); }
  std::vector<std::uint32_t> wanted_workers() {
    std::vector<std::uint32_t> workers;
    for (const auto& wanted : take().wanted) workers.push_back(wanted.worker.value);
    return workers;
  }

  BufferPool pool;
  Shelf shelf;
  Told out;
  ShelfEpoch facts;
  TimeNs now = 0;
};

}  // namespace byteps
