//! The tree of live agents, for who watches it: once whole, then what has changed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::agent::{Agent, AgentCell};
use serde::Deserialize;
use serde_json::json;

use super::methods::{Answer, Server};
use crate::cli::{
    agent_row::{Activity, AgentRow},
    rpc::wire::to_json,
};

/// Agents that are looked at before others may run.
const AT_ONCE: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TreeParams {
    /// The revision of the last answer: only what has changed since is told.
    after: Option<u64>,
}

/// What a client was told of the tree. Each question costs the events that are new since the last
/// one, and a look at each agent.
#[derive(Default)]
pub(super) struct Board {
    revision: u64,
    cards: BTreeMap<SessionId, Card>,
}

struct Card {
    /// Which life of the session it is about; it keeps none.
    life: Weak<AgentCell>,
    activity: Activity,
    row: AgentRow,
}

/// What has changed since the last look.
#[derive(Default)]
struct News {
    rows: Vec<AgentRow>,
    gone: Vec<SessionId>,
}

impl Board {
    /// Looks at these agents, who are all that live.
    async fn look(&mut self, agents: Vec<Agent>) -> News {
        self.revision += 1;
        let mut news = News::default();
        let mut before = std::mem::take(&mut self.cards);
        for (number, agent) in agents.into_iter().enumerate() {
            if number % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            // Another life of the same session begins anew.
            let life = Arc::downgrade(agent.cell());
            let known = before.remove(agent.id()).filter(|card| card.life.ptr_eq(&life));
            let (mut activity, told) = match known {
                Some(card) => (card.activity, Some(card.row)),
                None => (Activity::default(), None),
            };
            let log = agent.session().log();
            log.range(activity.read..log.len()).for_each(|event| activity.apply(event));
            let row = activity.row(&agent);
            if told.as_ref() != Some(&row) {
                news.rows.push(row.clone());
            }
            self.cards.insert(agent.id().clone(), Card { life, activity, row });
        }
        news.gone = before.into_keys().collect();
        news
    }

    fn whole(&self) -> News {
        News { rows: self.cards.values().map(|card| card.row.clone()).collect(), gone: Vec::new() }
    }
}

impl Server {
    /// What has changed of the tree since this client asked last, or all of it.
    pub(super) async fn tree(&self, params: TreeParams) -> Answer {
        // Requests are polled where they are read first; a look at many agents is not for there.
        tokio::task::yield_now().await;
        let mut board = self.board.lock().await;
        let known = params.after == Some(board.revision) && board.revision > 0;
        let mut news = board.look(self.desk.harness.agents()).await;
        if !known {
            news = board.whole();
        }
        let News { rows, gone } = news;
        let about = json!({"revision": board.revision, "whole": !known, "gone": gone});
        let (about, rows) = (about.to_string(), to_json(&rows));
        Ok(format!(r#"{},"agents":{rows}}}"#, &about[..about.len() - 1]))
    }
}
