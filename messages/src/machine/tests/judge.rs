//! What must hold of a session once nothing moves, whatever happened to it.

use std::{collections::HashMap, sync::Arc};

use super::{
    lives::Run,
    rig::{Rig, Sent},
};
use crate::{
    candidate::Candidate,
    config::{HeaderReason, SystemPromptUpdate},
    event::{Event, EventBody, InboxTarget, Seq, TurnEndReason},
    history::History,
    id::MessageId,
    invariants::{Fate, Fates, check},
    log::Log,
    machine::Status,
    message::Role,
    repair::interrupted_closers,
    request::FrozenRequest,
    session_state::SessionState,
    surface::IMAGE_OFFLOAD,
};

impl Run {
    pub fn judge(&self) {
        let rig = &self.rig;
        assert!(rig.machine.is_idle(), "{:?}", rig.machine);
        assert!(rig.is_balanced(), "the turn ends");
        if let Some(last) = rig.statuses.last() {
            assert_eq!(*last, Status::Idle, "invariant 43");
        }
        check(rig.core.log()).unwrap();
        self.judge_reports();
        self.judge_repairs();
        self.judge_senders();
        if !self.life.reordered && self.crashes == 0 {
            self.prompts_run_in_order();
        }
        let reread = judge_log(rig.core.log(), rig.state());
        judge_requests(rig, &reread, self.life.from);
    }

    /// Nothing that the loop appends is refused but by those who want it so.
    fn judge_reports(&self) {
        let expected = ["X", "Y", "P", "UNKNOWN", "ABORTED"];
        for (.., failure) in &self.rig.reports {
            let wanted = failure.message.contains("refused by validator \"refuse\"");
            let known = wanted || expected.contains(&&*failure.code);
            assert!(known, "{failure:?}");
        }
    }

    /// 11, and 12 as the log shows it: a crash interrupts one turn at most.
    fn judge_repairs(&self) {
        let log = self.rig.core.log();
        assert!(interrupted_closers(log, None).is_empty(), "invariant 11");
        let interrupted = log.iter().filter(|event| match &event.body {
            EventBody::TurnEnd(end) => {
                matches!(end.reason, TurnEndReason::Interrupted | TurnEndReason::Forked)
            }
            _ => false,
        });
        assert!(interrupted.count() <= self.crashes, "invariant 12");
    }

    /// 39 and 46.
    fn judge_senders(&self) {
        let (rig, life) = (&self.rig, &self.life);
        let fates = Fates::of(rig.core.log());
        for (_, accepted) in &rig.accepted {
            let Ok(accepted) = accepted else { continue };
            assert!(fates.get(&accepted.id).is_some(), "invariant 39");
        }
        let refused = rig.accepted.iter().filter(|accepted| accepted.1.is_err()).count();
        assert!(refused <= life.again, "only a second send of an id is refused");
        assert_eq!(rig.accepted.len(), life.senders, "every sender is answered");
        for wake in &life.wakes {
            if fates.get(&wake.id) != Some(Fate::Pending) || life.disposed {
                continue;
            }
            let mut stops = rig.stops.iter();
            let stopped =
                stops.any(|(time, token)| *time > wake.time && wake.after_cancel != Some(*token));
            let cancelled = life.cancelled.iter().any(|time| *time > wake.time);
            assert!(stopped || cancelled, "invariant 46: {} never runs", wake.id);
        }
    }

    /// Invariant 40, as far as cancels and removals leave it: what is claimed of next-turn was
    /// inserted in that order.
    fn prompts_run_in_order(&self) {
        let mut inserted: HashMap<MessageId, usize> = HashMap::new();
        let mut pending: Vec<MessageId> = vec![];
        let mut last = None;
        for event in self.rig.core.log().iter() {
            let EventBody::InboxSpliced(splice) = &event.body else { continue };
            if splice.target != InboxTarget::NextTurn {
                continue;
            }
            let start = splice.start as usize;
            let gone = start..start + splice.removed_count as usize;
            for message in &splice.inserted {
                inserted.insert(message.id.clone(), inserted.len());
            }
            let new = splice.inserted.iter().map(|message| message.id.clone());
            let gone: Vec<_> = pending.splice(gone, new).collect();
            if splice.is_claim() {
                let claimed = inserted.get(&gone[0]);
                assert!(claimed > last.as_ref(), "invariant 40");
                last = claimed.copied();
            }
        }
    }
}

/// 13, 19 and 52; returns the log as a reader of its JSON has it.
fn judge_log(log: &Log, state: &SessionState) -> Log {
    let reread = log.iter().map(|event| {
        let text = event.to_json();
        let read = Event::from_json(&text).unwrap();
        assert_eq!(read.to_json(), text, "invariant 52");
        assert_eq!(read, **event, "invariant 52");
        Arc::new(read)
    });
    let reread: Log = reread.collect();
    let changes = log.iter().filter(|event| {
        let projects =
            matches!(&event.body, EventBody::Custom { kind, .. } if **kind == *IMAGE_OFFLOAD);
        projects || Candidate::from(&***event).is_replacement()
    });
    assert_eq!(state.surface().content_generation(), changes.count() as u64, "invariant 19");
    assert_eq!(state.history(), &History::derive(log, state.surface()), "invariant 13");
    reread
}

/// 17, 18 and 21 to 25, over the requests of an agent whose life began at `from`. `log` is the
/// session's, as it was read back.
fn judge_requests(rig: &Rig, log: &Log, from: Seq) {
    let mut state = SessionState::new();
    let mut events = log.iter();
    let mut before: Option<&Sent> = None;
    for sent in &rig.sent {
        for event in events.by_ref().take((sent.len - state.next_seq()) as usize) {
            state.advance(log, event).unwrap();
        }
        let rebuilt = FrozenRequest {
            header: state.requests().header().unwrap().clone(),
            messages: state.history().clone(),
            tool_history: state.tools().snapshot(),
        };
        assert_eq!(json(&sent.request), json(&rebuilt), "invariant 21");
        assert_eq!(sent.request.tool_history, rebuilt.tool_history, "invariant 21");
        assert_eq!(sent.generation, state.surface().content_generation(), "invariant 21");
        judge_header(sent, before, log, from);
        judge_prompt(sent);
        judge_context(sent, &state);
        before = Some(sent);
    }
    for event in events {
        state.advance(log, event).unwrap();
    }
    assert_eq!(&state, rig.state(), "invariant 13");
}

/// What a request says, byte for byte.
fn json(request: &FrozenRequest) -> String {
    let messages: Vec<_> = request.messages.messages().collect();
    serde_json::to_string(&(&*request.header, messages)).unwrap()
}

fn judge_header(sent: &Sent, before: Option<&Sent>, log: &Log, from: Seq) {
    let since = before.map_or(from, |before| before.len);
    let logged = headers(log, since..sent.len);
    assert!(logged.len() <= 1, "{logged:?}");
    let fresh = |reason| matches!(reason, HeaderReason::Initial | HeaderReason::Resume);
    let Some(before) = before else {
        let first = headers(log, 0..from).is_empty();
        let reason = if first { HeaderReason::Initial } else { HeaderReason::Resume };
        assert_eq!(logged.first().map(|header| header.0), Some(reason), "invariant 23");
        return;
    };
    assert!(logged.iter().all(|header| !fresh(header.0)), "invariant 23");
    if before.generation == sent.generation {
        let messages = &sent.request.messages;
        let prefix = messages.range(0..before.request.messages.len());
        assert!(prefix.eq(before.request.messages.iter()), "invariant 22");
    } else {
        let series = |(reason, series): &(_, bool)| *series || *reason == HeaderReason::Series;
        assert!(logged.iter().any(series), "invariant 24: {logged:?}");
    }
}

pub fn headers(log: &Log, range: std::ops::Range<Seq>) -> Vec<(HeaderReason, bool)> {
    let headers = log.range(range).filter_map(|event| match &event.body {
        EventBody::RequestHeader(data) => Some((data.reason, data.starts_series)),
        _ => None,
    });
    headers.collect()
}

/// 17 and 18.
pub fn judge_prompt(sent: &Sent) {
    let messages = sent.request.messages.messages();
    let prompts = messages.filter(|message| message.role == Role::System);
    let prompts: Vec<_> = prompts.map(|message| message.text()).collect();
    let last = prompts.last().cloned().unwrap_or_default();
    assert_eq!(*last, *sent.prompt, "invariant 17");
    if sent.prepared.system_prompt_update.is_none() {
        assert!(prompts.len() <= 1, "invariant 18");
    }
}

/// 25.
pub fn judge_context(sent: &Sent, state: &SessionState) {
    let context = state.requests().context().unwrap();
    let update: Option<SystemPromptUpdate> = sent.prepared.system_prompt_update;
    assert_eq!(
        (context.context_window, context.system_prompt_update, &context.model),
        (sent.prepared.context_window, update, &sent.request.header.config.model),
        "invariant 25"
    );
}
