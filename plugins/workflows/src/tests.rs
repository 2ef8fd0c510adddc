//! The engine over children that the test plays: scripts and native workflows alike.

use std::time::Duration;

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;
use serde_json::{Value, json};

use crate::{
    AgentOutcome, EngineConfig, Halt, Live, NoticeKind, WorkflowRequest, WorkflowStop,
    protocol::{Guest, HostMessage},
    rig::{Rig, limits, meta, until},
};

/// How the children ended, in the order of their calls.
fn outcomes(seen: &crate::rig::Seen) -> Vec<AgentOutcome> {
    let ends = seen.all().into_iter().filter_map(|notice| match notice {
        NoticeKind::AgentEnd { seq, outcome, .. } => Some((seq, outcome)),
        _ => None,
    });
    let ends: std::collections::BTreeMap<_, _> = ends.collect();
    ends.into_values().collect()
}

mod subagents {
    use super::*;

    mod ends;
    mod hostile;
    mod random;
    mod sandbox;
    mod scenarios;
}
