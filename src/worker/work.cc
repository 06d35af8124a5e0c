#include "worker/work.h"

#include <utility>

namespace byteps {

Work::Work(const PipelineConfig& pipeline_config)
    : config(pipeline_config),
      tensors(config.placement),
      timeline(WorkerTimeline::make(config.timeline)) {
  for (std::uint32_t shard = 0; shard < config.placement.shard_count(); ++shard) {
    shards.emplace_back(config.priority_scheduling);
  }
}

void Work::complete(HandleId handle, const Spec& spec, const Status& status) {
  if (status.is_ok()) {
    ++counters.finished_operations;
    counters.finished_bytes += spec.total_bytes;
  } else {
    ++counters.failed_operations;
  }
  complete(handle, status);
}

void Work::complete(HandleId handle, const Status& status) {
  outputs.emplace_back(PipelineOutput::Complete{handle, status});
}

}  // namespace byteps
