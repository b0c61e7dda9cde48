// Element-wise work on activations and logits. Included once per instruction set.

namespace headway::HEADWAY_ISA_NS {
namespace {

void rope(float* x, const float* cos, const float* sin, int half, float scale) {
  const Vec s = Vec::set1(scale);
  for (int i = 0; i < half; i += Vec::W) {
    const Vec a = Vec::load(x + i), b = Vec::load(x + half + i);
    const Vec c = Vec::load(cos + i), n = Vec::load(sin + i);
    ((a * c - b * n) * s).store(x + i);
    ((b * c + a * n) * s).store(x + half + i);
  }
}

void head_norm(float* x, const float* weight, int n, float eps) {
  Vec sum = Vec::set1(0.0f);
  for (int i = 0; i < n; i += Vec::W) sum = fma(Vec::load(x + i), Vec::load(x + i), sum);
  const float mean = reduce_add(sum) / static_cast<float>(n);
  const Vec scale = Vec::set1(1.0f / __builtin_sqrtf(mean + eps));
  for (int i = 0; i < n; i += Vec::W)
    (Vec::load(x + i) * scale * Vec::load(weight + i)).store(x + i);
}

void add(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += Vec::W) (Vec::load(x + i) + Vec::load(y + i)).store(x + i);
}

void store_k(const float* x, uint16_t* k, int dim, int slot) {
  for (int d = 0; d < dim; d += Vec::W) {
    uint16_t h[Vec::W];
    Vec::load(x + d).store_half(h);
    for (int i = 0; i < Vec::W; ++i) k[(d + i) * kBlockTokens + slot] = h[i];
  }
}

void store_v(const float* x, uint16_t* v, int dim, int slot) {
  for (int d = 0; d < dim; d += Vec::W) Vec::load(x + d).store_half(v + slot * dim + d);
}

bool group_max(const float* x, int n, float* maxima) {
  uint32_t bad = 0;
  for (int g = 0; g < n; g += kLogitGroup) {
    Vec top = Vec::load(x + g);
    bad |= nans(top);
    for (int i = Vec::W; i < kLogitGroup; i += Vec::W) {
      const Vec v = Vec::load(x + g + i);
      bad |= nans(v);
      top = max(top, v);
    }
    maxima[g / kLogitGroup] = reduce_max(top);
  }
  return bad != 0;
}

float sum_exp(const float* x, int n, float peak) {
  const Vec shift = Vec::set1(peak);
  Vec sum[4] = {Vec::set1(0.0f), Vec::set1(0.0f), Vec::set1(0.0f), Vec::set1(0.0f)};
  for (int i = 0; i < n; i += 4 * Vec::W)
    for (int j = 0; j < 4; ++j) sum[j] = sum[j] + exp(Vec::load(x + i + j * Vec::W) - shift);
  return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

void exp_scaled(float* x, int n, float peak, float inverse_temperature, float* sums) {
  const Vec shift = Vec::set1(peak), scale = Vec::set1(inverse_temperature);
  for (int g = 0; g < n; g += kLogitGroup) {
    Vec sum = Vec::set1(0.0f);
    for (int i = 0; i < kLogitGroup; i += Vec::W) {
      const Vec e = exp((Vec::load(x + g + i) - shift) * scale);
      e.store(x + g + i);
      sum = sum + e;
    }
    sums[g / kLogitGroup] = reduce_add(sum);
  }
}

int gather(const float* x, int n, float limit, int32_t* ids) {
  const Vec low = Vec::set1(limit);
  int count = 0;
  for (int i = 0; i < n; i += Vec::W)
    for (uint32_t m = at_least(Vec::load(x + i), low); m != 0; m &= m - 1)
      ids[count++] = i + __builtin_ctz(m);
  return count;
}

}  // namespace
}  // namespace headway::HEADWAY_ISA_NS
