"""python/byteps/_core/abi.py says the same as include/byteps/byteps.h: constants, structures and functions.

What the header means is asked of a compiler: a program made from the names in it prints values, layouts and kinds. A
kind is void, i32, u64, f64, char, bytes<n> (an array), the name of a structure, or * before one of these.
"""

import ast
import ctypes
import re
import subprocess
from collections import Counter

import pytest
from place import ROOT

from byteps._core import abi, collectives, elements, errors

HEADER = (ROOT / "include/byteps/byteps.h").read_text()
STRUCTURES = {"byteps_error": abi.Error, "byteps_codec": abi.Codec, "byteps_tensor": abi.Tensor,
              "byteps_metrics": abi.Metrics, "byteps_ended": abi.Ended}  # fmt: skip
COMPUTED = {"TENSOR_BYTES", "METRICS_BYTES"}  # in abi.py, from its own structures
NOT_CALLED = {"byteps_join"}  # its two halves are
CODES = {
    errors.InvalidArgumentError: "INVALID_ARGUMENT",
    errors.TooManyPendingError: "AGAIN",
    errors.TimedOutError: "TIMEOUT",
    errors.DisconnectedError: "DISCONNECTED",
    errors.UnsupportedError: "UNSUPPORTED",
    errors.SystemRefusedError: "SYSTEM",
    errors.MismatchError: "MISMATCH",
    errors.CancelledError: "CANCELLED",
}

PROGRAM = """
#include <cstddef>
#include <iostream>
#include <string>
#include <type_traits>
#include "byteps/byteps.h"

template <class T>
std::string kind() {
  if constexpr (std::is_pointer_v<T>) return "*" + kind<std::remove_cv_t<std::remove_pointer_t<T>>>();
  else if constexpr (std::is_array_v<T>) return "bytes" + std::to_string(std::extent_v<T>);
  else if constexpr (std::is_void_v<T>) return "void";
  else if constexpr (std::is_same_v<T, char>) return "char";
  else if constexpr (std::is_floating_point_v<T>) return "f" + std::to_string(8 * sizeof(T));
  else if constexpr (std::is_integral_v<T>)
    return (std::is_signed_v<T> ? "i" : "u") + std::to_string(8 * sizeof(T));
  %(structures)s
  else return "?";
}
template <class Result, class... Arguments>
void show(const char* name, Result (*)(Arguments...)) {
  std::cout << "function " << name << " " << kind<Result>();
  ((std::cout << " " << kind<Arguments>()), ...);
  std::cout << "\\n";
}
int main() {
  %(lines)s
}
"""


def without_comments(header):
    return re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)


def program_for(header):
    code = without_comments(header)
    lines = []
    constants = re.findall(r"^#define BYTEPS_(\w+) \d+u?$", code, re.MULTILINE)
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", code, re.DOTALL):
        constants += re.findall(r"BYTEPS_(\w+) =", body)
    for name in constants:
        lines.append(f'std::cout << "constant {name} " << static_cast<long>(BYTEPS_{name}) << "\\n";')
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", code, re.DOTALL):
        lines.append(f'std::cout << "structure {name} " << sizeof({name}) << "\\n";')
        for field in re.findall(r"(\w+)(?:\[\w+\])?;", body):
            place = f'offsetof({name}, {field}) << " " << kind<decltype({name}::{field})>()'
            lines.append(f'std::cout << "field {name} {field} " << {place} << "\\n";')
    for name in re.findall(r"^BYTEPS_API .*?(byteps_\w+)\(", code, re.MULTILINE):
        lines.append(f'show("{name}", &{name});')
    same = 'else if constexpr (std::is_same_v<T, {0}>) return "{0}";'
    structures = [same.format(name) for name in dict.fromkeys(re.findall(r"typedef struct (\w+)", code))]
    return PROGRAM % {"structures": "\n  ".join(structures), "lines": "\n  ".join(lines)}


def meaning_of(header, folder):
    """What a compiler sees: {("constant", name): [value], ("field", structure, name): [offset, kind], ...}."""
    (folder / "byteps").mkdir()
    (folder / "byteps/byteps.h").write_text(header)
    (folder / "main.cc").write_text(program_for(header))
    # Functions are only named, for their types: nothing has to be there to link.
    options = ["-std=c++17", "-O0", f"-I{folder}", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run(["g++", *options, folder / "main.cc", "-o", folder / "main"], check=True)
    said = subprocess.run([folder / "main"], check=True, capture_output=True, text=True).stdout
    meaning = {}
    for words in map(str.split, said.splitlines()):
        length = 3 if words[0] == "field" else 2
        meaning[tuple(words[:length])] = words[length:]
    return meaning


def kind(ctype):
    """As above; c_void_p is "*", which stands for any pointer."""
    if ctype is None:
        return "void"
    if ctype in (ctypes.c_char_p, ctypes.c_void_p):
        return "*char" if ctype is ctypes.c_char_p else "*"
    if issubclass(ctype, ctypes._Pointer):
        return "*" + kind(ctype._type_)
    if issubclass(ctype, ctypes.Structure):
        return next(name for name, structure in STRUCTURES.items() if structure is ctype)
    if issubclass(ctype, ctypes.Array):
        return f"bytes{ctype._length_}"
    letter = "f" if ctype._type_ in "fd" else "i" if ctype._type_ in "bhilq" else "u"
    return f"{letter}{8 * ctypes.sizeof(ctype)}"


def fits(ours, theirs):
    return theirs.startswith(ours) if ours.endswith("*") else ours == theirs


def constants(module):
    return {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}


def differences(meaning):
    """Where abi.py differs, as texts that begin with the name in question."""
    found = []
    for name, value in constants(abi).items():
        theirs = meaning.get(("constant", name))
        if name not in COMPUTED and theirs != [str(value)]:
            found.append(f"{name}: {value} in Python, {theirs} in the header")
    for name, structure in STRUCTURES.items():
        if meaning[("structure", name)] != [str(ctypes.sizeof(structure))]:
            found.append(f"{name}: {ctypes.sizeof(structure)} bytes in Python, {meaning[('structure', name)]}")
        theirs = {key[2]: value for key, value in meaning.items() if key[:2] == ("field", name)}
        ours = {field: (getattr(structure, field).offset, kind(ctype)) for field, ctype in structure._fields_}
        for field in {**theirs, **ours}:
            offset, its_kind = ours.get(field, (None, "nothing"))
            if field not in theirs or theirs[field][0] != str(offset) or not fits(its_kind, theirs[field][1]):
                found.append(f"{name}.{field}: {offset} {its_kind} in Python, {theirs.get(field)} in the header")
    theirs = {key[1]: value for key, value in meaning.items() if key[0] == "function"}
    for name, (result, arguments) in abi._PROTOTYPES.items():
        ours = [kind(result), *map(kind, arguments)]
        if len(ours) != len(theirs.get(name, [])) or not all(map(fits, ours, theirs[name])):
            found.append(f"{name}: {ours} in Python, {theirs.get(name)} in the header")
    found += [f"{name}: not in Python" for name in set(theirs) - set(abi._PROTOTYPES) - NOT_CALLED]
    return found


@pytest.fixture(scope="module")
def meaning(tmp_path_factory):
    return meaning_of(HEADER, tmp_path_factory.mktemp("header"))


def values_of(header, enum):
    (body,) = re.findall(rf"typedef enum {enum} \{{(.*?)\}}", without_comments(header), re.DOTALL)
    return {name: int(value) for name, value in re.findall(r"BYTEPS_(\w+) = (\d+)", body)}


def test_the_header_and_its_mirror_in_python_agree(meaning):
    assert differences(meaning) == []
    assert {key[1] for key in meaning if key[0] == "structure"} == set(STRUCTURES)


def test_nothing_is_defined_twice():
    body = ast.parse((ROOT / "python/byteps/_core/abi.py").read_text()).body
    names = Counter(target.id for node in body if isinstance(node, ast.Assign) for target in node.targets)
    assert [name for name, times in names.items() if times > 1] == []


def test_every_dtype_and_operation_of_the_header_is_there():
    for enum in ("byteps_dtype", "byteps_operation"):
        assert values_of(HEADER, enum).items() <= constants(abi).items()
    assert set(collectives.ELEMENT_BYTES) == set(values_of(HEADER, "byteps_dtype").values())


def test_what_other_modules_say_of_the_header_agrees(meaning):
    assert {name: kind.code for kind, name in CODES.items()} == {
        name: code for name, code in values_of(HEADER, "byteps_code").items() if name != "OK"
    }
    assert set(errors._BY_CODE.values()) == set(CODES)
    logical = {f"LOGICAL_{name.upper()}": number for name, number in elements._LOGICAL.items()}
    assert {"LOGICAL_SAME": 0, **logical} == values_of(HEADER, "byteps_logical_type")
    assert meaning[("constant", "DIMENSIONS_MAX")] == [str(collectives.DIMENSIONS_MAX)]


# What is planted in the header, and what the difference is then named by.
PLANTED = [
    ("BYTEPS_INT16 = 9,", "BYTEPS_INT16 = 19,", "INT16"),
    ("#define BYTEPS_ROOT_ONLY 2u", "#define BYTEPS_ROOT_ONLY 4u", "ROOT_ONLY"),
    ("BYTEPS_CANCELLED = 8", "BYTEPS_CANCELED = 8", "CANCELLED"),
    ("uint32_t root; ", "int32_t root; ", "byteps_tensor.root"),  # the same size
    ("uint64_t pushed_bytes; ", "double pushed_bytes; ", "byteps_metrics.pushed_bytes"),
    ("char message[2044];", "char message[2040];", "byteps_error.message"),
    ("  uint64_t tag;         /* the byteps_tensor's */\n", "", "byteps_ended.tag"),
    ("byteps_wait(byteps_job* job, byteps_handle handle, int64_t timeout_ns,",
     "byteps_wait(byteps_job* job, byteps_handle handle, int32_t timeout_ns,", "byteps_wait"),
    ("byteps_barrier(byteps_job* job, int64_t timeout_ns, byteps_error* error)",
     "byteps_barrier(byteps_job* job, int64_t timeout_ns)", "byteps_barrier"),
    ("BYTEPS_API uint32_t byteps_rank(", "BYTEPS_API uint64_t byteps_rank(", "byteps_rank"),
    ("uint32_t* machines,", "uint64_t* machines,", "byteps_machines"),
    ("byteps_progress(", "byteps_progressed(", "byteps_progress"),
]  # fmt: skip


def test_every_planted_difference_is_found(tmp_path):
    header = HEADER
    for before, after, _ in PLANTED:
        assert header.count(before) == 1, before
        header = header.replace(before, after)
    named = {text.split(":")[0] for text in differences(meaning_of(header, tmp_path))}
    assert {name for _, _, name in PLANTED} <= named
    sizes = {"byteps_error", "byteps_ended"}  # and so are what else is elsewhere or new then
    moved = {"byteps_ended.code", "byteps_ended.reserved"}
    assert named <= {name for _, _, name in PLANTED} | sizes | moved | {"byteps_progressed"}
