// Codes parts that it reads, for tests/python/test_part_codecs.py: what it writes is compared with the numbers of a
// reference in numpy.
//
//   part_codec_tool KIND K SEED OPTIONS MU KEY PART RANK COUNT
//
// SEED and MU: "none", or a number. OPTIONS: a comma behind each of scaling, natural, l2, ef; or "none". Input: for
// each round a float64 learning rate and COUNT float32. Output: for each round a uint32 length, the payload, and COUNT
// float32 that it was decoded to. Bytes have this machine's order.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/part_coding.h"

namespace byteps {
namespace {

Format kind_of(const std::string& text) {
  for (const Format format :
       {Format::kOnebit, Format::kTopk, Format::kRandomk, Format::kDithering}) {
    if (text == name(format)) return format;
  }
  CHECK(false) << text;
  return Format::kOnebit;
}

PartCoding coding_of(const std::vector<std::string>& words) {
  const std::string& options = words[3];
  const auto has = [&](const char* option) {
    return options.find(std::string(option) + ',') != std::string::npos;
  };
  Codec codec = {
      .k = std::stod(words[1]),
      .scaling = has("scaling"),
      .natural = has("natural"),
      .l2 = has("l2"),
      .error_feedback = has("ef"),
  };
  if (words[2] != "none") codec.seed = std::stoull(words[2]);
  if (words[4] != "none") codec.momentum = std::stof(words[4]);
  return {kind_of(words[0]), codec};
}

template <typename Number>
bool read(Number* numbers, std::size_t count) {
  return std::fread(numbers, sizeof(Number), count, stdin) == count;
}
template <typename Number>
void write(const Number* numbers, std::size_t count) {
  CHECK_EQ(std::fwrite(numbers, sizeof(Number), count, stdout), count);
}

void run(const std::vector<std::string>& words) {
  const PartCoding coding = coding_of(words);
  PartPlace place = {.key = Key(std::stoull(words[5])),
                     .part = PartIndex(static_cast<std::uint32_t>(std::stoul(words[6]))),
                     .round = Round(0),
                     .rank = static_cast<std::uint32_t>(std::stoul(words[7]))};
  const std::size_t count = std::stoull(words[8]);
  const char* const flaw = flaw_of_codec(coding.format, coding.codec);
  CHECK(flaw == nullptr) << flaw;
  std::vector<std::byte> payload(payload_bytes(coding.format, coding.codec, count));
  std::vector<float> elements(count);
  std::vector<float> decoded(count);
  std::vector<float> residual(coding.codec.error_feedback ? count : 0);
  std::vector<float> momentum(coding.codec.momentum ? count : 0);
  const auto length = static_cast<std::uint32_t>(payload.size());
  double rate = 0;
  double rate_before = 0;
  for (; read(&rate, 1) && read(elements.data(), count); ++place.round.value) {
    const bool is_known = rate > 0 && rate_before > 0;
    encode(coding, payload, std::as_bytes(std::span(elements)),
           {.residual = std::as_writable_bytes(std::span(residual)),
            .momentum = std::as_writable_bytes(std::span(momentum)),
            .ratio = is_known ? static_cast<float>(rate_before / rate) : 1},
           place);
    if (rate > 0) rate_before = rate;
    const char* const wrong = flaw_of_payload(coding, payload, count);
    CHECK(wrong == nullptr) << wrong;
    decode(coding, std::as_writable_bytes(std::span(decoded)), payload, place);
    write(&length, 1);
    write(payload.data(), payload.size());
    write(decoded.data(), count);
  }
}

}  // namespace
}  // namespace byteps

int main(int argument_count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + argument_count);
  if (words.size() != 9) return EXIT_FAILURE;
  byteps::run(words);
  return EXIT_SUCCESS;
}
