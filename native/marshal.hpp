// Reads headway.core.plan values; all functions need the interpreter lock.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "plan.hpp"
#include "runner.hpp"

namespace headway {

// Interned names of the fields, looked up once: a plan has hundreds of attributes to read.
class PlanReader {
 public:
  PlanReader();

  // Copies a StepPlan: applies opens and closes to the runner, resolves the chunks' sequences.
  // Throws std::exception (nanobind::python_error for a Python one) where the plan is malformed;
  // opens and closes have been applied then.
  void read(nanobind::handle plan, nanobind::handle masks, Runner& runner, Step& step) const;

 private:
  void read_open(nanobind::handle open, Runner& runner) const;
  SamplingSpec read_spec(nanobind::handle sampling, int vocab) const;
  void read_copies(nanobind::handle copies, std::vector<Copy>& out) const;
  Chunk read_chunk(nanobind::handle chunk, nanobind::handle masks, Runner& runner) const;

  nanobind::object opens_, closes_, swap_out_, swap_in_, chunks_, request_, prompt_, sampling_,
      seed_, choice_, temperature_, truncation_, top_k_, top_p_, min_p_, penalties_, repetition_,
      presence_, frequency_, bias_, logprobs_, device_, host_, tokens_, start_, blocks_,
      num_blocks_, sample_, get_, units_, kept_;
};

}  // namespace headway
