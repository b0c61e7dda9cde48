"""The versions of vLLM this was tested with.

Newest first. The README says how to add one: what `headway vllm check` names has to be read, and
every test has to pass.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Version:
    """A minor version of vLLM whose tests passed.

    tested: the full version they passed with. fingerprints: of `contract.LEANED_ON`, in its order.
    """

    minor: str
    tested: str
    fingerprints: tuple[str, ...]


SUPPORTED = (
    Version(
        minor="0.32",
        tested="0.32.0",
        fingerprints=(
            "b4863433cf961b0e",  # Scheduler.__init__
            "7c9dcab5545e728a",  # Scheduler.schedule
            "41860b5a44c36ad3",  # Scheduler._preempt_request
            "19ae3b8ee997684f",  # Scheduler._free_request
            "053692ecf2d94530",  # Scheduler._request_blocks_can_be_freed
            "964002e226d87d3c",  # Scheduler._handle_blocked_waiting_request
            "868f7779b7ae37ce",  # Scheduler._update_after_schedule
            "a30e91900c2403f8",  # Scheduler.reset_prefix_cache
            "6a6136473e208053",  # Scheduler.make_stats
            "3e3f126d4dea7f0d",  # KVConnectorBase_V1.__init__
            "ef1dff3ee1a88d99",  # KVConnectorBase_V1.get_num_new_matched_tokens
            "3a0a128cb30107f3",  # KVConnectorBase_V1.update_state_after_alloc
            "6748c17342984f48",  # KVConnectorBase_V1.handle_preemptions
            "7a1b828b7769041c",  # KVConnectorBase_V1.start_load_kv
            "2788a3d017e596bc",  # RequestQueue
            "60bbb89bef9a7c54",  # KVCacheManager.allocate_slots
            "8669c8086c6fe2da",  # KVCacheManager.get_computed_blocks
            "aaa6f87a17f77065",  # KVConnectorModelRunnerMixin
            "c1887d29258e7318",  # GPUModelRunner._update_states
        ),
    ),
    Version(
        minor="0.31",
        tested="0.31.0",
        fingerprints=(
            "4133d13f1491a43c",  # Scheduler.__init__
            "6c2da531d105ee53",  # Scheduler.schedule
            "41860b5a44c36ad3",  # Scheduler._preempt_request
            "ceb9f10ad7c3354e",  # Scheduler._free_request
            "053692ecf2d94530",  # Scheduler._request_blocks_can_be_freed
            "964002e226d87d3c",  # Scheduler._handle_blocked_waiting_request
            "868f7779b7ae37ce",  # Scheduler._update_after_schedule
            "ce1ce3f1e8ee43b0",  # Scheduler.reset_prefix_cache
            "64a7c1e444d0c143",  # Scheduler.make_stats
            "3e3f126d4dea7f0d",  # KVConnectorBase_V1.__init__
            "ef1dff3ee1a88d99",  # KVConnectorBase_V1.get_num_new_matched_tokens
            "3a0a128cb30107f3",  # KVConnectorBase_V1.update_state_after_alloc
            "6748c17342984f48",  # KVConnectorBase_V1.handle_preemptions
            "7a1b828b7769041c",  # KVConnectorBase_V1.start_load_kv
            "2788a3d017e596bc",  # RequestQueue
            "c479d494a086cb7a",  # KVCacheManager.allocate_slots
            "8669c8086c6fe2da",  # KVCacheManager.get_computed_blocks
            "aaa6f87a17f77065",  # KVConnectorModelRunnerMixin
            "c1887d29258e7318",  # GPUModelRunner._update_states
        ),
    ),
)
