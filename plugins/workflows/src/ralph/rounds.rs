//! The workflow of the loop: round after round, until a report says that it is over.

use serde_json::{Value, json};

use super::{Report, ReportStatus};
use crate::{AgentRequest, Cx, Halt};

/// What a loop works on.
#[derive(Debug, Clone)]
pub(super) struct Loop {
    pub(super) objective: String,
    pub(super) rounds_max: u32,
    pub(super) handoff_chars_max: usize,
}

impl Loop {
    /// Runs rounds. A child that fails, or whose report is none, ends the loop with an error that names
    /// the round and shows the last good report.
    pub(super) async fn run(self, cx: Cx) -> Result<Value, Halt> {
        let mut last: Option<Report> = None;
        for round in 1..=self.rounds_max {
            let request = AgentRequest::new(self.prompt(round, last.as_ref()))
                .label(format!("round {round}"))
                .schema(Report::schema());
            let answer = cx.agent(request).await?;
            let report = match answer.is_null() {
                true => Err("its agent failed, or gave no report".to_owned()),
                false => Report::read(&answer, self.handoff_chars_max)
                    .map_err(|fault| format!("its report is none: {fault}")),
            };
            let report = report.map_err(|fault| {
                let handoff = shown(last.as_ref());
                Halt::new(format!("round {round} failed: {fault}. Last good report: {handoff}"))
            })?;
            let status = match report.status {
                ReportStatus::Continue => None,
                ReportStatus::Complete => Some("complete"),
                ReportStatus::Blocked => Some("blocked"),
            };
            if let Some(status) = status {
                return Ok(json!({"status": status, "roundsStarted": round, "report": report}));
            }
            last = Some(report);
        }
        let rounds = self.rounds_max;
        Ok(json!({"status": "budget-limited", "roundsStarted": rounds, "report": last}))
    }

    fn prompt(&self, round: u32, last: Option<&Report>) -> String {
        format!(
            "You are one worker in a sequence of fresh workers that pursue one objective. Work on it \
             yourself; do not call the tool ralph.\n\n\
             # Objective (it does not change)\n{}\n\n\
             # Round\n{round} of at most {}\n\n\
             # Report of the worker before you\n{}\n\n\
             # How to work\n\
             The workspace is the only memory: what was done is in its files. Look at them before you \
             believe the report, do the most useful next piece of work, and leave the workspace in a \
             state from which the next worker can go on.\n\n\
             # How to report\n\
             - status \"continue\": there is more to do; nextSteps says what, blocker is empty.\n\
             - status \"complete\": the whole objective is reached; evidence says how you verified it, \
             nextSteps and blocker are empty.\n\
             - status \"blocked\": nothing more can be done without help; blocker says why.\n\
             summary says what this round did. The report has at most {} characters.",
            self.objective,
            self.rounds_max,
            shown(last),
            self.handoff_chars_max,
        )
    }
}

fn shown(report: Option<&Report>) -> String {
    report
        .and_then(|report| serde_json::to_string(report).ok())
        .unwrap_or_else(|| "none".to_owned())
}
