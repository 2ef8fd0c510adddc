//! What is made of what an agent says.

use agent_client_protocol::v1::schema::{
    self as acp, PermissionOption, PermissionOptionKind, RequestPermissionOutcome,
    SelectedPermissionOutcome,
};
use playhouse_messages::content::ContentBlock;
use playhouse_subagents::{ChildResult, StopReason};

use super::config::Permission;

/// The most text that is kept of an answer, in bytes.
pub(super) const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// The blocks that every agent takes: texts. Others are left out.
pub(super) fn prompt(content: &[ContentBlock]) -> Vec<acp::ContentBlock> {
    let texts = content.iter().filter_map(ContentBlock::as_text);
    texts.filter(|text| !text.is_empty()).map(acp::ContentBlock::from).collect()
}

/// The answer to a request for a permission.
pub(super) fn permit(
    permission: Permission,
    options: &[PermissionOption],
) -> RequestPermissionOutcome {
    let allows = |option: &&PermissionOption| {
        use PermissionOptionKind::{AllowAlways, AllowOnce};
        matches!(option.kind, AllowOnce | AllowAlways)
    };
    match (permission, options.iter().find(allows)) {
        (Permission::Allow, Some(option)) => {
            let chosen = SelectedPermissionOutcome::new(option.option_id.clone());
            RequestPermissionOutcome::Selected(chosen)
        }
        _ => RequestPermissionOutcome::Cancelled,
    }
}

/// How an agent's turn counts here.
pub(super) fn stopped(reason: acp::StopReason) -> ChildResult {
    match reason {
        acp::StopReason::EndTurn => ChildResult::new(StopReason::Completed),
        acp::StopReason::MaxTokens => ChildResult::new(StopReason::MaxTokens),
        acp::StopReason::Refusal => ChildResult::new(StopReason::Refusal),
        acp::StopReason::Cancelled => ChildResult::new(StopReason::Aborted),
        other => {
            let text = format!("the agent stopped for another reason: {other:?}");
            ChildResult::new(StopReason::Error).diagnosed(text)
        }
    }
}

/// What an agent has said so far, as much of it as is kept.
#[derive(Debug, Default)]
pub(super) struct Said {
    text: String,
    is_cut: bool,
}

impl Said {
    /// Adds the next piece.
    pub(super) fn push(&mut self, piece: &str) {
        if self.is_cut {
            return;
        }
        let mut end = piece.len().min(OUTPUT_BYTES_MAX - self.text.len());
        while !piece.is_char_boundary(end) {
            end -= 1;
        }
        self.is_cut = end < piece.len();
        self.text.push_str(&piece[..end]);
    }

    /// The result with what was said.
    pub(super) fn of(&self, result: ChildResult) -> ChildResult {
        if self.text.is_empty() {
            return result;
        }
        let result = result.saying(vec![ContentBlock::text(&self.text)]);
        if !self.is_cut {
            return result;
        }
        let cut = format!("its answer was cut at {OUTPUT_BYTES_MAX} bytes");
        let diagnostic = match &result.diagnostic {
            Some(diagnostic) => format!("{cut}; {diagnostic}"),
            None => cut,
        };
        result.diagnosed(diagnostic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_are_sent() {
        let image = ContentBlock::Image { attachment: serde_json::json!({}), offloaded: false };
        let sent = prompt(&[ContentBlock::text("a"), image, ContentBlock::text("")]);
        assert_eq!(sent, [acp::ContentBlock::from("a")]);
    }

    #[test]
    fn a_permission_goes_to_the_first_option_that_allows_if_any_may_be_given() {
        let option =
            |id: &'static str, kind| PermissionOption::new(id, format!("{id}, please"), kind);
        use PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
        let mixed =
            [option("no", RejectOnce), option("always", AllowAlways), option("once", AllowOnce)];
        let chosen = SelectedPermissionOutcome::new("always");
        let chosen = RequestPermissionOutcome::Selected(chosen);
        assert_eq!(permit(Permission::Allow, &mixed), chosen);
        assert_eq!(permit(Permission::Reject, &mixed), RequestPermissionOutcome::Cancelled);
        let none = [option("no", RejectOnce), option("never", RejectAlways)];
        assert_eq!(permit(Permission::Allow, &none), RequestPermissionOutcome::Cancelled);
    }

    #[test]
    fn a_long_answer_is_cut_on_a_character_and_says_so() {
        let mut said = Said::default();
        said.push("x");
        said.push(&"ä".repeat(OUTPUT_BYTES_MAX / 2));
        said.push("y");
        let result = said.of(stopped(acp::StopReason::MaxTurnRequests));
        assert_eq!(result.text().len(), OUTPUT_BYTES_MAX - 1);
        let diagnostic = result.diagnostic.unwrap();
        assert!(diagnostic.contains("was cut") && diagnostic.contains("MaxTurn"), "{diagnostic}");
    }

    mod subagents {
        use super::*;

        #[test]
        fn orchestration_1_11_stop_reasons_are_mapped_and_the_unknown_is_an_error() {
            for (theirs, ours) in [
                (acp::StopReason::EndTurn, StopReason::Completed),
                (acp::StopReason::MaxTokens, StopReason::MaxTokens),
                (acp::StopReason::Refusal, StopReason::Refusal),
                (acp::StopReason::Cancelled, StopReason::Aborted),
                (acp::StopReason::MaxTurnRequests, StopReason::Error),
            ] {
                assert_eq!(stopped(theirs).stop_reason, ours);
            }
        }
    }
}
