#include "base/phrases.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace byteps {
namespace {

// Bytes of the well-formed UTF-8 character that `text` begins with (Unicode, table 3-7); 0: there is none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
  };
  const auto follows = [&](std::size_t at) { return (byte(at) & 0xc0U) == 0x80U; };
  const unsigned first = byte(0);
  const unsigned second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xc2 || !follows(1)) return 0;
  if (first < 0xe0) return 2;
  if (!follows(2)) return 0;
  if (first < 0xf0) {
    const bool overlong = first == 0xe0 && second < 0xa0;
    const bool surrogate = first == 0xed && second >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  const bool overlong = first == 0xf0 && second < 0x90;
  const bool too_large = first > 0xf4 || (first == 0xf4 && second >= 0x90);
  return !follows(3) || overlong || too_large ? 0 : 4;
}

// U+0000 to U+001F, U+007F, and U+0080 to U+009F, which some terminals obey too.
bool is_control(std::string_view character) {
  const auto last = static_cast<unsigned char>(character.back());
  return character.size() == 1 ? last < 0x20 || last == 0x7f
                               : character[0] == '\xc2' && character.size() == 2 && last < 0xa0;
}

}  // namespace

std::string duration_text(TimeNs duration_ns) {
  const TimeNs ms = duration_ns / kMillisecond;
  if (ms < 1000) return std::to_string(ms) + " ms";
  if (ms < 10'000 && ms % 1000 >= 100) {
    return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
  }
  if (ms >= 600'000) return std::to_string(ms / 60'000) + " min";
  return std::to_string(ms / 1000) + " s";
}

std::string number_list(const std::vector<std::uint32_t>& ascending) {
  std::vector<std::string> pieces;
  for (std::size_t first = 0; first < ascending.size();) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (last - first >= 2) {
      pieces.push_back(std::to_string(ascending[first]) + "-" + std::to_string(ascending[last]));
    } else {
      for (std::size_t i = first; i <= last; ++i) pieces.push_back(std::to_string(ascending[i]));
    }
    first = last + 1;
  }
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) text += i + 1 == pieces.size() ? " and " : ", ";
    text += pieces[i];
  }
  return text;
}

std::string workers_text(const std::vector<std::uint32_t>& ascending) {
  return (ascending.size() > 1 ? "workers " : "worker ") + number_list(ascending);
}

std::string number_text(double number) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  return {digits.data(), end};
}

std::string missing_ranks(std::string_view noun, const std::vector<std::uint32_t>& ascending,
                          std::uint32_t of) {
  return std::string(noun) + (ascending.size() > 1 ? "s " : " ") + number_list(ascending) + " of " +
         std::to_string(of);
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  const bool cut = text.size() > bytes_max;
  if (cut) {
    std::size_t end = bytes_max > 3 ? bytes_max - 3 : 0;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end);
  }
  std::string clean;
  clean.reserve(text.size() + 3);
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, bytes));
    if (bytes == 0 || is_control(character)) {
      clean += '?';
    } else {
      clean += character;
    }
    text.remove_prefix(character.size());
  }
  return cut ? clean + "..." : clean;
}

}  // namespace byteps
