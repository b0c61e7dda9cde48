"""What is refused at start: settings of vLLM that do not go with the pass, or that no test ran."""

from collections.abc import Iterator
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec

from headway.errors import ConfigError
from headway_vllm.settings import Settings


def refuse(reasons: list[str]) -> None:
    """Raise ConfigError with the first reason, if there is one."""
    if reasons:
        raise ConfigError(f"Headway in vLLM: {reasons[0]}")


def unsupported(scheduler: Any) -> list[str]:
    """Why this scheduler, as vLLM has set it up, is not one of ours to run; empty if it is."""
    reasons = unsupported_config(scheduler.vllm_config)
    asynchronous = scheduler.vllm_config.scheduler_config.async_scheduling
    if asynchronous and not isinstance(scheduler, AsyncScheduler):
        reasons.append("async scheduling is on, and this class is for engines without it")
    return [*reasons, *_wrong_cache(scheduler.kv_cache_config)]


def unsupported_config(config: Any) -> list[str]:
    """What can be said before a model is loaded; `config` is vLLM's VllmConfig."""
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector != "HeadwaySwap":
        return ["needs the connector HeadwaySwap beside it; `headway vllm serve` sets both"]
    allowed = Settings.of(transfer.kv_connector_extra_config).allowed
    return [*_wrong(config), *(r for name, r in _untested(config) if name not in allowed)]


def unsupported_server(arguments: Any) -> list[str]:
    """What vLLM's own command would start otherwise than as one HTTP server; `arguments` are its
    own, parsed."""
    asked = {
        "--headless": arguments.headless,
        "--grpc": arguments.grpc,
        "--api-server-count": arguments.api_server_count not in (None, 1),
        "--data-parallel-multi-port-external-lb": arguments.data_parallel_multi_port_external_lb,
    }
    return [f"{name}: only one HTTP server is supported" for name, given in asked.items() if given]


def _wrong(config: Any) -> Iterator[str]:
    """What can't be allowed."""
    policy, model, parallel = (
        config.scheduler_config.policy,
        config.model_config,
        config.parallel_config,
    )
    if policy != "priority":
        yield f"the scheduling policy is {policy!r}; it has to be 'priority'"
    if config.speculative_config is not None:
        yield "speculative decoding is not supported"
    if config.lora_config is not None:
        yield "LoRA is not supported"
    if model.is_encoder_decoder or model.supports_multimodal_inputs:
        yield "models with encoder or media inputs are not supported"
    if model.runner_type != "generate":
        yield f"{model.runner_type} models are not supported"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "context parallelism is not supported"
    if config.ec_transfer_config is not None:
        yield "an encoder-cache connector is not supported"
    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        yield f"{current_platform.device_type} is neither a CPU nor CUDA"


def _wrong_cache(cache: Any) -> Iterator[str]:
    groups = cache.kv_cache_groups
    if len(groups) != 1:
        yield f"the model has {len(groups)} KV cache groups; only one is supported"
    elif type(groups[0].kv_cache_spec) is not FullAttentionSpec:
        kind = type(groups[0].kv_cache_spec).__name__
        yield f"the KV cache is {kind}; only full attention is supported"
    elif groups[0].kv_cache_spec.sliding_window is not None:
        yield "the model has sliding-window attention, which is not supported"


def _untested(config: Any) -> Iterator[tuple[str, str]]:
    """What nobody ran: its name in settings, and the reason."""
    hint = "no test has run it (allow it with --allow-untested {})"
    if config.scheduler_config.async_scheduling:
        yield "async-scheduling", f"async scheduling: {hint.format('async-scheduling')}"
    if config.use_v2_model_runner:
        reason = f"set VLLM_USE_V2_MODEL_RUNNER=0; {hint.format('model-runner-v2')}"
        yield "model-runner-v2", f"Model Runner V2: {reason}"
    if config.parallel_config.data_parallel_size > 1:
        yield "data-parallel", f"data parallelism: {hint.format('data-parallel')}"
