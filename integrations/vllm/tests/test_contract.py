"""What of vLLM is leaned on is as it was when this was tested, and what is unsupported is refused.

The names are those the integration uses; a signature is what it calls them with.
"""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.request import Request

from headway.errors import ConfigError
from headway_vllm import contract, guards
from headway_vllm.connector import HeadwaySwap
from headway_vllm.contract import LEANED_ON, differences, fingerprint
from headway_vllm.guards import refuse, unsupported, unsupported_server
from headway_vllm.queue import ClassQueue
from headway_vllm.scheduler import HeadwayAsyncScheduler, HeadwayScheduler
from headway_vllm.settings import Settings


def test_the_installed_version_is_one_that_was_tested() -> None:
    assert differences() == []


def test_what_a_version_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fingerprint
    changed = {LEANED_ON[1]: "0123456789abcdef", LEANED_ON[2]: "missing"}
    monkeypatch.setattr(contract, "fingerprint", lambda name: changed.get(name) or real(name))
    found = differences()
    assert [line.split()[2] for line in found] == list(LEANED_ON[1:3])
    assert found[1].endswith("is missing")
    monkeypatch.setattr(contract, "installed", lambda: "9.99.1")
    assert differences()[0].startswith("vLLM 9.99.1 was not tested; tested: ")
    assert [line.split()[2] for line in differences()[1:]] == list(LEANED_ON[1:3])
    with pytest.raises(ConfigError, match="was not tested"):
        refuse(differences())


def test_a_function_that_is_gone_is_seen() -> None:
    assert fingerprint("vllm.v1.core.sched.scheduler:Scheduler.plan_ahead") == "missing"
    assert fingerprint("vllm.no_such_module:f") == "missing"
    assert len({fingerprint(name) for name in LEANED_ON}) == len(LEANED_ON)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (Scheduler.schedule, "self throttle_prefills"),
        (Scheduler._preempt_request, "self request timestamp drop_stale_output"),
        (Scheduler.reset_prefix_cache, "self reset_running_requests reset_connector"),
        (Scheduler.update_from_output, "self scheduler_output model_runner_output"),
        (KVConnectorBase_V1.__init__, "self vllm_config role kv_cache_config"),
        (KVConnectorBase_V1.handle_preemptions, "self kv_connector_metadata"),
    ],
)
def test_what_is_overridden_has_the_signature_it_had(function: Any, parameters: str) -> None:
    assert list(inspect.signature(function).parameters) == parameters.split()


@pytest.mark.parametrize(
    "name",
    [
        "waiting",
        "running",
        "requires_kv_delivery",
        "connector",
        "block_size",
        "max_num_active_reqs",
        "num_waiting_for_streaming_input",
        "_pause_state",
        "kv_cache_manager",
        "max_num_scheduled_tokens",
        "current_step",
        "requests",
        "max_model_len",
    ],
)
def test_the_scheduler_sets_what_is_read_of_it(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(Scheduler.__init__)


@pytest.mark.parametrize(
    "name",
    [
        "priority",
        "arrival_time",
        "status",
        "num_computed_tokens",
        "num_output_placeholders",
        "next_decode_eligible_step",
        "num_stale_output_tokens",
        "drop_stale_output",
        "resumable",
    ],
)
def test_a_request_has_what_is_read_of_it(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(Request.__init__)


def test_nothing_abstract_is_left_open() -> None:
    classes = (HeadwayScheduler, HeadwayAsyncScheduler, HeadwaySwap, ClassQueue)
    assert [c.__name__ for c in classes if inspect.isabstract(c)] == []
    assert issubclass(ClassQueue, RequestQueue)
    bases = [c.__name__ for c in HeadwayAsyncScheduler.__mro__[:4]]
    assert bases == ["HeadwayAsyncScheduler", "HeadwayScheduler", "AsyncScheduler", "Scheduler"]


def set_up(asynchronous: bool = False, **changes: Any) -> Any:
    """A scheduler as far as the guards look, set up as it should be but for `changes`, which are
    dotted paths below it."""
    spec = FullAttentionSpec(block_size=32, num_kv_heads=4, head_size=32, dtype="float32")
    transfer = KVTransferConfig(
        kv_connector="HeadwaySwap",
        kv_role="kv_both",
        kv_connector_extra_config=Settings().to_extra(),
    )
    scheduler: Any = object.__new__(HeadwayAsyncScheduler if asynchronous else HeadwayScheduler)
    scheduler.kv_cache_config = SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)]
    )
    scheduler.vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(policy="priority", async_scheduling=asynchronous),
        speculative_config=None,
        lora_config=None,
        model_config=SimpleNamespace(
            is_encoder_decoder=False, supports_multimodal_inputs=False, runner_type="generate"
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, data_parallel_size=1
        ),
        ec_transfer_config=None,
        kv_transfer_config=transfer,
        use_v2_model_runner=False,
    )
    for path, value in changes.items():
        *way, last = path.split("__")
        place = scheduler
        for name in way:
            place = getattr(place, name)
        setattr(place, last, value)
    return scheduler


def test_what_is_supported_is_not_refused() -> None:
    assert unsupported(set_up()) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vllm_config__scheduler_config__policy": "fcfs"}, "'fcfs'"),
        ({"vllm_config__speculative_config": object()}, "speculative"),
        ({"vllm_config__lora_config": object()}, "LoRA"),
        ({"vllm_config__model_config__is_encoder_decoder": True}, "encoder"),
        ({"vllm_config__model_config__supports_multimodal_inputs": True}, "media"),
        ({"vllm_config__model_config__runner_type": "pooling"}, "pooling"),
        ({"vllm_config__parallel_config__decode_context_parallel_size": 2}, "context parallel"),
        ({"vllm_config__ec_transfer_config": object()}, "encoder-cache"),
        ({"vllm_config__parallel_config__prefill_context_parallel_size": 2}, "context parallel"),
        ({"vllm_config__kv_transfer_config": None}, "HeadwaySwap"),
        ({"vllm_config__kv_transfer_config__kv_connector": "OffloadingConnector"}, "HeadwaySwap"),
        ({"kv_cache_config__kv_cache_groups": [1, 2]}, "2 KV cache groups"),
        ({"vllm_config__scheduler_config__async_scheduling": True}, "async scheduling"),
        ({"vllm_config__use_v2_model_runner": True}, "Model Runner V2"),
        ({"vllm_config__parallel_config__data_parallel_size": 2}, "data parallelism"),
    ],
)
def test_what_is_not_supported_is_refused_in_one_line(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse(unsupported(set_up(**changes)))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ([], []),
        (["--api-server-count", "1"], []),
        (["--api-server-count", "2"], ["--api-server-count"]),
        (["--headless"], ["--headless"]),
        (["--grpc"], ["--grpc"]),
    ],
)
def test_only_one_http_server_is_started(options: list[str], refused: list[str]) -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    reasons = unsupported_server(parser.parse_args(["model", *options]))
    assert [reason.partition(":")[0] for reason in reasons] == refused


def test_a_sliding_window_is_refused() -> None:
    scheduler = set_up()
    spec = FullAttentionSpec(
        block_size=32, num_kv_heads=4, head_size=32, dtype="float32", sliding_window=128
    )
    scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec = spec
    assert any("sliding" in reason for reason in unsupported(scheduler))


def test_a_cache_that_is_not_of_full_attention_is_refused() -> None:
    scheduler = set_up()
    spec = SlidingWindowSpec(
        block_size=32, num_kv_heads=4, head_size=32, dtype="float32", sliding_window=128
    )
    scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec = spec
    assert unsupported(scheduler) == [
        "the KV cache is SlidingWindowSpec; only full attention is supported"
    ]


def test_a_platform_that_nobody_ran_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: False, device_type="rocm")
    monkeypatch.setattr(guards, "current_platform", rocm)
    assert unsupported(set_up()) == ["rocm is neither a CPU nor CUDA"]


def test_async_scheduling_needs_the_class_for_it_and_leave() -> None:
    scheduler = set_up(asynchronous=True)
    assert isinstance(scheduler, AsyncScheduler)
    assert any("no test has run it" in reason for reason in unsupported(scheduler))
    allowed = Settings(allowed=frozenset({"async-scheduling"})).to_extra()
    scheduler.vllm_config.kv_transfer_config.kv_connector_extra_config = allowed
    assert unsupported(scheduler) == []
    plain = set_up()
    plain.vllm_config.scheduler_config.async_scheduling = True
    plain.vllm_config.kv_transfer_config.kv_connector_extra_config = allowed
    assert any("engines without it" in reason for reason in unsupported(plain))
