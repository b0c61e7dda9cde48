"""Requests that can't be served are refused at the door, by the name of the field."""

import math
from dataclasses import replace
from typing import Any

import pytest

from headway.core.plan import Penalties, Truncation
from headway.core.types import ServiceClass
from headway.engine.arrivals import check_request, core_requests
from headway.engine.options import ModelLimits
from headway.engine.types import GenerationRequest, SamplingParams, StopConditions
from headway.errors import InvalidRequestError, NeverFitsError
from headway.testing import make_capacity

LIMITS = ModelLimits(vocab_size=100, max_model_len=32, eos_ids=frozenset({0}))
GOOD = GenerationRequest([1, 2, 3])
NO_IDS: Any = [1.5]


def sampled(**fields: Any) -> GenerationRequest:
    return replace(GOOD, sampling=SamplingParams(**fields))


def stopped(**fields: Any) -> GenerationRequest:
    return replace(GOOD, stop=StopConditions(**fields))


BAD = [
    ("prompt", replace(GOOD, prompt=[])),
    ("prompt", replace(GOOD, prompt=[100])),
    ("prompt", replace(GOOD, prompt=[-1])),
    ("prompt", replace(GOOD, prompt=NO_IDS)),
    ("n", replace(GOOD, n=0)),
    ("n", replace(GOOD, n=9)),
    ("temperature", sampled(temperature=-0.1)),
    ("temperature", sampled(temperature=math.nan)),
    ("temperature", sampled(temperature=2.1)),
    ("top_k", sampled(truncation=Truncation(top_k=-1))),
    ("top_p", sampled(truncation=Truncation(top_p=0.0))),
    ("top_p", sampled(truncation=Truncation(top_p=1.1))),
    ("min_p", sampled(truncation=Truncation(min_p=-0.1))),
    ("presence_penalty", sampled(penalties=Penalties(presence=2.1))),
    ("frequency_penalty", sampled(penalties=Penalties(frequency=-2.1))),
    ("repetition_penalty", sampled(penalties=Penalties(repetition=0.0))),
    ("repetition_penalty", sampled(penalties=Penalties(repetition=1e-38))),
    ("repetition_penalty", sampled(penalties=Penalties(repetition=math.inf))),
    ("seed", sampled(seed=1 << 63)),
    ("logit_bias", sampled(bias={100: 1.0})),
    ("logit_bias", sampled(bias={1: math.nan})),
    ("logprobs", sampled(logprobs=21)),
    ("logprobs", sampled(logprobs=-2)),
    ("max_tokens", stopped(max_tokens=0)),
    ("max_tokens", stopped(max_tokens=-1)),
    ("max_tokens", stopped(max_tokens=2.5)),
    ("max_tokens", stopped(max_tokens=math.inf)),
    ("n", replace(GOOD, n=NO_IDS[0])),
    ("top_k", sampled(truncation=Truncation(top_k=NO_IDS[0]))),
    ("seed", sampled(seed=2.0)),
    ("logprobs", sampled(logprobs=1.0)),
    ("ignore_eos", stopped(ignore_eos="no")),
    ("stop", stopped(stop=[""])),
    ("stop", stopped(stop=["a"] * 17)),
    ("stop", stopped(stop=["a" * 1025])),
    ("stop_token_ids", stopped(stop_ids=[100])),
    ("deadline", stopped(deadline_s=0.0)),
    ("deadline", stopped(deadline_s=math.nan)),
]


@pytest.mark.parametrize(("param", "request_"), BAD)
def test_bad_value_is_refused_by_name(param: str, request_: GenerationRequest) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        check_request(request_, LIMITS, max_choices=8)
    assert caught.value.param == param


def test_longest_prompt_leaves_room_for_one_token() -> None:
    check_request(replace(GOOD, prompt=[1] * 31), LIMITS, max_choices=8)
    with pytest.raises(NeverFitsError):
        check_request(replace(GOOD, prompt=[1] * 32), LIMITS, max_choices=8)


@pytest.mark.parametrize(("asked", "given"), [(None, 29), (5, 5), (29, 29), (10**30, 29)])
def test_max_tokens_is_clamped_to_the_model_length(asked: int | None, given: int) -> None:
    check_request(stopped(max_tokens=asked), LIMITS, max_choices=8)
    (core,) = core_requests(stopped(max_tokens=asked), LIMITS, 4, 0, 0.0)
    assert core.limits.max_tokens == given


@pytest.mark.parametrize(
    ("asked", "given"), [(0, 0), (99, 99), (100, 100), (2**31, 100), (2**63, 100)]
)
def test_top_k_is_clamped_to_the_vocabulary(asked: int, given: int) -> None:
    """What an executor can't hold would fail the step, and everybody in it."""
    request = sampled(truncation=Truncation(top_k=asked, top_p=0.5, min_p=0.1))
    check_request(request, LIMITS, max_choices=8)
    (core,) = core_requests(request, LIMITS, 0, 0, 0.0)
    assert core.sampling.truncation == Truncation(given, 0.5, 0.1)


def test_choices_become_requests_of_one_group() -> None:
    request = replace(sampled(seed=-1, bias={7: 1.0, 3: 2.0}), n=3, tenant="t")
    choices = core_requests(request, LIMITS, 10, 5, 2.0)
    assert [c.id for c in choices] == [10, 11, 12]
    assert {c.group for c in choices} == {10}
    assert [c.sampling.choice for c in choices] == [0, 1, 2]
    assert {c.sampling.seed for c in choices} == {(1 << 63) - 1}
    assert choices[0].sampling.bias == ((3, 2.0), (7, 1.0))
    assert choices[0].arrival_s == 2.0 and choices[0].tenant == "t"
    assert choices[0].service_class is ServiceClass.STANDARD


def test_drawn_seed_is_used_where_none_is_given() -> None:
    (core,) = core_requests(GOOD, LIMITS, 0, 1234, 0.0)
    assert core.sampling.seed == 1234


def test_ends_of_a_request() -> None:
    request = stopped(stop_ids=[5], deadline_s=1.5)
    (core,) = core_requests(request, LIMITS, 0, 0, 10.0)
    assert core.limits.stop_ids == {0, 5} and core.limits.deadline_s == 11.5
    (core,) = core_requests(stopped(ignore_eos=True), LIMITS, 0, 0, 10.0)
    assert not core.limits.stop_ids and core.limits.deadline_s == math.inf


def test_pool_smaller_than_the_model_sets_the_length() -> None:
    capacity = make_capacity(kv_blocks=4, max_model_len=512)
    assert ModelLimits.from_capacity(capacity, frozenset()).max_model_len == 64
