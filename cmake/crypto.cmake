# byteps_crypto: OpenSSL's libcrypto as a static library. Of it only SHA-256 is used (src/net/auth.cc), about 20 KB,
# and its symbols stay inside: libbyteps.so lives in processes with another OpenSSL.
find_path(BYTEPS_OPENSSL_INCLUDE openssl/sha.h)
find_library(BYTEPS_LIBCRYPTO libcrypto.a)
if(NOT BYTEPS_OPENSSL_INCLUDE OR NOT BYTEPS_LIBCRYPTO)
  message(FATAL_ERROR "OpenSSL's headers and its static library libcrypto.a are needed and were not found: install "
                      "libssl-dev (Debian, Ubuntu), or openssl-devel and openssl-static (Fedora and its like)")
endif()
add_library(byteps_crypto STATIC IMPORTED GLOBAL)
set_target_properties(byteps_crypto PROPERTIES IMPORTED_LOCATION ${BYTEPS_LIBCRYPTO}
                                               INTERFACE_INCLUDE_DIRECTORIES ${BYTEPS_OPENSSL_INCLUDE})
