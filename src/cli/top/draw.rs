//! The screen, drawn from the state alone.

use playhouse_messages::machine::Status;
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line as TextLine, Span},
    widgets::{Block, Borders, Clear, Paragraph, Row, Table, Wrap},
};

use super::{
    state::{LogView, Mode, State},
    tree::Line,
};
use crate::cli::agent_row::{AgentRow, Doing};

/// Below this many lines there is no room for details.
const DETAIL_FROM: u16 = 16;

const KEYS: &str = "enter log  s steer  i interrupt  c cancel  C cancel tree  space fold  / filter  \
                    o order  ? help  q quit";

const HELP: &str = "\
up, down, k, j     select an agent; page up, page down, home, end go further
space, left, right fold and unfold what is below it
enter, l           read its log; up and down scroll, esc leaves
s                  say something to it, which joins its running turn
i                  interrupt its turn; what waits in its mailbox stays
c                  cancel its turn, and drop what waits in its mailbox
C                  the same for it and everything below it, once confirmed
/                  show only what matches; esc in the filter shows all
o                  order siblings by age, status, tokens, mailbox
d                  show or hide the details
q, esc, ctrl-c     leave; the agents go on

any key closes this page";

/// How things look: colours are left out where nobody wants them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) colours: bool,
    /// Epoch milliseconds.
    pub(super) now: i64,
}

impl Look {
    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn dim(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, place: &str, look: Look) {
    let all = frame.area();
    let with_detail = state.detail && all.height >= DETAIL_FROM;
    let [head, body, detail, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(if with_detail { 6 } else { 0 }),
        Constraint::Length(1),
    ])
    .areas(all);
    header(frame, head, state, place, look);
    if let Mode::Log(log) = &state.mode {
        transcript(frame, body.union(detail), log, look);
    } else {
        table(frame, body, state, look);
        if with_detail {
            details(frame, detail, state, look);
        }
    }
    footer(frame, foot, state, look);
    if state.mode == Mode::Help {
        help(frame, all);
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, state: &State, place: &str, look: Look) {
    let (mut agents, mut running, mut input, mut output) = (0_usize, 0_usize, 0, 0);
    for row in state.rows() {
        agents += 1;
        running += usize::from(row.status == Status::Running);
        input += row.input_tokens;
        output += row.output_tokens;
    }
    let facts = format!(
        " {agents} agents, {running} running, {} tokens in, {} out, by {}",
        short(input),
        short(output),
        state.sort.name()
    );
    let mut spans = vec![
        Span::styled("playhouse top", Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(facts),
        Span::styled(format!("  {place}"), look.dim()),
    ];
    if !state.filter.is_empty() && state.mode != Mode::Filter {
        spans.push(Span::styled(format!("  /{}", state.filter), look.colour(Color::Yellow)));
    }
    frame.render_widget(TextLine::from(spans), area);
}

fn table(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let lines = state.lines();
    let shown = usize::from(area.height.saturating_sub(1));
    let at = lines.iter().position(|line| Some(&line.row.agent) == state.selected.as_ref());
    // The selected line stands in the middle, where there is enough around it.
    let start = at.unwrap_or(0).saturating_sub(shown / 2).min(lines.len().saturating_sub(shown));
    let rows = lines.iter().skip(start).take(shown).map(|line| {
        let row = Row::new(cells(line, look));
        let is_selected = Some(&line.row.agent) == state.selected.as_ref();
        if is_selected { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Fill(2),
        Constraint::Length(13),
        Constraint::Length(10),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Fill(2),
    ];
    let titles =
        ["AGENT", "STATUS", "TURN", "DOING", "TOKENS", "LEFT", "MAIL", "FOR", "LAST ERROR"];
    let titles = Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(titles).column_spacing(1), area);
}

fn cells(line: &Line<'_>, look: Look) -> [Span<'static>; 9] {
    let Line { row, level, folded, has_children } = line;
    let mark = match (has_children, folded) {
        (false, _) => "  ",
        (true, 0) => "- ",
        (true, _) => "+ ",
    };
    let mut name = format!("{}{mark}{}", "  ".repeat(*level), name(row));
    if *folded > 0 {
        name.push_str(&format!(" ({folded} below)"));
    }
    let status = match row.status {
        Status::Running => Span::styled("running", look.colour(Color::Green)),
        Status::Idle => Span::styled("idle", look.dim()),
    };
    let error = row.last_error.clone().unwrap_or_default();
    [
        Span::raw(name),
        status,
        Span::raw(turn(row)),
        Span::raw(doing(row)),
        Span::raw(format!("{} / {}", short(row.input_tokens), short(row.output_tokens))),
        left(row, look),
        Span::raw(mail(row)),
        Span::raw(age(row, look.now)),
        Span::styled(error, look.colour(Color::Red)),
    ]
}

fn details(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let block = Block::new().borders(Borders::TOP).border_style(look.dim());
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(row) = state.current() else { return };
    let parent = row.parent.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string);
    let end = row.last_end.as_deref().unwrap_or("-");
    let left = row.left.iter().map(|it| format!("{} of {} {}", it.left, it.limit, it.resource));
    let left = left.collect::<Vec<_>>().join(", ");
    let text = format!(
        "{}\nlabel {}  model {}  depth {}  delegated by {parent}\n\
         events {}  last turn's end {end}  waiting: {} turns, {} for the next step\n{}{}{}",
        row.agent,
        row.label.as_deref().unwrap_or("-"),
        row.model.as_deref().unwrap_or("-"),
        row.depth,
        row.events,
        row.next_turn,
        row.next_step,
        if left.is_empty() { left } else { format!("left: {left}  ") },
        if row.tools.is_empty() {
            String::new()
        } else {
            format!("runs {}  ", row.tools.join(", "))
        },
        row.last_error.as_deref().unwrap_or_default(),
    );
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }), inner);
}

fn transcript(frame: &mut Frame<'_>, area: Rect, log: &LogView, look: Look) {
    let title = format!(" {} ", log.agent);
    let block = Block::new().borders(Borders::TOP).border_style(look.dim()).title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let shown = usize::from(inner.height);
    let end = log.lines.len().saturating_sub(log.up).max(shown.min(log.lines.len()));
    let lines = log.lines.iter().take(end).skip(end.saturating_sub(shown));
    let lines: Vec<_> = lines.map(|line| TextLine::raw(line.as_str())).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

fn footer(frame: &mut Frame<'_>, area: Rect, state: &State, look: Look) {
    let line = match &state.mode {
        Mode::Filter => TextLine::raw(format!("show only: {}_", state.filter)),
        Mode::Steer { agent, text } => TextLine::raw(format!("to {agent}: {text}_")),
        Mode::Confirm { agent } => {
            let text =
                format!("cancel {agent} and everything below it? y, or any other key for no");
            TextLine::styled(text, look.colour(Color::Red))
        }
        _ => match (&state.lost, state.message.as_str()) {
            (Some(why), _) => {
                let text = format!("{why}; what is shown is what it was. q leaves");
                TextLine::styled(text, look.colour(Color::Red))
            }
            (None, "") => TextLine::styled(KEYS, look.dim()),
            (None, message) => TextLine::raw(message.to_owned()),
        },
    };
    frame.render_widget(line, area);
}

fn help(frame: &mut Frame<'_>, all: Rect) {
    let height = u16::try_from(HELP.lines().count() + 2).unwrap_or(u16::MAX).min(all.height);
    let width = 80.min(all.width);
    let area = Rect { x: (all.width - width) / 2, y: (all.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" keys ");
    frame.render_widget(Paragraph::new(HELP).block(block), area);
}

/// What an agent is called: its label, with enough of its id to tell it from others.
pub(super) fn name(row: &AgentRow) -> String {
    match &row.label {
        Some(label) => label.clone(),
        None => row.agent.to_string(),
    }
}

/// The turn and the step of it.
pub(super) fn turn(row: &AgentRow) -> String {
    if row.turn == 0 { "-".to_owned() } else { format!("{}.{}", row.turn, row.step) }
}

/// What an agent does, in words.
pub(super) fn doing(row: &AgentRow) -> String {
    match row.doing {
        Doing::Resting => row.last_end.clone().unwrap_or_else(|| "-".to_owned()),
        Doing::Between => "working".to_owned(),
        Doing::Asking => "asks the model".to_owned(),
        Doing::Calling => {
            let mut tools: Vec<_> = row.tools.iter().map(String::as_str).collect();
            tools.dedup();
            match row.tools.len() {
                1 => tools.join(", "),
                calls => format!("{} x{calls}", tools.join(", ")),
            }
        }
    }
}

/// The resource that is nearest to its end.
fn left(row: &AgentRow, look: Look) -> Span<'static> {
    let Some(least) = row.left.iter().min_by_key(|left| left.percent()) else {
        return Span::raw("-");
    };
    let text = format!("{}% {}", least.percent(), least.resource);
    match least.left {
        0 => Span::styled(text, look.colour(Color::Red)),
        _ => Span::raw(text),
    }
}

/// How much waits: turns, and what is for the next step.
pub(super) fn mail(row: &AgentRow) -> String {
    match (row.next_turn, row.next_step) {
        (0, 0) => "-".to_owned(),
        (turns, steps) => format!("{turns}+{steps}"),
    }
}

/// How long it has been so.
pub(super) fn age(row: &AgentRow, now: i64) -> String {
    if row.since == 0 {
        return "-".to_owned();
    }
    let secs = now.saturating_sub(row.since).max(0) / 1000;
    match secs {
        0..60 => format!("{secs}s"),
        60..3600 => format!("{}m{:02}", secs / 60, secs % 60),
        3600..86_400 => format!("{}h{:02}", secs / 3600, secs / 60 % 60),
        _ => format!("{}d", secs / 86_400),
    }
}

/// A number in few characters.
pub(super) fn short(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..10_000_000 => format!("{}k", number / 1000),
        _ => format!("{}M", number / 1_000_000),
    }
}
