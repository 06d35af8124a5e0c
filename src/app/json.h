// JSON as the files of a process have it (flight_file.h, timeline_file.h): appended to a string.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace byteps::json {

// In quotes, escaped. What is no UTF-8 the reader replaces.
void append_text(std::string& out, std::string_view text);

// One object, field by field; what has no value is left out.
class Object {
 public:
  explicit Object(std::string& out) : out_(out) { out_ += '{'; }
  ~Object() { out_ += '}'; }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  void name(const char* name) {
    out_ += std::exchange(comma_, ",");
    append_text(out_, name);
    out_ += ':';
  }
  void text(const char* field, std::string_view value) {
    if (value.empty()) return;
    name(field);
    append_text(out_, value);
  }
  void text(const char* field, const char* value) {
    if (value != nullptr) text(field, std::string_view(value));
  }
  template <typename Number>
  void number(const char* field, Number value) {
    name(field);
    out_ += std::to_string(value);
  }
  template <typename Number>
  void number(const char* field, Number value, Number none) {
    if (value != none) number(field, value);
  }

 private:
  std::string& out_;
  const char* comma_ = "";
};

}  // namespace byteps::json
