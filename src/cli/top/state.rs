//! What is on the screen, and what a key does to it: no terminal, no socket, no clock.

use std::collections::{BTreeMap, BTreeSet};

use playhouse_messages::{event::Event, id::SessionId};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{
    link::Tree,
    tree::{self, Line, Sort},
};
use crate::cli::{agent_row::AgentRow, sessions::transcript};

/// Events of a log that are fetched when it is opened: its end.
const LOG_EVENTS: u64 = 1000;

/// What is asked of the process.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ask {
    /// What has changed of the tree since that revision.
    Tree { after: Option<u64> },
    /// End the agent's turn, and drop what waits.
    Cancel { agent: SessionId },
    /// The same of all below it too.
    CancelTree { agent: SessionId },
    /// End the agent's turn alone.
    Interrupt { agent: SessionId },
    /// Say something to it.
    Steer { agent: SessionId, text: String },
    /// Its log, from there on.
    Log { agent: SessionId, from: u64 },
}

/// What the process says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Heard {
    Tree(Tree),
    Log {
        agent: SessionId,
        events: Vec<Event>,
        next: Option<u64>,
    },
    Done(Ask),
    Refused {
        ask: Ask,
        text: String,
    },
    /// The process is gone; why.
    Lost(String),
}

/// What happens after a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Command {
    Ask(Ask),
    Quit,
}

/// What keys mean now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Mode {
    #[default]
    Tree,
    Help,
    /// A filter is typed.
    Filter,
    /// A message for an agent is typed.
    Steer {
        agent: SessionId,
        text: String,
    },
    /// A tree is cancelled once that is confirmed.
    Confirm {
        agent: SessionId,
    },
    Log(LogView),
}

/// A log that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogView {
    pub(super) agent: SessionId,
    pub(super) lines: Vec<String>,
    /// Lines below the last one that is shown.
    pub(super) up: usize,
    /// Where it goes on.
    from: u64,
    /// A question for more of it is under way.
    asked: bool,
}

/// The whole screen.
#[derive(Debug, Default)]
pub(super) struct State {
    rows: BTreeMap<SessionId, AgentRow>,
    revision: Option<u64>,
    collapsed: BTreeSet<SessionId>,
    pub(super) selected: Option<SessionId>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) mode: Mode,
    pub(super) detail: bool,
    /// What was done last, or went wrong.
    pub(super) message: String,
    /// Why nothing new is heard.
    pub(super) lost: Option<String>,
    /// A look at the tree is under way.
    looking: bool,
}

impl State {
    pub(super) fn new() -> Self {
        Self { detail: true, ..Self::default() }
    }

    /// The agents in the order in which they are shown.
    pub(super) fn lines(&self) -> Vec<Line<'_>> {
        tree::lines(&self.rows, &self.collapsed, &self.filter, self.sort)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = &AgentRow> {
        self.rows.values()
    }

    /// The agent that keys are about.
    pub(super) fn current(&self) -> Option<&AgentRow> {
        self.rows.get(self.selected.as_ref()?)
    }

    /// Time for another look. One at a time: a process that is slow is asked less often.
    pub(super) fn tick(&mut self) -> Vec<Command> {
        let mut asks = Vec::new();
        if self.lost.is_some() {
            return asks;
        }
        if !std::mem::replace(&mut self.looking, true) {
            asks.push(Command::Ask(Ask::Tree { after: self.revision }));
        }
        if let Mode::Log(log) = &mut self.mode
            && !std::mem::replace(&mut log.asked, true)
        {
            asks.push(Command::Ask(Ask::Log { agent: log.agent.clone(), from: log.from }));
        }
        asks
    }

    /// Takes what the process says.
    pub(super) fn hear(&mut self, heard: Heard) -> Vec<Command> {
        match heard {
            Heard::Tree(tree) => {
                self.looking = false;
                self.take(tree);
            }
            Heard::Log { agent, events, next } => {
                if let Mode::Log(log) = &mut self.mode
                    && log.agent == agent
                {
                    log.take(&events);
                    // More than one answer holds is asked for at once.
                    if next.is_some() {
                        log.asked = true;
                        return vec![Command::Ask(Ask::Log { agent, from: log.from })];
                    }
                }
            }
            Heard::Done(ask) => self.message = done(&ask),
            Heard::Refused { ask, text } => {
                match (&ask, &mut self.mode) {
                    (Ask::Tree { .. }, _) => self.looking = false,
                    (Ask::Log { .. }, Mode::Log(log)) => log.asked = false,
                    _ => {}
                }
                self.message = text;
            }
            Heard::Lost(why) => self.lost = Some(why),
        }
        Vec::new()
    }

    fn take(&mut self, tree: Tree) {
        self.revision = Some(tree.revision);
        if tree.whole {
            self.rows.clear();
        }
        for id in tree.gone {
            self.rows.remove(&id);
        }
        self.rows.extend(tree.agents.into_iter().map(|row| (row.agent.clone(), row)));
        self.collapsed.retain(|id| self.rows.contains_key(id));
        self.keep_selection();
    }

    /// Something that is shown is selected, if anything is.
    fn keep_selection(&mut self) {
        let shown = {
            let lines = self.lines();
            let kept = lines.iter().find(|line| Some(&line.row.agent) == self.selected.as_ref());
            kept.or(lines.first()).map(|line| line.row.agent.clone())
        };
        self.selected = shown;
    }

    /// Takes a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Vec<Command> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return vec![Command::Quit];
        }
        match std::mem::take(&mut self.mode) {
            Mode::Tree => self.in_tree(key.code),
            Mode::Help => Vec::new(),
            Mode::Filter => self.in_filter(key.code),
            Mode::Steer { agent, text } => self.in_steer(agent, text, key.code),
            Mode::Confirm { agent } => match key.code {
                KeyCode::Char('y' | 'Y') => vec![Command::Ask(Ask::CancelTree { agent })],
                _ => {
                    self.message = "nothing was cancelled".to_owned();
                    Vec::new()
                }
            },
            Mode::Log(log) => self.in_log(log, key.code),
        }
    }

    fn in_tree(&mut self, key: KeyCode) -> Vec<Command> {
        self.message.clear();
        let selected = self.selected.clone();
        match (key, selected) {
            (KeyCode::Char('q') | KeyCode::Esc, _) => return vec![Command::Quit],
            (KeyCode::Char('?' | 'h'), _) => self.mode = Mode::Help,
            (KeyCode::Char('/'), _) => self.mode = Mode::Filter,
            (KeyCode::Char('o'), _) => self.sort = self.sort.next(),
            (KeyCode::Char('d'), _) => self.detail = !self.detail,
            (KeyCode::Up | KeyCode::Char('k'), _) => self.step(-1),
            (KeyCode::Down | KeyCode::Char('j'), _) => self.step(1),
            (KeyCode::PageUp, _) => self.step(-10),
            (KeyCode::PageDown, _) => self.step(10),
            (KeyCode::Home, _) => self.step(isize::MIN),
            (KeyCode::End, _) => self.step(isize::MAX),
            (KeyCode::Left, Some(agent)) => drop(self.collapsed.insert(agent)),
            (KeyCode::Right, Some(agent)) => drop(self.collapsed.remove(&agent)),
            (KeyCode::Char(' '), Some(agent)) => {
                let was_collapsed = self.collapsed.remove(&agent);
                if !was_collapsed {
                    self.collapsed.insert(agent);
                }
            }
            (KeyCode::Char('c'), Some(agent)) => return vec![Command::Ask(Ask::Cancel { agent })],
            (KeyCode::Char('i'), Some(agent)) => {
                return vec![Command::Ask(Ask::Interrupt { agent })];
            }
            (KeyCode::Char('C'), Some(agent)) => self.mode = Mode::Confirm { agent },
            (KeyCode::Char('s'), Some(agent)) => {
                self.mode = Mode::Steer { agent, text: String::new() };
            }
            (KeyCode::Enter | KeyCode::Char('l'), Some(agent)) => {
                let events = self.rows.get(&agent).map_or(0, |row| row.events);
                let from = events.saturating_sub(LOG_EVENTS);
                let lines = Vec::new();
                let log = LogView { agent: agent.clone(), lines, up: 0, from, asked: true };
                self.mode = Mode::Log(log);
                return vec![Command::Ask(Ask::Log { agent, from })];
            }
            _ => {}
        }
        Vec::new()
    }

    fn step(&mut self, by: isize) {
        let lines = self.lines();
        let now = lines.iter().position(|line| Some(&line.row.agent) == self.selected.as_ref());
        let last = lines.len().saturating_sub(1);
        let next = now.unwrap_or(0).saturating_add_signed(by).min(last);
        let selected = lines.get(next).map(|line| line.row.agent.clone());
        self.selected = selected;
    }

    fn in_filter(&mut self, key: KeyCode) -> Vec<Command> {
        match key {
            KeyCode::Enter => {}
            KeyCode::Esc => self.filter.clear(),
            key => {
                edit(&mut self.filter, key);
                self.mode = Mode::Filter;
            }
        }
        self.keep_selection();
        Vec::new()
    }

    fn in_steer(&mut self, agent: SessionId, mut text: String, key: KeyCode) -> Vec<Command> {
        match key {
            KeyCode::Esc => Vec::new(),
            KeyCode::Enter if text.trim().is_empty() => Vec::new(),
            KeyCode::Enter => vec![Command::Ask(Ask::Steer { agent, text })],
            key => {
                edit(&mut text, key);
                self.mode = Mode::Steer { agent, text };
                Vec::new()
            }
        }
    }

    fn in_log(&mut self, mut log: LogView, key: KeyCode) -> Vec<Command> {
        let up = log.up;
        log.up = match key {
            KeyCode::Esc | KeyCode::Char('q') | KeyCode::Left => return Vec::new(),
            KeyCode::Up | KeyCode::Char('k') => up + 1,
            KeyCode::Down | KeyCode::Char('j') => up.saturating_sub(1),
            KeyCode::PageUp => up + 10,
            KeyCode::PageDown => up.saturating_sub(10),
            KeyCode::Home => usize::MAX,
            KeyCode::End => 0,
            _ => up,
        };
        log.up = log.up.min(log.lines.len().saturating_sub(1));
        self.mode = Mode::Log(log);
        Vec::new()
    }
}

impl LogView {
    fn take(&mut self, events: &[Event]) {
        self.asked = false;
        for event in events {
            self.from = event.seq + 1;
            let lines = transcript::lines(event);
            let lines = lines.iter().flat_map(|text| text.lines().map(str::to_owned));
            let before = self.lines.len();
            self.lines.extend(lines);
            // Whoever reads further up stays there.
            if self.up > 0 {
                self.up += self.lines.len() - before;
            }
        }
    }
}

fn edit(text: &mut String, key: KeyCode) {
    match key {
        KeyCode::Char(c) => text.push(c),
        KeyCode::Backspace => drop(text.pop()),
        _ => {}
    }
}

fn done(ask: &Ask) -> String {
    match ask {
        Ask::Cancel { agent } => format!("{agent}: cancelled"),
        Ask::CancelTree { agent } => format!("{agent} and all below it: cancelled"),
        Ask::Interrupt { agent } => format!("{agent}: interrupted"),
        Ask::Steer { agent, .. } => format!("{agent}: told"),
        Ask::Tree { .. } | Ask::Log { .. } => String::new(),
    }
}
