#include "worker/work.h"

#include <utility>

namespace byteps {
namespace {

Route route_of(const PipelineConfig& config) {
  if (!config.groups || config.is_relay) return Route(config.placement);
  return {config.placement, config.groups, config.self};
}

}  // namespace

PipelineConfig with_flow(PipelineConfig pipeline, const FlowConfig& flow) {
  pipeline.credit_bytes = flow.credit_bytes;
  pipeline.credit_frames_min = flow.credit_frames_min;
  pipeline.autotune = flow.autotune;
  pipeline.priority_scheduling = flow.priority_scheduling;
  pipeline.measured.stopwatch = flow.stopwatch;
  return pipeline;
}

Work::Work(const PipelineConfig& pipeline_config)
    : config(pipeline_config),
      coder(config.measured.stopwatch),
      tensors(route_of(config)),
      timeline(WorkerTimeline::make(config.measured.timeline)) {
  for (std::uint32_t shard = 0; shard < tensors.route().way_count(); ++shard) {
    shards.emplace_back(config.priority_scheduling);
  }
}

bool Work::is_alone_in(const Spec& spec) const {
  for (std::uint32_t place = 0; place < spec.members.count(config.worker_count); ++place) {
    if (!speaks_for(spec.members.at(place))) return false;
  }
  return config.worker_count > 0;
}

bool Work::leads(const Tensor& tensor, std::uint32_t part) const {
  if (!config.is_relay) return true;
  const Crew crew =
      config.groups->crew_of(config.groups->group_of(config.self), tensor.spec.members);
  return leader_of(crew, tensor.key, part, config.placement.shard_count()) == config.self;
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

Result<TensorIndex> Work::find_or_add(std::string_view name, const Spec& spec) {
  const std::size_t known_count = tensors.size();
  Result<TensorIndex> found = tensors.find_or_add(name, spec);
  if (tensors.size() > known_count && is_coded(spec)) coder.begin(tensors[found.value()]);
  return found;
}

}  // namespace byteps
