"""tools/tidy finds each kind of violation where it was planted, and leaves alone what is allowed."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIDY = ROOT / "tools" / "tidy"

# The words that tidy looks for must not stand here in one piece, or it would find them.
UNFINISHED = "TO" "DO"
HOME = "/ro" "ot/"

FROM_THERE = "from byteps._core.there import kind"
SILENCED = ["import os  # no" "qa: F401\n", "x = f()  # type: " "ignore[misc]\n"]
LIMITS = re.findall(r'^    "(?:noqa|type: ignore)": (\d+),$', TIDY.read_text(), re.MULTILINE)

LONG_CPP = "int f() {\n" + "  g();\n" * 70 + "}\n"
LAST_ALLOWED_CPP = LONG_CPP.replace("  g();\n  g();\n", "", 1)
LONG_PYTHON = "def f():\n" + "    g()\n" * 70
METHODS = "class A {\n public:\n  A() = default;\n" + "  int f() const { return 1; }\n" * 19 + "  void g(int a);\n" * 20
MEMBERS = "  std::function<void(int)> a_;\n" * 10 + "  int b_ = f(1);\n" * 8 + "  int c_{1};\n" * 2
CONSTANTS = "  static constexpr int kOne = 1;\n  using B = int;\n  enum class C { kOne, kTwo };\n" * 30
HASH_TABLE = "struct A {\n  std::unordered_map<Key, int> sums_;\n};\n"

# What lies in the planted repository beside what is planted.
THERE = {
    "src/base/there.h": "#pragma once\n",
    "src/loop/there.h": "#pragma once\n",
    "python/byteps/__init__.py": "",
    "python/byteps/_core/there.py": "from byteps._core.here import kind\n",
    "python/byteps/_core/here.py": "",
    "python/byteps/keras/__init__.py": "",
    "python/byteps/launcher/there.py": "",
    "python/byteps/tensorflow/__init__.py": "",
    "python/byteps/tensorflow/keras/__init__.py": "",
    "python/byteps/tools/there.py": "",
    "python/byteps/torch/__init__.py": "",
    "python/byteps/torch/there.py": "",
    "python/byteps/torch/backend/there.py": "",
}
RIGHTS = """\
| `src/base` | words | nothing |
| `src/loop` | time | base |
| `python/byteps/__init__.py` | the version | nothing |
| `python/byteps/_core` | what layers share | nothing |
| `python/byteps/launcher` | starts jobs | `__init__` |
| `python/byteps/tools` | looks after them | launcher |
| `python/byteps/torch` | a layer | _core |
| `python/byteps/torch/backend` | a backend | launcher, torch, _core |
| `python/byteps/torch/__init__.py` | what users see | torch/backend, torch, _core |
| `python/byteps/keras` | a layer | _core |
| `python/byteps/tensorflow/keras` | a layer | _core |
| `python/byteps/tensorflow/__init__.py` | what users see | _core |
"""

# rule, path, text, line of the finding
VIOLATIONS = [
    ("include", "src/base/a.h", '#include "loop/clock.h"\n', 1),
    ("include", "src/loop/a.cc", '#include "base/ids.h"\n#include "net/wire.h"\n', 2),
    ("include", "src/kernels/a.cc", '#include "loop/clock.h"\n', 1),
    ("include", "src/net/tcp/a.cc", '#include "scheduler/roster.h"\n', 1),
    ("include", "src/net/a.cc", '#include "net/frame/frame.h"\n', 1),
    ("include", "src/net/frame/a.cc", '#include "net/way/link.h"\n', 1),
    ("include", "src/net/way/a.cc", '#include "net/shm/link.h"\n', 1),
    ("include", "src/net/shm/a.cc", '#include "net/tcp/socket.h"\n', 1),
    ("include", "src/net/rdma/a.cc", '#include "net/shm/ring.h"\n', 1),
    ("include", "src/net/tcp/a.cc", '#include "net/way/way.h"\n#include "net/shm/way.h"\n', 2),
    ("include", "src/net/tcp/a.cc", '#include "net/rdma/verbs.h"\n', 1),
    ("include", "src/worker/a.cc", '#include "net/tcp/tcp_transport.h"\n', 1),
    ("include", "src/net/carrier/a.cc", "int f();\n", 1),
    ("include", "src/scheduler/a.cc", '#include "kernels/kernels.h"\n', 1),
    ("include", "src/server/a.cc", '#include "worker/gate.h"\n', 1),
    ("include", "src/worker/stages/a.cc", '#include "server/shelf.h"\n', 1),
    ("include", "src/sim/a.cc", '#include "app/env.h"\n', 1),
    ("gpu", "src/device/a.cc", '#include "device/abi.h"\n#include <cuda.h>\n', 2),
    ("gpu", "src/device/a.h", "#include <cuda_runtime_api.h>\n", 1),
    ("gpu", "src/worker/a.cc", "# include <hip/hip_runtime.h>\n", 1),
    ("gpu", "include/byteps/byteps.h", '#include "nccl.h"\n', 1),
    ("gpu", "CMakeLists.txt", "find_package(CUDAToolkit)\n", 1),
    ("room", "src/net/a.cc", "const auto t = std::chrono::steady_clock::now();\n", 1),
    ("room", "src/server/a.cc", "void f() {\n  clock_gettime(CLOCK_MONOTONIC, &t);\n}\n", 2),
    ("room", "src/server/a.cc", "void f() {\n  gettimeofday(&t, nullptr);\n}\n", 2),
    ("room", "src/worker/a.cc", "long f() {\n  return time(nullptr);\n}\n", 2),
    ("room", "src/worker/a.cc", "void f() {\n  std::this_thread::sleep_for(d);\n}\n", 2),
    ("room", "src/base/a.cc", 'const auto home = getenv("HOME");\n', 1),
    ("room", "src/server/a.h", "struct A {\n  std::thread thread_;\n};\n", 2),
    ("room", "src/app/a.cc", "void f() {\n  pthread_create(&t, nullptr, g, nullptr);\n}\n", 2),
    ("room", "src/loop/a.cc", "int f() {\n  return rand();\n}\n", 2),
    ("room", "src/sim/a.cc", "std::mt19937 make();\n", 1),
    ("room", "src/app/a.cc", "void f(std::random_device& device);\n", 1),
    ("room", "src/loop/a.cc", "void f() {\n  getrandom(p, 1, 0);\n}\n", 2),
    ("global", "src/base/a.cc", "namespace byteps {\n\nint counter = 0;\n}\n", 3),
    ("global", "src/base/a.cc", "namespace {\nstd::map<int, int> known;\n}\n", 2),
    ("global", "src/base/a.cc", "std::atomic<bool> stop{false};\n", 1),
    ("global", "src/base/a.cc", 'const char* name = "a";\n', 1),
    ("global", "src/base/a.cc", "thread_local int depth = 0;\n", 1),
    ("global", "src/base/a.cc", "int f() {\n  static int calls = 0;\n  return ++calls;\n}\n", 2),
    ("global", "src/base/a.h", "struct A {\n  static inline int count = 0;\n};\n", 2),
    ("length", "src/base/a.cc", LONG_CPP, 1),
    (
        "length", "tests/base/a_test.cc",
        "namespace {\n" + LONG_CPP.replace("int f()", "TEST(A, b)") + "}\n", 2,
    ),
    ("length", "python/byteps/_core/a.py", LONG_PYTHON, 1),
    ("length", "tools/a", "#!/usr/bin/env python3\n" + LONG_PYTHON, 2),
    ("length", "src/net/way/a.cc", LONG_CPP.replace("  g();\n" * 10, "", 1), 1),
    ("class", "src/net/a.h", METHODS + "  int h();\n" + MEMBERS + "};\n", 1),
    ("class", "src/net/tcp/a.h", "\n" + METHODS + MEMBERS + "  int d_;\n};\n", 2),
    ("class", "src/net/a.h", "class A {\n  friend class B;\n};\n", 2),
    ("width", "src/base/a.cc", "// " + "a" * 120 + "\n", 1),
    ("width", "python/byteps/_core/a.py", "\nx = '" + "a" * 120 + "'\n", 2),
    ("unfinished", "src/base/a.cc", f"// {UNFINISHED}: think\n", 1),
    ("unfinished", "docs/a.md", f"{UNFINISHED} write this\n", 1),
    ("dead", "src/base/a.cc", "void f() {\n  // g(1, 2);\n}\n", 2),
    ("dead", "src/base/a.cc", "//  an example: fine\n// x = 3;\n", 2),
    ("dead", "src/base/a.cc", "// if (a) {\n//   b();\n// }\n", 1),
    ("dead", "src/base/a.cc", '// #include "base/ids.h"\n', 1),
    ("dead", "python/byteps/_core/a.py", "# print(x)\n", 1),
    ("dead", "python/byteps/_core/a.py", "# for x in y:\n", 1),
    ("machine", "docs/a.md", f"see {HOME}notes\n", 1),
    ("path", "docs/a.md", "\nsee `src/base/gone.h`\n", 2),
    ("path", "docs/a.md", "see [this](../src/base/gone.h)\n", 1),
    ("path", "README.md", "see [this](docs/gone.md#part) and [that](https://example.org/gone)\n", 1),
    ("path", "README.md", "see `src/base/{there,gone}.h`\n", 1),
    ("order", "src/server/a.cc", HASH_TABLE + "void f() {\n  for (auto& s : sums_) g(s);\n}\n", 5),
    ("circle", "python/byteps/_core/here.py", f"import os\n{FROM_THERE}\n", 2),
    ("circle", "python/byteps/_core/here.py", f"def f():\n    {FROM_THERE}\n", 2),
    ("import", "python/byteps/__init__.py", f"import os\n{FROM_THERE}\n", 2),
    ("import", "python/byteps/_core/a.py", "from byteps.keras import push_pull\n", 1),
    ("import", "python/byteps/jax/a.py", "from byteps import keras\n", 1),
    ("import", "python/byteps/launcher/a.py", "import os, byteps.tools.there\n", 1),
    ("import", "python/byteps/launcher/a.py", "def f():\n    from byteps.tools import there\n", 2),
    ("import", "python/byteps/launcher/a.py", "import os\nrun(['-m', 'byteps.tools.there'])\n", 2),
    ("import", "python/byteps/torch/a.py", "from byteps.torch.backend import there\n", 1),
    ("import", "python/byteps/torch/backend/a.py", "from byteps.torch import init\n", 1),
    ("import", "python/byteps/tensorflow/a.py", "from byteps.tensorflow.keras import DistributedOptimizer\n", 1),
    ("import", "python/byteps/carrier/a.py", "x = 1\n", 1),
    ("told", "docs/design/0001-rooms.md", RIGHTS.replace("| base |", "| nothing |"), 2),
    ("told", "docs/design/0001-rooms.md", RIGHTS.replace("| base |", "| base, net |"), 2),
    ("told", "docs/design/0001-rooms.md", RIGHTS.replace("| `src/loop` | time | base |\n", ""), 1),
    ("told", "docs/design/0001-rooms.md", RIGHTS.replace("torch/backend, torch", "torch"), 9),
    ("told", "docs/design/0001-rooms.md", RIGHTS + "| `docs/design` | no room | base |\n", 13),
    *(
        ("silenced", "python/byteps/_core/a.py", line * (int(limit) + 1), int(limit) + 1)
        for line, limit in zip(SILENCED, LIMITS)
    ),
]

ALLOWED = [
    (
        "src/worker/a.cc",
        '#include "server_list.h"\n'
        '#include "member/member.h"\n#include "worker/gate.h"\n',
    ),
    ("src/app/a.cc", '#include "sim/world.h"\nvoid f() {\n  getenv("HOME");\n}\n'),
    ("src/loop/a.cc", "std::thread start();\nlong f() {\n  return clock_gettime(CLOCK_MONOTONIC, &t);\n}\n"),
    ("src/app/a.cc", "int f() {\n  return std::thread::hardware_concurrency();\n}\n"),
    (
        "src/base/a.cc",
        '// asks time(nullptr) and rand() of nobody\n'
        'const std::string_view kText = "getenv(1)";\n',
    ),
    ("src/base/a.cc", "long f(const Event& event) {\n  return event.time(0) + operand(1);\n}\n"),
    (
        "src/base/a.cc",
        "namespace a {\nconstexpr int kOne = 1;\n"
        "const char* const kNames[] = {\"a\", \"b\"};\n}\n",
    ),
    ("src/base/a.cc", "extern int f(int a);\nusing A = int;\nstruct B;\nstd::string g(int a, int b = 2);\n"),
    (
        "src/base/a.cc",
        "A::A(int a) : a_{a}, b_(a) {\n  static constexpr int kOne = 1;\n"
        "  static const char* const x = kX;\n}\n",
    ),
    (
        "src/base/a.h",
        "class A {\n public:\n  static A make(int a);\n"
        "  int size() const { return 1; }\n  int size_ = 0;\n};\n",
    ),
    ("src/base/a.cc", "#define X(a) \\\n  int a = 0;\nX(b)\n"),
    ("tests/a.cc", LAST_ALLOWED_CPP + LAST_ALLOWED_CPP),
    (
        "src/base/a.cc",
        "// First the sum (of all), then the answer;\n"
        "// see f().\n//   f(1);  an example\nint f();\n",
    ),
    ("python/byteps/_core/a.py", "# the sum of all\n# returns: nothing\n#   f(1)\n# name, command\nx = 1\n"),
    (
        "docs/a.md",
        "`src/base/there.h` `src/base/there.h:3` `src/base/*.{h,h}` "
        "`src/` `src/<room>/x.h` `build/x` [b](#b)\n",
    ),
    ("src/server/a.cc", HASH_TABLE + "void f() {\n  for (auto& s : sorted_) sums_.find(s);\n}\n"),
    ("python/byteps/__init__.py", f"if TYPE_CHECKING:\n    {FROM_THERE}\n"),
    ("python/byteps/_core/there.py", "from byteps._core import here\nfrom byteps._core import errors\n"),
    ("python/byteps/launcher/a.py", "import byteps\nx = 'byteps.tools is not there'\n"),
    ("python/byteps/tools/a.py", "from byteps.launcher.there import f\n"),
    ("python/byteps/torch/__init__.py", "from byteps.torch.backend import there\n"),
    ("python/byteps/torch/backend/a.py", "from byteps.torch import there\n"),
    ("python/byteps/tensorflow/optimizer.py", "def f():\n    from byteps.tensorflow.keras import g\n"),
    ("docs/design/0001-rooms.md", RIGHTS),
    *(("tests/a.py", line * int(limit)) for line, limit in zip(SILENCED, LIMITS)),
    ("src/net/a.h", METHODS + MEMBERS + CONSTANTS + "};\n" + METHODS.replace("A", "B") + "};\n"),
    ("src/net/a.h", "class A {\n  friend class LinkTest;\n  friend bool operator==(const A&, const A&);\n};\n"),
    ("tests/a.h", METHODS + METHODS.split("\n", 1)[1] + MEMBERS + MEMBERS + "  friend class B;\n};\n"),
    ("src/net/tcp/a.cc", '#include "net/way/link.h"\n#include "net/frame/frame.h"\n#include "net/wire.h"\n'),
    ("src/net/shm/a.cc", '#include "net/way/link.h"\n'),
    ("src/app/a.cc", '#include "net/shm/way.h"\n#include "net/tcp/tcp_transport.h"\n'),
    ("third_party/a/a.h", f"// {UNFINISHED}\n" + LONG_CPP),
]  # fmt: skip


def tidy(root):
    """Exit code, and the findings as (path, line, rule)."""
    done = subprocess.run([sys.executable, str(TIDY), str(root)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    findings = [line.split(":")[:3] for line in done.stdout.splitlines()[:-1]]
    return done.returncode, [(path, int(line), rule.strip()) for path, line, rule in findings]


def plant(root, path, text):
    for name, content in {**THERE, path: text}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.mark.parametrize(("rule", "path", "text", "line"), VIOLATIONS)
def test_a_planted_violation_is_found_and_nothing_else(tmp_path, rule, path, text, line):
    plant(tmp_path, path, text)
    code, found = tidy(tmp_path)
    assert code == 1
    assert found[0] == (path, line, rule)
    assert {finding[2] for finding in found} == {rule}


@pytest.mark.parametrize(("path", "text"), ALLOWED)
def test_what_is_allowed_is_left_alone(tmp_path, path, text):
    plant(tmp_path, path, text)
    assert tidy(tmp_path) == (0, [])


def test_every_rule_has_a_planted_violation():
    names = set()
    for line in TIDY.read_text().splitlines():
        if line.startswith('    ("') and line.endswith("),") and line.count(",") == 2:
            names.add(line.split('"')[1])
    assert names == {rule for rule, *_ in VIOLATIONS} | {"commit"}


def test_a_limit_that_is_higher_than_it_need_be_is_found(tmp_path):
    plant(tmp_path, "tools/tidy", TIDY.read_text())
    code, found = tidy(tmp_path)
    assert code == 1 and len(found) == len(LIMITS) == 2
    assert {(path, rule) for path, _, rule in found} == {("tools/tidy", "silenced")}


@pytest.mark.parametrize("table", ["ROOMS", "PYTHON_ROOMS"])
def test_the_arrows_between_rooms_go_one_way(table):
    rooms = runpy.run_path(str(TIDY))[table]
    before = set()
    for room, includes in rooms.items():
        assert set(includes.split()) <= before, room
        before.add(room)


@pytest.mark.parametrize(
    ("lines", "body", "is_found"), [(101, "", True), (101, "Because.", False), (100, "", False)]
)
def test_a_large_commit_has_a_body_that_says_why(tmp_path, lines, body, is_found):
    def commit(path, text, message):
        plant(tmp_path, path, text)
        git("add", "-A")
        git("-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", message)

    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)

    git("init", "-q")
    commit("a.txt", "before\n" * 500, "Before there was this rule")
    limits = re.sub(r"^ +\(.*(noqa|type).*\n", "", TIDY.read_text(), flags=re.M)
    commit("tools/tidy", limits, "The rule")
    commit("b.txt", "line\n" * lines, f"A commit\n\n{body}")
    git("mv", "a.txt", "c.txt")
    commit("d.txt", "line\n", "A move")
    found = [entry for entry in tidy(tmp_path)[1] if entry[2] == "commit"]
    assert found == ([("tools/tidy", 1, "commit")] if is_found else [])


def test_ignored_files_are_not_looked_at(tmp_path):
    plant(tmp_path, "build/a.cc", "int counter = 0;\n" + "a" * 200)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("/build/\n")
    assert tidy(tmp_path) == (0, [])
