#include "frontend/core/scheduler_client.h"

#include <utility>
#include <variant>

#include "ipc/codec.h"

namespace baton {

SchedulerClient::SchedulerClient(std::unique_ptr<ClientChannel> channel)
    : channel_(std::move(channel)) {}

void SchedulerClient::send(const FrontendMessage& message) {
  std::visit([this](const auto& m) { encode(m, bytes_); }, message);
  if (channel_->send(bytes_) == SendResult::ok) {
    ++counters_.sent;
  } else {
    ++counters_.unsent;
  }
}

std::optional<ToFrontend> SchedulerClient::receive() {
  while (channel_->receive(bytes_)) {
    Result<ToFrontend> message = decode_to_frontend(bytes_);
    if (message.ok()) {
      ++counters_.received;
      return std::move(message).value();
    }
    ++counters_.undecodable;
    error_ = message.status().message();
  }
  return std::nullopt;
}

std::string SchedulerClient::take_error() { return std::exchange(error_, {}); }

}  // namespace baton
