#include "marshal.hpp"

#include <limits>
#include <stdexcept>

namespace nb = nanobind;

namespace headway {

namespace {

nb::object intern(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }

nb::object field(nb::handle owner, const nb::object& name) {
  PyObject* value = PyObject_GetAttr(owner.ptr(), name.ptr());
  if (value == nullptr) throw nb::python_error();
  return nb::steal(value);
}

int64_t to_int(nb::handle value) {
  const long long i = PyLong_AsLongLong(value.ptr());
  if (i == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return i;
}

int32_t to_int32(nb::handle value) {
  const int64_t i = to_int(value);
  if (i < std::numeric_limits<int32_t>::min() || i > std::numeric_limits<int32_t>::max())
    throw std::invalid_argument("invalid plan: " + std::to_string(i) + " is out of range");
  return static_cast<int32_t>(i);
}

float to_float(nb::handle value) {
  const double x = PyFloat_AsDouble(value.ptr());
  if (x == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return static_cast<float>(x);
}

// The low 64 bits: seeds may be any integer.
uint64_t to_bits(nb::handle value) {
  const unsigned long long bits = PyLong_AsUnsignedLongLongMask(value.ptr());
  if (bits == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr)
    throw nb::python_error();
  return bits;
}

bool to_bool(nb::handle value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}

// A sequence as a borrowed array of items.
class Items {
 public:
  explicit Items(nb::handle sequence)
      : fast_(nb::steal(PySequence_Fast(sequence.ptr(), "a sequence is needed"))) {
    if (!fast_.is_valid()) throw nb::python_error();
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(fast_.ptr())); }
  nb::handle operator[](size_t i) const {
    return PySequence_Fast_GET_ITEM(fast_.ptr(), static_cast<Py_ssize_t>(i));
  }

 private:
  nb::object fast_;
};

std::vector<int32_t> to_int32s(nb::handle sequence, size_t first) {
  const Items items(sequence);
  if (items.size() < first) throw std::invalid_argument("invalid plan: block table too short");
  std::vector<int32_t> out(first);
  for (size_t i = 0; i < first; ++i) out[i] = to_int32(items[i]);
  return out;
}

std::vector<int32_t> to_int32s(nb::handle sequence) {
  return to_int32s(sequence, Items(sequence).size());
}

void check_token(int32_t token, int vocab) {
  if (token < 0 || token >= vocab)
    throw std::invalid_argument("invalid plan: token " + std::to_string(token));
}

}  // namespace

PlanReader::PlanReader()
    : opens_(intern("opens")),
      closes_(intern("closes")),
      swap_out_(intern("swap_out")),
      swap_in_(intern("swap_in")),
      chunks_(intern("chunks")),
      request_(intern("request")),
      prompt_(intern("prompt")),
      sampling_(intern("sampling")),
      seed_(intern("seed")),
      choice_(intern("choice")),
      temperature_(intern("temperature")),
      truncation_(intern("truncation")),
      top_k_(intern("top_k")),
      top_p_(intern("top_p")),
      min_p_(intern("min_p")),
      penalties_(intern("penalties")),
      repetition_(intern("repetition")),
      presence_(intern("presence")),
      frequency_(intern("frequency")),
      bias_(intern("bias")),
      logprobs_(intern("logprobs")),
      device_(intern("device")),
      host_(intern("host")),
      tokens_(intern("tokens")),
      start_(intern("start")),
      blocks_(intern("blocks")),
      num_blocks_(intern("num_blocks")),
      sample_(intern("sample")),
      get_(intern("get")),
      units_(intern("units")),
      kept_(intern("kept")) {}

void PlanReader::read(nb::handle plan, nb::handle masks, Runner& runner, Step& step) const {
  const nb::object opens = field(plan, opens_);
  const Items open_items(opens);
  for (size_t i = 0; i < open_items.size(); ++i) read_open(open_items[i], runner);
  const nb::object chunks = field(plan, chunks_);
  const Items chunk_items(chunks);
  step.chunks.reserve(chunk_items.size());
  std::exception_ptr malformed;
  try {
    step.units = to_int32(field(plan, units_));
    step.kept = to_int32(field(plan, kept_));
    read_copies(field(plan, swap_out_), step.outs);
    read_copies(field(plan, swap_in_), step.ins);
    for (size_t i = 0; i < chunk_items.size(); ++i)
      step.chunks.push_back(read_chunk(chunk_items[i], masks, runner));
  } catch (...) {
    malformed = std::current_exception();
  }
  // Closes come last; the chunks above hold what they need until the step has ended.
  const nb::object closes = field(plan, closes_);
  const Items close_items(closes);
  for (size_t i = 0; i < close_items.size(); ++i) runner.close(to_int(close_items[i]));
  if (malformed) std::rethrow_exception(malformed);
}

void PlanReader::read_open(nb::handle open, Runner& runner) const {
  const int vocab = runner.capacity().vocab;
  SamplingSpec spec = read_spec(field(open, sampling_), vocab);
  std::vector<int32_t> prompt = to_int32s(field(open, prompt_));
  for (const int32_t token : prompt) check_token(token, vocab);
  runner.open(to_int(field(open, request_)), std::move(spec), std::move(prompt));
}

SamplingSpec PlanReader::read_spec(nb::handle sampling, int vocab) const {
  SamplingSpec spec;
  spec.seed = to_bits(field(sampling, seed_));
  spec.choice = to_bits(field(sampling, choice_));
  spec.temperature = to_float(field(sampling, temperature_));
  const nb::object truncation = field(sampling, truncation_);
  spec.top_k = to_int32(field(truncation, top_k_));
  spec.top_p = to_float(field(truncation, top_p_));
  spec.min_p = to_float(field(truncation, min_p_));
  const nb::object penalties = field(sampling, penalties_);
  spec.repetition = to_float(field(penalties, repetition_));
  spec.presence = to_float(field(penalties, presence_));
  spec.frequency = to_float(field(penalties, frequency_));
  spec.logprobs = to_int32(field(sampling, logprobs_));
  const nb::object bias = field(sampling, bias_);
  const Items pairs(bias);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Items pair(pairs[i]);
    if (pair.size() != 2) throw std::invalid_argument("invalid plan: bias");
    const int32_t token = to_int32(pair[0]);
    check_token(token, vocab);
    spec.bias.emplace_back(token, to_float(pair[1]));
  }
  return spec;
}

void PlanReader::read_copies(nb::handle copies, std::vector<Copy>& out) const {
  const Items items(copies);
  for (size_t i = 0; i < items.size(); ++i)
    out.push_back({to_int32(field(items[i], device_)), to_int32(field(items[i], host_))});
}

Chunk PlanReader::read_chunk(nb::handle chunk, nb::handle masks, Runner& runner) const {
  Chunk c;
  const nb::object request = field(chunk, request_);
  c.request = to_int(request);
  c.sequence = runner.find(c.request);
  c.tokens = to_int32s(field(chunk, tokens_));
  c.start = to_int32(field(chunk, start_));
  const int32_t blocks = to_int32(field(chunk, num_blocks_));
  if (blocks < 0) throw std::invalid_argument("invalid plan: negative block count");
  c.blocks = to_int32s(field(chunk, blocks_), static_cast<size_t>(blocks));
  c.sample = to_bool(field(chunk, sample_));
  if (!c.sample || nb::len(masks) == 0) return c;
  const nb::object mask = masks.attr(get_)(request);
  if (mask.is_none()) return c;
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(mask.ptr(), &bytes, &size) < 0) throw nb::python_error();
  c.mask.assign(bytes, bytes + size);
  if (c.mask.empty()) throw std::invalid_argument("invalid plan: empty mask");
  return c;
}

}  // namespace headway
