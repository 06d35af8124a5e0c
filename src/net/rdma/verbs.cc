#include "net/rdma/verbs.h"

#include <fstream>
#include <utility>

#include <dlfcn.h>
#include <sys/stat.h>

namespace byteps::rdma {
namespace {

// Most functions exist twice in the library, and the older ones expect other structures.
template <typename Function>
bool find(void* library, const char* symbol, Function& function) {
  void* found = dlvsym(library, symbol, "IBVERBS_1.1");
  if (found == nullptr) found = dlsym(library, symbol);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

bool find_all(void* library, Verbs& v, const char*& missing) {
  const auto need = [&](const char* symbol, auto& function) {
    if (!find(library, symbol, function) && missing == nullptr) missing = symbol;
  };
  need("ibv_get_device_list", v.get_device_list);
  need("ibv_free_device_list", v.free_device_list);
  need("ibv_get_device_name", v.get_device_name);
  need("ibv_open_device", v.open_device);
  need("ibv_close_device", v.close_device);
  need("ibv_query_device", v.query_device);
  need("ibv_query_port", v.query_port);
  need("ibv_query_gid", v.query_gid);
  need("ibv_alloc_pd", v.alloc_pd);
  need("ibv_dealloc_pd", v.dealloc_pd);
  need("ibv_reg_mr", v.reg_mr);
  need("ibv_dereg_mr", v.dereg_mr);
  need("ibv_create_comp_channel", v.create_comp_channel);
  need("ibv_destroy_comp_channel", v.destroy_comp_channel);
  need("ibv_create_cq", v.create_cq);
  need("ibv_destroy_cq", v.destroy_cq);
  need("ibv_get_cq_event", v.get_cq_event);
  need("ibv_ack_cq_events", v.ack_cq_events);
  need("ibv_create_qp", v.create_qp);
  need("ibv_modify_qp", v.modify_qp);
  need("ibv_destroy_qp", v.destroy_qp);
  need("ibv_get_async_event", v.get_async_event);
  need("ibv_ack_async_event", v.ack_async_event);
  need("ibv_wc_status_str", v.wc_status_str);
  need("ibv_fork_init", v.fork_init);
  find(library, "ibv_is_fork_initialized", v.is_fork_initialized);
  return missing == nullptr;
}

// ibv_query_gid_ex() would tell it too, but not in libraries before 2020.
std::string type_of_gid(const std::string& device, int port, int index) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/" + std::to_string(port) +
                     "/gid_attrs/types/" + std::to_string(index));
  std::string type;
  std::getline(file, type);  // reading an empty entry is an error
  return type;
}

bool belongs(const std::string& interface, const std::string& device, int port) {
  struct stat found {};
  const std::string folder = "/sys/class/net/" + interface;
  if (::stat((folder + "/device/infiniband/" + device).c_str(), &found) != 0) return false;
  int ports_before = 0;  // which of the device's ports an IPoIB interface is
  return !(std::ifstream(folder + "/dev_port") >> ports_before) || ports_before == port - 1;
}

// A forked child must not take pages away from under the device: kernels before 5.12 need to be told.
Status make_fork_safe(const Verbs& verbs) {
  if (verbs.is_fork_initialized != nullptr && verbs.is_fork_initialized() == abi::kForkUnneeded) {
    return Status::ok();
  }
  const int failed = verbs.fork_init();
  if (failed == 0) return Status::ok();
  return system_error(
      "ibv_fork_init: something else in this process has registered RDMA memory "
      "before; import byteps first, or set IBV_FORK_SAFE=1",
      failed);
}

}  // namespace

Result<std::shared_ptr<const Verbs>> load_verbs(const char* library) {
  // Never closed: drivers that it loads stay with the process.
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return Status(
        Code::kUnsupported,
        std::string("no RDMA library: ") + (why == nullptr ? library : why) +
            "; install rdma-core (Debian, Ubuntu: ibverbs-providers; Fedora: libibverbs)");
  }
  Verbs verbs;
  const char* missing = nullptr;
  if (!find_all(handle, verbs, missing)) {
    return Status(Code::kUnsupported, std::string("the RDMA library ") + library + " has no " +
                                          missing + "; install rdma-core 17 or later");
  }
  verbs.gid_type = type_of_gid;
  verbs.is_of_interface = belongs;
  if (Status status = make_fork_safe(verbs); !status.is_ok()) return status;
  return std::make_shared<const Verbs>(std::move(verbs));
}

}  // namespace byteps::rdma
