"""Headway's policy inside vLLM: a scheduler class and a connector that swaps KV.

    headway.core      decides whom to take from, in which order, by swap or recompute
    planner, lines    the same rules over vLLM's requests, seats and blocks; pure, no vLLM
    scheduler         vLLM's scheduler with a pass before each of its steps
    connector         saves and restores exactly a victim's KV
    front             service tiers, headers and model aliases of the OpenAI server
    contract, guards  which vLLM this was tested with, and what it refuses

`planner`, `lines`, `book`, `classes` and `settings` import neither vLLM nor torch.
"""
