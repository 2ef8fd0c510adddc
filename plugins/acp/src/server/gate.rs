//! Asking a client whether a tool call may run.

use agent_client_protocol::v1::schema::{
    self as acp, PermissionOption, PermissionOptionKind, RequestPermissionOutcome,
    RequestPermissionRequest, SessionUpdate, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields,
};
use futures::{FutureExt, future::BoxFuture};
use playhouse_messages::event::StepAt;
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    tool::{Approval, ApprovalGate, ToolCallContext},
};

use super::{
    seat::{Line, Progress},
    updates::call_id,
};

const ALLOW: &str = "allow-once";
const REJECT: &str = "reject-once";

/// Asks the client of a session about calls of its agent, and of no other: nobody approves what
/// sub-agents ask for.
pub(super) struct Gate {
    pub(super) agent: Agent,
    pub(super) line: Line,
    pub(super) progress: Progress,
    /// The client is leaving: it is not asked any more.
    pub(super) closing: CancelToken,
}

impl ApprovalGate for Gate {
    fn ask(&self, call: ToolCallContext, reason: Option<String>) -> BoxFuture<'static, Approval> {
        if call.agent() != Some(&self.agent) {
            return futures::future::ready(Approval::Unavailable).boxed();
        }
        let (line, progress, closing) =
            (self.line.clone(), self.progress.clone(), self.closing.clone());
        let log = self.agent.session().log();
        let session = acp::SessionId::new(self.agent.id().as_str());
        async move {
            let asked = async {
                // The client hears of the call before it is asked about it.
                progress.reaches(log.len()).await;
                let id = call_id(call.at().unwrap_or(StepAt { turn: 0, step: 0 }), call.call_id());
                let question = question(&session, &id, &call, reason);
                // Dropped with the call, the request is withdrawn.
                let answer = line.client.send_request(question).block_task().await;
                let approval = match answer {
                    Ok(answer) => approved(&answer.outcome),
                    Err(_) if line.client.is_incoming_closed() => Approval::Cancelled,
                    Err(error) => {
                        tracing::warn!(%error, "the client did not answer a request for permission");
                        Approval::Unavailable
                    }
                };
                if approval == Approval::AllowedOnce {
                    let fields = ToolCallUpdateFields::new().status(ToolCallStatus::InProgress);
                    let update = SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, fields));
                    // A client that is gone is noticed by whoever tells it of events.
                    let _ = line.tell(&session, update).await;
                }
                approval
            };
            closing.race(asked).await.unwrap_or(Approval::Cancelled)
        }
        .boxed()
    }
}

fn question(
    session: &acp::SessionId,
    id: &acp::ToolCallId,
    call: &ToolCallContext,
    reason: Option<String>,
) -> RequestPermissionRequest {
    let title = match reason {
        Some(reason) => format!("{}: {reason}", call.name()),
        None => call.name().to_owned(),
    };
    let fields = ToolCallUpdateFields::new()
        .title(title)
        .name(call.name().to_owned())
        .status(ToolCallStatus::Pending)
        .raw_input(call.arguments().clone());
    let options = vec![
        PermissionOption::new(ALLOW, "Allow once", PermissionOptionKind::AllowOnce),
        PermissionOption::new(REJECT, "Reject", PermissionOptionKind::RejectOnce),
    ];
    RequestPermissionRequest::new(session.clone(), ToolCallUpdate::new(id.clone(), fields), options)
}

fn approved(outcome: &RequestPermissionOutcome) -> Approval {
    match outcome {
        RequestPermissionOutcome::Cancelled => Approval::Cancelled,
        RequestPermissionOutcome::Selected(chosen) if &*chosen.option_id.0 == ALLOW => {
            Approval::AllowedOnce
        }
        _ => Approval::Rejected,
    }
}

#[cfg(test)]
mod tests {
    use agent_client_protocol::v1::schema::SelectedPermissionOutcome;

    use super::*;

    #[test]
    fn only_the_option_that_allows_allows() {
        let chosen = |id: &'static str| {
            RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(id))
        };
        assert_eq!(approved(&chosen(ALLOW)), Approval::AllowedOnce);
        assert_eq!(approved(&chosen(REJECT)), Approval::Rejected);
        assert_eq!(approved(&chosen("allow-always")), Approval::Rejected);
        assert_eq!(approved(&RequestPermissionOutcome::Cancelled), Approval::Cancelled);
    }
}
