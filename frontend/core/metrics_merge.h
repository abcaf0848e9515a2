// Several models' metrics as one text: Prometheus wants all lines of a metric in one place.
#pragma once

#include <string>
#include <vector>

namespace baton {

/// `texts`: as Metrics::expose() makes them. Metrics come in the order in which they are met first,
/// the lines of each in the order of the texts. One text stays what it is.
std::string merge_metrics(const std::vector<std::string>& texts);

}  // namespace baton
