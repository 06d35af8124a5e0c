# byteps_xla_ffi: the headers of XLA's interface for custom calls (third_party/xla_ffi/README.md).
add_library(byteps_xla_ffi INTERFACE)
target_include_directories(byteps_xla_ffi SYSTEM INTERFACE ${CMAKE_SOURCE_DIR}/third_party/xla_ffi)
# Members that have their type's name are an error to g++ -Wpedantic, in system headers too.
target_compile_options(byteps_xla_ffi INTERFACE -Wno-pedantic)
