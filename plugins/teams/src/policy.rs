//! What a member is told of its team.

use playhouse_plugin_api::prompt::Section;

use crate::seat::Seat;

/// The section's name.
pub const POLICY_SECTION: &str = "team:policy";

/// Where it stands among the others.
pub const POLICY_ORDER: f64 = 60.0;

const LEAD: &str = "\
You alone start members (spawn_teammate), interrupt them and reassign tasks. Start one only for work \
that is worth an agent of its own; do small things yourself. Put work on the board with \
team_task_create, so that members can claim it.";

const TEAMMATE: &str = "\
Only the Lead (\"lead\") starts or interrupts members and reassigns tasks. Take work from the board: \
list it, claim a task that is ready, work on it, complete it. Release what you cannot finish. What \
only your transcript says, nobody else sees: tell the Lead your results.";

const ALL: &str = "\
send_message tells a member something without waking it; followup_task gives it a turn. A message that \
is accepted or queued will arrive: never send it again. A task is changed at the revision that you \
have read; if it is stale, read it again and decide anew. write_scopes are advice about files: heed \
warnings. A member that is idle or inactive does not act before it is given a turn. With nothing to \
do, end your turn rather than wait.";

pub(crate) fn section(seat: &Seat) -> Section {
    let (team, name) = (seat.id(), seat.name());
    let (role, own) = match seat.is_lead() {
        true => ("the Lead", LEAD),
        false => ("a teammate", TEAMMATE),
    };
    let text = format!("You are {role} of team {team}, named \"{name}\". {own} {ALL}");
    Section::text(POLICY_SECTION, POLICY_ORDER, text)
}
