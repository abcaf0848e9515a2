#include "scheduler/plan/auto_roles.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "ipc/fault_points.h"

namespace baton {

namespace {

/// Loads of one worker. Decoding presses from here on ...
constexpr double kFull = 0.8;
/// ... a side gives a worker if those that are left then have no more than this ...
constexpr double kSpare = 0.6;
/// ... and a lent worker stays away from its home while that could not do with this.
constexpr double kHome = 0.45;
/// Part of the queue that presses below which prompts are calm.
constexpr double kCalmQueue = 0.1;

bool prefills(Role role) { return role != Role::decode; }
bool decodes(Role role) { return role != Role::prefill; }

/// Since when something is so; 0: it is not.
void keep_since(TimeNs& since, bool is_so, TimeNs now) {
  if (!is_so) {
    since = 0;
  } else if (since == 0) {
    since = now;
  }
}

class Choice {
 public:
  Choice(const RoleRules& rules, const std::vector<RoleSeat>& seats, RoleWatch& watch, TimeNs now)
      : rules_(rules), seats_(seats), watch_(watch), now_(now), p_(watch.pressure) {}

  std::optional<RoleChange> make() {
    look();
    if (std::optional<RoleChange> change = mend()) return change;
    const bool flap = fault(Fault::roles_flap);
    if (!flap && now_ - watch_.changed < rules_.spacing()) return std::nullopt;
    if (lasts(watch_.decode_pressed, flap ? 0 : rules_.hold())) {
      if (auto change = best([&](const RoleSeat& s, Role to) { return helps_decode(s, to); }))
        return change;
    }
    if (lasts(watch_.prompts_pressed, flap ? 0 : rules_.hold())) {
      if (auto change = best([&](const RoleSeat& s, Role to) { return helps_prompts(s, to); }))
        return change;
    }
    return best([&](const RoleSeat& s, Role to) { return goes_home(s, to); });
  }

 private:
  void look() {
    const auto any = [&](bool (*does)(Role)) {
      return std::any_of(seats_.begin(), seats_.end(),
                         [&](const RoleSeat& s) { return does(s.role); });
    };
    const double queue = static_cast<double>(rules_.queue) * 1e-9;
    const double decode = decode_load_each(seats_);
    const bool flap = fault(Fault::roles_flap);
    keep_since(watch_.prompts_pressed, p_.queue_s >= queue, now_);
    keep_since(watch_.decode_pressed, decode >= kFull, now_);
    keep_since(watch_.prompts_calm, p_.queue_s <= kCalmQueue * queue || flap, now_);
    keep_since(watch_.decode_calm, decode < kFull || flap, now_);
    keep_since(watch_.nobody_decodes, !seats_.empty() && !any(decodes), now_);
    keep_since(watch_.nobody_prefills, !seats_.empty() && !any(prefills), now_);
  }

  bool lasts(TimeNs since, TimeNs least) const { return since != 0 && now_ - since >= least; }

  double decode_load_each(const std::vector<RoleSeat>& seats) const {
    const std::uint32_t n = decoders(seats);
    return n == 0 ? 0 : p_.decode_load / n;
  }

  std::vector<RoleSeat> after(const RoleSeat& seat, Role to) const {
    std::vector<RoleSeat> seats = seats_;
    seats[static_cast<std::size_t>(&seat - seats_.data())].role = to;
    return seats;
  }

  double prompt_load_after(const RoleSeat& seat, Role to) const {
    const double worth = prefill_worth(after(seat, to));
    return worth == 0 ? 0 : p_.prompt_load / worth;
  }

  /// Somebody is left who decodes, and who prefills; and whatever fitted those who decode still
  /// does, and does when the worker goes home.
  bool leaves_enough(const RoleSeat& seat, Role to) const {
    bool prefill = prefills(to);
    bool decode = decodes(to) || fault(Fault::last_decoder_turned);
    bool as_large = decodes(seat.role) == decodes(to);
    for (const RoleSeat& other : seats_) {
      if (&other == &seat) continue;
      prefill = prefill || prefills(other.role);
      decode = decode || decodes(other.role);
      as_large = as_large || (decodes(other.role) && other.blocks >= seat.blocks &&
                              other.tokens >= seat.tokens);
    }
    return prefill && decode && (as_large || fault(Fault::last_decoder_turned));
  }

  bool helps_decode(const RoleSeat& seat, Role to) const {
    if (prefills(to) && decodes(seat.role)) return false;  // it would decode no more than now
    return prompt_load_after(seat, to) <= kSpare;
  }

  bool helps_prompts(const RoleSeat& seat, Role to) const {
    if (decodes(to) && prefills(seat.role)) return false;
    if (decodes(to)) return watch_.decode_pressed == 0;
    return decode_load_each(after(seat, to)) <= kSpare;
  }

  bool goes_home(const RoleSeat& seat, Role to) const {
    if (to != seat.home) return false;
    const TimeNs calm = fault(Fault::roles_flap) ? 0 : rules_.dwell;
    if (to == Role::decode)
      return lasts(watch_.prompts_calm, calm) && prompt_load_after(seat, to) <= kHome;
    return lasts(watch_.decode_calm, calm) && decode_load_each(after(seat, to)) <= kHome;
  }

  /// Nobody is left for one side's work: one who was lent away from it goes home. (If none was,
  /// those who are left do both without another role, or wait as `no_decode` says.)
  std::optional<RoleChange> mend() const {
    const bool no_decode = lasts(watch_.nobody_decodes, rules_.hold());
    if (!no_decode && !lasts(watch_.nobody_prefills, rules_.hold())) return std::nullopt;
    const Role missing = no_decode ? Role::decode : Role::prefill;
    // One that decodes alone prefills as well: the last one stays.
    if (!no_decode && decoders(seats_) < 2) return std::nullopt;
    const auto lent = std::find_if(seats_.begin(), seats_.end(), [&](const RoleSeat& seat) {
      return seat.free && seat.home == missing;
    });
    if (lent == seats_.end()) return std::nullopt;
    return RoleChange{lent->worker, missing,
                      no_decode ? "nobody else decodes" : "nobody else prefills"};
  }

  /// Of those that fit and have kept their role for long enough: one that goes home, else one that
  /// is turned wholly; the one with the fewest sequences.
  template <typename Fits>
  std::optional<RoleChange> best(Fits fits) const {
    const RoleSeat* found = nullptr;
    Role role = Role::mixed;
    std::tuple<bool, bool, std::uint32_t> least;
    for (const RoleSeat& seat : seats_) {
      if (!seat.free || (now_ - seat.since < rules_.dwell && !fault(Fault::roles_flap))) continue;
      for (const Role to : {Role::prefill, Role::decode, Role::mixed}) {
        if (to == seat.role || !seat.roomy[static_cast<std::size_t>(to)]) continue;
        if (!leaves_enough(seat, to) || !fits(seat, to)) continue;
        const std::tuple rank(to != seat.home, to == Role::mixed, seat.sequences);
        if (found != nullptr && rank >= least) continue;
        found = &seat;
        role = to;
        least = rank;
      }
    }
    if (found == nullptr) return std::nullopt;
    return RoleChange{found->worker, role, why()};
  }

  std::string why() const {
    char line[160];
    std::snprintf(line, sizeof line,
                  "%.2f s of prompts wait, prompts take %.2f of %.1f workers, decoding %.2f of %u",
                  p_.queue_s, p_.prompt_load, prefill_worth(seats_), p_.decode_load,
                  decoders(seats_));
    return line;
  }

  const RoleRules& rules_;
  const std::vector<RoleSeat>& seats_;
  RoleWatch& watch_;
  const TimeNs now_;
  const RolePressure& p_;
};

}  // namespace

double prefill_worth(const std::vector<RoleSeat>& seats) {
  double only = 0;
  double both = 0;
  double decode = 0;
  for (const RoleSeat& seat : seats) {
    (seat.role == Role::prefill ? only : seat.role == Role::mixed ? both : decode) += 1;
  }
  return only + 0.5 * (only > 0 ? both : both + decode);
}

std::uint32_t decoders(const std::vector<RoleSeat>& seats) {
  return static_cast<std::uint32_t>(std::count_if(
      seats.begin(), seats.end(), [](const RoleSeat& seat) { return decodes(seat.role); }));
}

std::optional<RoleChange> choose_role(const RoleRules& rules, const std::vector<RoleSeat>& seats,
                                      RoleWatch& watch, TimeNs now) {
  return Choice(rules, seats, watch, now).make();
}

}  // namespace baton
