"""The rules about who may import whom: see ARCHITECTURE.md."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
SERVICES: Final = ROOT / "services"
NAMES: Final = ("control", "gateway", "router", "stack", "tracefile", "worker")
MAY_IMPORT: Final = {("stack", "gateway")}

IMPURE: Final = {"asyncio", "grpc", "os", "random", "redis", "threading", "time"}
PURE: Final = (
    "control/arrivals.py",
    "core/byte_tensor.py",
    "core/byte_size.py",
    "core/cache_config.py",
    "core/datatype.py",
    "core/errors.py",
    "core/gpus.py",
    "core/header_pattern.py",
    "core/latency_buckets.py",
    "core/lifecycle.py",
    "core/model_config.py",
    "core/model_version.py",
    "core/rate_limits.py",
    "core/restrictions.py",
    "core/shared_memory_region.py",
    "core/statistics_fields.py",
    "core/wire_format.py",
    "control/commands.py",
    "control/config_validation.py",
    "control/demand_metrics.py",
    "control/ensemble_tensors.py",
    "control/ensembles.py",
    "control/events.py",
    "control/generations.py",
    "control/latency_windows.py",
    "control/load_durations.py",
    "control/log_settings.py",
    "control/metrics.py",
    "control/host_metrics.py",
    "control/inference_metrics.py",
    "control/memory_budget.py",
    "control/metrics_settings.py",
    "control/missing_backend.py",
    "control/missing_places.py",
    "control/model_demand.py",
    "control/model_registry.py",
    "control/prometheus.py",
    "control/publication.py",
    "control/reconciler.py",
    "control/otel_options.py",
    "control/repository_index.py",
    "control/route_table.py",
    "control/remote_location.py",
    "control/router_acknowledgements.py",
    "control/snapshot.py",
    "control/traffic_split.py",
    "control/wishes.py",
    "control/shared_rate.py",
    "control/trace_book.py",
    "control/trace_config.py",
    "control/trace_records.py",
    "control/trace_setting_values.py",
    "control/trace_settings.py",
    "control/trace_settings_text.py",
    "control/trace_spans.py",
    "control/statistics_keys.py",
    "control/statistics_totals.py",
    "router/admission.py",
    "router/batcher.py",
    "router/response_cache.py",
    "router/entrance.py",
    "router/ensemble_plan.py",
    "router/ensemble_strands.py",
    "router/ensemble_wire.py",
    "router/header_forwarding.py",
    "router/in_order.py",
    "router/input_checks.py",
    "router/first_instances.py",
    "router/learned_headers.py",
    "router/model_queue.py",
    "router/quarantine.py",
    "router/queue_limits.py",
    "router/recovery.py",
    "router/request_content.py",
    "router/request_split.py",
    "router/request_queue.py",
    "router/retries.py",
    "router/route_table.py",
    "router/same_answers.py",
    "router/sequence.py",
    "router/sequence_errors.py",
    "router/sequence_members.py",
    "router/sequence_policy.py",
    "router/sequence_slots.py",
    "router/sequence_step.py",
    "router/sequencer.py",
    "router/stand_in.py",
    "router/statistics.py",
    "router/request_trace.py",
    "router/trace_sampler.py",
    "router/trace_tree.py",
    "router/traced_request.py",
    "router/traced_takers.py",
    "router/traffic_splits.py",
    "router/version_field.py",
    "router/waiting_room.py",
    "router/statistics_ledger.py",
    "router/tensor_sources.py",
    "router/typed_contents.py",
    "stack/command_line.py",
    "stack/file_features.py",
    "stack/flags.py",
    "stack/model_states.py",
    "stack/observation_flags.py",
    "stack/plan.py",
    "stack/repository_flags.py",
    "stack/restart.py",
    "stack/settings.py",
    "tracefile/perfetto.py",
    "tracefile/records.py",
    "tracefile/summary.py",
    "worker/backends/onnxruntime_options.py",
    "worker/backends/onnxruntime_providers.py",
    "worker/backends/parameters.py",
    "worker/backends/pytorch_names.py",
    "worker/backends/pytorch_options.py",
    "worker/backends/pytorch_package.py",
    "worker/backends/tensorrt_profiles.py",
    "worker/classification.py",
    "worker/gather.py",
    "worker/layout.py",
    "worker/rate_limiter.py",
    "worker/reply_encoder.py",
    "worker/scatter.py",
    "worker/sequence_states.py",
    "worker/stateful_backend.py",
    "worker/stateful_requests.py",
)
RUNTIMES: Final = {"onnxruntime", "tensorrt", "torch"}

# Where a protobuf message is decoded or encoded: config parsing, wire, servicers,
# and the clients of another service.
MESSAGE_EDGES: Final = {
    "control/app.py",
    "control/auto_complete.py",
    "control/config_completion.py",
    "control/config_pbtxt.py",
    "control/doors.py",
    "control/ensemble_members.py",
    "control/instance_groups.py",
    "control/management_servicer.py",
    "control/metrics_servicer.py",
    "control/pinned.py",
    "control/placing.py",
    "control/preparation.py",
    "control/repository_check.py",
    "control/readiness_servicer.py",
    "control/response_servicer.py",
    "control/router_servicer.py",
    "control/settings_servicer.py",
    "control/statistics_servicer.py",
    "control/trace_wire.py",
    "control/traffic_servicer.py",
    "control/trial_fleet.py",
    "control/process_use_wire.py",
    "control/router_wire.py",
    "control/worker_wire.py",
    "control/worker_servicer.py",
    "core/health_client.py",
    "core/log_settings_proto.py",
    "core/model_config_json.py",
    "core/model_config_optimization_proto.py",
    "core/model_config_proto.py",
    "core/model_config_scheduling_proto.py",
    "gateway/config.py",
    "gateway/descriptor.py",
    "gateway/dispatch.py",
    "gateway/routes.py",
    "router/admission.py",
    "router/app.py",
    "router/batch_response.py",
    "router/control_client.py",
    "router/demand_reporter.py",
    "router/dispatcher.py",
    "router/ensemble_wire.py",
    "router/header_forwarding.py",
    "router/health.py",
    "router/input_checks.py",
    "router/model_metadata.py",
    "router/readiness_question.py",
    "router/reflection.py",
    "router/nested_traces.py",
    "router/request_timing.py",
    "router/request_split.py",
    "router/rest_documents.py",
    "router/rest_generate.py",
    "router/rest_http_body.py",
    "router/rest_infer_document.py",
    "router/rest_parameters.py",
    "router/rest_repository.py",
    "router/rest_request.py",
    "router/rest_response.py",
    "router/rest_service.py",
    "router/rest_settings.py",
    "router/sequence_controls.py",
    "router/sequence_request.py",
    "router/state_checkpoints.py",
    "router/state_notices.py",
    "router/rest_traffic.py",
    "router/same_answers.py",
    "router/servicer.py",
    "router/shared_memory_servicer.py",
    "router/shared_responses.py",
    "router/statistics_reporter.py",
    "router/stream_infer.py",
    "router/streamed_replies.py",
    "router/trace_progress.py",
    "router/trace_reporter.py",
    "router/tracing.py",
    "router/tensor_sources.py",
    "router/traffic_splits.py",
    "router/typed_contents.py",
    "stack/inference_client.py",
    "stack/quickstart.py",
    "stack/statistics_command.py",
    "worker/control_client.py",
    "worker/peer_messages.py",
    "worker/wire.py",
    "worker/worker.py",
}


def modules() -> list[str]:
    """Return every module below services/, as a path below it."""
    return sorted(p.relative_to(SERVICES).as_posix() for p in SERVICES.rglob("*.py"))


def imports(text: str) -> Iterator[str]:
    """Yield what a module imports, as full names, also inside functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_of(module: str) -> set[str]:
    return set(imports((SERVICES / module).read_text()))


def packages_of(module: str) -> set[str]:
    return {name.split(".")[0] for name in imports_of(module)}


def services_of(module: str) -> set[str]:
    """Return the folders below services/ that a module imports from."""
    parts = (name.split(".") for name in imports_of(module))
    return {part[1] for part in parts if part[0] == "services" and len(part) > 1}


def offenders(found: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Keep the modules for which something was found."""
    return {module: names for module, names in found.items() if names}


def test_the_reader_of_imports_sees_every_form() -> None:
    text = "import a.b, c\nfrom d.e import f\ndef g():\n    from h import i as j\n"
    assert set(imports(text)) == {"a.b", "c", "d.e.f", "h.i"}


def test_no_service_imports_another() -> None:
    found = {}
    for module in modules():
        own = module.split("/", maxsplit=1)[0]
        allowed = {own} | {to for by, to in MAY_IMPORT if by == own}
        found[module] = (services_of(module) & set(NAMES)) - allowed
    assert offenders(found) == {}


def test_a_pure_module_can_neither_wait_nor_look_around() -> None:
    found = {module: packages_of(module) & IMPURE for module in PURE}
    assert offenders(found) == {}


def test_only_the_stores_speak_to_redis() -> None:
    found = {module: packages_of(module) & {"redis"} for module in modules()}
    stores = {"control/store.py", "control/response_store.py"}
    assert offenders(found).keys() <= stores


def test_only_the_exporter_imports_opentelemetry() -> None:
    found = {module: packages_of(module) & {"opentelemetry"} for module in modules()}
    assert offenders(found).keys() <= {"control/otel_export.py"}


def test_only_remote_repositories_import_fsspec() -> None:
    found = {module: packages_of(module) & {"fsspec"} for module in modules()}
    assert offenders(found).keys() <= {"control/remote_repository.py"}


def test_only_backends_import_a_runtime() -> None:
    found = {module: packages_of(module) & RUNTIMES for module in modules()}
    assert [m for m in offenders(found) if not m.startswith("worker/backends/")] == []


def test_only_the_completion_queue_touches_the_private_layer_of_grpcio() -> None:
    found = {
        module: {name for name in imports_of(module) if name.startswith("grpc._")}
        for module in modules()
    }
    allowed = "core/completion_queue/"
    assert [m for m in offenders(found) if not m.startswith(allowed)] == []


def test_messages_stay_at_the_edges() -> None:
    found = {
        module: {name for name in imports_of(module) if "_pb2" in name}
        for module in modules()
    }
    assert sorted(offenders(found).keys() - MESSAGE_EDGES) == []


def test_the_command_line_imports_no_role_before_it_is_chosen() -> None:
    assert services_of("cli.py") == {"core"}


def test_a_worker_sets_its_environment_before_a_runtime_or_grpc_reads_it() -> None:
    script = (
        "import sys, services.worker.app\n"
        "print(*sorted({'grpc', 'numpy', 'onnxruntime', 'torch'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_lists_name_only_modules_that_exist() -> None:
    assert {*PURE, *MESSAGE_EDGES} - set(modules()) == set()
