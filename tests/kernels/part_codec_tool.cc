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

PartKind kind_of(const std::string& text) {
  for (const PartKind kind :
       {PartKind::kOnebit, PartKind::kTopk, PartKind::kRandomk, PartKind::kDithering}) {
    if (text == name(kind)) return kind;
  }
  CHECK(false) << text;
  return PartKind::kOnebit;
}

PartCodec codec_of(const std::vector<std::string>& words) {
  const std::string& options = words[3];
  const auto has = [&](const char* option) {
    return options.find(std::string(option) + ',') != std::string::npos;
  };
  PartCodec codec = {
      .kind = kind_of(words[0]),
      .k = std::stod(words[1]),
      .scaling = has("scaling"),
      .natural = has("natural"),
      .l2 = has("l2"),
      .error_feedback = has("ef"),
  };
  if (words[2] != "none") codec.seed = std::stoull(words[2]);
  if (words[4] != "none") codec.momentum = std::stof(words[4]);
  return codec;
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
  const PartCodec codec = codec_of(words);
  const PartPlace place = {Key(std::stoull(words[5])),
                           PartIndex(static_cast<std::uint32_t>(std::stoul(words[6]))),
                           static_cast<std::uint32_t>(std::stoul(words[7]))};
  const std::size_t count = std::stoull(words[8]);
  const char* const flaw = flaw_of_part_codec(codec, count);
  CHECK(flaw == nullptr) << flaw;
  PartState state = first_state(codec, place, count);
  std::vector<std::byte> payload(payload_bytes_max(codec, count));
  std::vector<float> elements(count);
  std::vector<float> decoded(count);
  double learning_rate = 0;
  for (Round round; read(&learning_rate, 1) && read(elements.data(), count); ++round.value) {
    const auto bytes = static_cast<std::uint32_t>(
        encode(codec, state, payload, std::as_bytes(std::span(elements)), round, learning_rate));
    const char* const wrong = decode(codec, std::as_writable_bytes(std::span(decoded)),
                                     std::span(payload).first(bytes), state.drawn);
    CHECK(wrong == nullptr) << wrong;
    write(&bytes, 1);
    write(payload.data(), bytes);
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
