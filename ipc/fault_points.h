// Faults that a test puts back on purpose, to prove that the simulation finds them. In a product
// build `fault()` is constexpr false and costs nothing; only the simulator's fault build defines
// BATON_FAULTS.
#pragma once

#include <cstdint>

namespace baton {

enum class Fault : std::uint8_t {
  none,
  release_at_once,         // a freed block is handed out while a step in flight still names it
  no_term_check,           // messages of an ended term are believed
  lost_plan_unnoticed,     // a worker does not see a gap in the plan numbers
  block_final_too_early,   // a block is pulled before the step that fills it has ended
  piecemeal_reservation,   // target blocks are reserved chunk by chunk
  block_cached_too_early,  // others may name a block whose last token is not computed
  prefix_not_awaited,      // a prompt goes on before its pulled beginning has arrived
  copy_not_awaited,     // a block is read by another worker before the copy that fills it has ended
  copied_not_held,      // a block is handed out while the step that copies it to the host part runs
  pulled_over_unsaved,  // a block is given to a pull by the plan that copies it to the host part
  prefix_not_held,      // a cached block is handed out while another worker still reads it
  no_trials,            // a request that kills schedulers is given to every next one at once
  token_sent_twice,     // the front end takes a repeated token
  no_copy_on_write,     // two beams write to the block that they share
  no_suspects,          // nobody does alone what has killed workers under it
  slow_pull_lost,       // a pull that is only slow counts as one that was lost on its way
  hung_pull_excused,    // every step that ends gives a pull that hangs its time again
  any_progress_clears,  // a prompt computed again clears the deaths in decoding
  pulls_blame_nobody,   // a pull that kills its importer is nobody's
  compiles_blame_nobody,  // a grammar that kills its compiler is nobody's
  pulls_beside_suspects,  // a worker maps pools while it runs a suspect
  pulls_not_avoided,      // whose pulls have killed workers is pulled again
  no_late_blame,          // a death that is seen after its term ended is nobody's
  growth_not_reserved,    // what waits for its turn has its next block given to others
  small_pool_refuses,     // a worker refuses what a larger one could hold
  orphan_after_finish,    // an attempt that its client has left behind decodes to its end
  grammar_not_awaited,    // a row draws by a grammar that its worker is still compiling
  step_room_ignored,      // a plan has more tokens than its worker has room for
  trusted_too_early,  // of a dead worker's pool, what was sent and never answered counts as written
  lease_while_writer_lives,  // a pool is leased while the process before still writes to it
  other_layout_kept,         // a pool is kept for a process that reads its bytes differently
  no_grace,                  // a front end that may have a successor is lost with its process
  inherited_one_short,       // a successor asks for a token again that its client has
  orphans_decode_on,         // what a successor did not inherit runs to its end
  replaced_link_heard,       // a front end is still listened to when its successor has come
  roles_flap,                // a worker is turned at once by whatever is measured, and back again
  last_decoder_turned,       // nobody need be left who decodes when a worker is turned
  wait_not_told,             // the time that a request waits once more is in none of its parts
  return_not_lifted,         // a tenant that asked for nothing a while has saved up a claim
  replies_not_charged,       // a tenant's replies cost it nothing
  charged_again,             // a tenant pays once more for what is computed once more
  given_back_too_early,      // a window's last block is given back while it is still looked at
  hit_without_window,        // a prompt's beginning counts as found though a window's block is gone
  vector_not_kept,           // a vector that was lost on its way is not told again
  foreign_read_unfenced,     // another worker's block is given away while a step reads it
  extent_loss_ignored,       // a sequence goes on although a pool that it lies in was given up
  chunk_not_awaited,         // a row reads a chunk that another worker is still computing
  chunk_counted_alone,       // the last chunk of a prompt counts before those of others have come
  failed_chunk_counts,       // a chunk counts although its worker has waited in vain
  home_before_its_blocks,    // a gathered sequence goes on before all its blocks have arrived
  gathered_kept,             // blocks that a sequence was to be gathered in stay its own
  foreign_read_short,        // another worker's block is given away before the last step reads it
  moved_before_copies,       // a sequence moves to another worker while its host copies run
  last_leaver_forgotten,     // an empty fair queue does not remember which tenant left it last
  spoiled_pool_kept,         // a pool is kept although its writer has died of a fault
  given_role_forgotten,      // a worker's next process loses the role that an operator gave it
  older_role_kept,           // of two processes of a name the older one's role counts
  plan_without_limit,        // a plan takes in all that there is room for, whatever its bytes
  requests_blamed,           // a death is not one cause's if two requests have that cause
  gathered_from_absent,      // blocks are gathered out of a pool whose worker is away
  stale_prefix_node,         // a gathered sequence is entered behind another pool's content
  lane_loss_ignored,         // a prompt is spread on although one of its workers is away
  reserved_kept,             // blocks reserved in a pool stay so when its worker is away
  reads_kept,                // what others read in a pool that is given up stays in their lists
  unreachable_share,         // a sequence is to go on where its blocks cannot be read
  given_up_alone,            // a step that nobody waits for any more had one suspect alone
  got_on_ignored,            // whoever got on since was not there when the worker died
  attempt_reset,             // a successor numbers attempts from one again
  fault_unheard,             // a pool is read on though its process has died of a fault
  away_is_too_long,          // what two pools hold is refused while one of them is away
};

#ifdef BATON_FAULTS
inline Fault active_fault = Fault::none;
inline bool fault(Fault which) { return active_fault == which; }
#else
constexpr bool fault(Fault /*which*/) { return false; }
#endif

}  // namespace baton
