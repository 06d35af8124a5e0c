#include "base/spec.h"

#include <limits>
#include <optional>

#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"

namespace byteps {
namespace {

std::string number(std::uint64_t value) {
  return std::to_string(value);
}

// What is wrong with these numbers, before they are a Spec; empty when nothing is.
std::string flaw_of_numbers(const RawSpec& raw) {
  const auto dtype = dtype_of(raw.dtype & 0xff);
  if (!dtype || raw.dtype >> 8 >= kLogicalTypeCount) {
    return "no dtype has the number " + number(raw.dtype);
  }
  if (!operation_of(raw.operation)) {
    return "no operation has the number " + number(raw.operation);
  }
  if (!format_of(raw.format)) return "no format has the number " + number(raw.format);
  constexpr std::uint64_t kBytesMax = std::numeric_limits<std::ptrdiff_t>::max();
  if (raw.element_count > kBytesMax / element_bytes(*dtype)) {
    return number(raw.element_count) + " elements of " + name(*dtype) +
           " are more than memory can have";
  }
  return {};
}

std::string flaw_of_shape(std::span<const std::uint64_t> dimensions, std::uint64_t element_count) {
  if (dimensions.empty()) return {};
  if (dimensions.size() > kDimensionsMax) {
    return "its shape has " + number(dimensions.size()) + " dimensions; at most " +
           number(kDimensionsMax) + " are allowed";
  }
  const std::optional<std::uint64_t> product = Shape::element_count(dimensions);
  if (!product) return "its shape has more elements than memory can have";
  if (*product == element_count) return {};
  return "its shape " + Shape(dimensions).text(*product) + " has " + number(*product) +
         " elements, but element_count is " + number(element_count);
}

std::string flaw_of_ranks(const RawSpec& raw, WorkerRank self, std::uint32_t worker_count) {
  if (raw.members != nullptr) {
    return flaw_of_members({raw.members, raw.member_count}, self, worker_count);
  }
  return raw.member_count == 0 ? "" : "its members are NULL, but member_count is not 0";
}

}  // namespace

bool Spec::operator==(const Spec& other) const {
  return dtype == other.dtype && logical == other.logical && operation == other.operation &&
         total_bytes == other.total_bytes && shape == other.shape && scale == other.scale &&
         root_only == other.root_only && members == other.members && format == other.format &&
         (format == Format::kPlain || codec == other.codec || PLANTED(codec_not_compared)) &&
         (!has_root() || root == other.root);
}

std::string Spec::text() const {
  std::string text = name(dtype, logical) + ", shape " + shape.text(element_count()) + ", " +
                     number(total_bytes) + " bytes, " + name(operation);
  if (operation == Operation::kBroadcast) text += " from worker " + number(root.value);
  if (root_only) text += " for worker " + number(root.value) + " alone";
  if (scale != 1) text += " times " + number_text(scale);
  if (format != Format::kPlain) text += std::string(", coded as ") + name(format) + codec->text();
  if (!members.is_all()) text += ", of " + workers_text(members.some());
  return text;
}

std::string Spec::flaw(WorkerRank self, std::uint32_t worker_count) const {
  if (total_bytes % element_bytes(dtype) != 0) return "its bytes are no whole number of elements";
  if (!shape.is_flat() && Shape::element_count(shape.dimensions()) != element_count()) {
    return "its shape has another number of elements than its bytes";
  }
  if (operation == Operation::kAverage && dtype == DType::kBool) {
    return "booleans have no average; use sum, which is their logical or";
  }
  if (const char* const flaw = flaw_of_scale(scale, dtype, operation)) return flaw;
  if (const char* const flaw = flaw_of_format(format, dtype, operation)) return flaw;
  if (const char* const flaw = flaw_of_codec(format, *codec)) return flaw;
  if (root_only && operation == Operation::kBroadcast) {
    return "a broadcast is for all, so it cannot be for the root alone";
  }
  if (!members.is_all()) {
    std::string flaw = flaw_of_members(members.some(), self, worker_count);
    if (!flaw.empty()) return flaw;
    if (members.some().size() == worker_count) return "its members are all workers, one by one";
  }
  if (!has_root()) return {};
  if (root.value >= worker_count) {
    return "root " + number(root.value) + " is not a rank of a job of " + number(worker_count);
  }
  return members.has(root) ? "" : "root " + number(root.value) + " is not among its members";
}

Result<Spec> spec_of(const RawSpec& raw, WorkerRank self, std::uint32_t worker_count) {
  const auto refused = [](std::string why) {
    return Status(Code::kInvalidArgument, std::move(why));
  };
  if (std::string flaw = flaw_of_numbers(raw); !flaw.empty()) return refused(std::move(flaw));
  if (std::string flaw = flaw_of_ranks(raw, self, worker_count); !flaw.empty()) {
    return refused(std::move(flaw));
  }
  Spec spec;
  spec.dtype = *dtype_of(raw.dtype & 0xff);
  spec.logical = static_cast<LogicalType>(raw.dtype >> 8);
  spec.operation = *operation_of(raw.operation);
  spec.total_bytes = raw.element_count * element_bytes(spec.dtype);
  spec.root_only = raw.root_only;
  spec.format = *format_of(raw.format);
  spec.codec = raw.codec;
  if (spec.has_root()) spec.root = WorkerRank(raw.root);
  if (raw.scale != 0) spec.scale = raw.scale;
  // All of them, one by one, are no different from all.
  if (raw.members != nullptr && raw.member_count < worker_count) {
    spec.members = Members({raw.members, raw.member_count});
  }
  if (std::string flaw = spec.flaw(self, worker_count); !flaw.empty()) {
    return refused(std::move(flaw));
  }
  if (std::string flaw = flaw_of_shape(raw.shape, raw.element_count); !flaw.empty()) {
    return refused(std::move(flaw));
  }
  spec.shape = Shape(raw.shape);
  return spec;
}

}  // namespace byteps
