#include "workers/model/finite.h"

#include <cmath>

#include "workers/cpu/finite.h"
#include "workers/model/error.h"

namespace baton {

void refuse_element(const std::string& name, std::int64_t index, float value) {
  const char* what = std::isnan(value) ? "nan" : value > 0 ? "infinite" : "minus infinite";
  throw ModelError(name + ": element " + std::to_string(index) + " is " + what +
                   ": the checkpoint is damaged");
}

void check_finite(const cpu::MatrixSource& matrix) {
  const std::int64_t count = matrix.rows * matrix.columns;
  const std::int64_t at = cpu::first_not_finite(matrix.data, matrix.type, count);
  if (at < count) refuse_element(matrix.name, at, cpu::element(matrix.data, matrix.type, at));
}

void check_finite(const std::optional<cpu::NotFinite>& found) {
  if (found) refuse_element(found->name, found->element, found->value);
}

}  // namespace baton
