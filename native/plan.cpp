#include "plan.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <unordered_set>

#include "kernels/kernels.hpp"
#include "team.hpp"

namespace headway {

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("invalid plan: " + what);
}

void check_copies(const std::vector<Copy>& copies, const Capacity& capacity) {
  for (const Copy& copy : copies) {
    if (copy.device < 0 || copy.device >= capacity.kv_blocks)
      refuse("copy of device block " + std::to_string(copy.device));
    if (copy.host < 0 || copy.host >= capacity.host_blocks)
      refuse("copy of host block " + std::to_string(copy.host));
  }
}

void check_chunk(const Chunk& chunk, const Capacity& capacity) {
  const std::string of = " of request " + std::to_string(chunk.request);
  if (chunk.tokens.empty()) refuse("empty chunk" + of);
  if (chunk.start < 0 || chunk.end() > capacity.max_model_len)
    refuse("positions " + std::to_string(chunk.start) + " to " + std::to_string(chunk.end()) + of);
  if (chunk.blocks.size() * kBlockTokens < static_cast<size_t>(chunk.end()))
    refuse("block table too short for position " + std::to_string(chunk.end() - 1) + of);
  for (const int32_t block : chunk.blocks)
    if (block < 0 || block >= capacity.kv_blocks) refuse("block " + std::to_string(block) + of);
  for (const int32_t token : chunk.tokens)
    if (token < 0 || token >= capacity.vocab) refuse("token " + std::to_string(token) + of);
  if (!chunk.mask.empty() && chunk.mask.size() * 8 < static_cast<size_t>(capacity.vocab))
    refuse("mask shorter than the vocabulary" + of);
}

}  // namespace

void Step::check(const Capacity& capacity) {
  if (units < 0 || units > capacity.units)
    refuse(std::to_string(units) + " units of " + std::to_string(capacity.units));
  if (kept < 0 || static_cast<size_t>(kept) > chunks.size())
    refuse(std::to_string(kept) + " kept of " + std::to_string(chunks.size()) + " chunks");
  check_copies(outs, capacity);
  check_copies(ins, capacity);
  if (chunks.size() > static_cast<size_t>(capacity.max_seqs))
    refuse(std::to_string(chunks.size()) + " chunks for " + std::to_string(capacity.max_seqs) +
           " seats");
  std::unordered_set<int64_t> requests;
  std::unordered_set<int32_t> written;
  rows = 0;
  for (Chunk& chunk : chunks) {
    check_chunk(chunk, capacity);
    if (!requests.insert(chunk.request).second)
      refuse("two chunks of request " + std::to_string(chunk.request));
    for (int i = chunk.start / kBlockTokens; i <= (chunk.end() - 1) / kBlockTokens; ++i)
      if (!written.insert(chunk.blocks[static_cast<size_t>(i)]).second)
        refuse("block " + std::to_string(chunk.blocks[static_cast<size_t>(i)]) + " written twice");
    chunk.first_row = rows;
    rows += chunk.count();
  }
  if (rows > capacity.max_step_tokens)
    refuse(std::to_string(rows) + " tokens in a step of " +
           std::to_string(capacity.max_step_tokens));
}

void Step::start(std::shared_ptr<Team> team) { team_ = std::move(team); }

void Step::finish() {
  done_.store(true);
  if (team_) team_->dismiss();
}

bool Step::wait(double timeout_s, double patience_s) {
  const auto now = Team::Clock::now();
  const auto after = [now](double seconds) {
    constexpr double kForEver = 86400.0;  // a day; more would overflow the clock
    const std::chrono::duration<double> limit(seconds < 0 ? kForEver : std::min(seconds, kForEver));
    return now + std::chrono::duration_cast<Team::Clock::duration>(limit);
  };
  if (!done() && team_) team_->help(after(timeout_s), after(patience_s), done_);
  return done();
}

}  // namespace headway
