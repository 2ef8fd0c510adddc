use playhouse_messages::{id::SessionId, machine::Status};
use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};

use super::{
    draw::{Look, draw, short},
    link::Tree,
    state::{Ask, Command, Heard, Mode, State},
};
use crate::cli::agent_row::{AgentRow, Doing, Left};

const NOW: i64 = 1_000_000;

fn row(id: &str, parent: Option<&str>, label: Option<&str>) -> AgentRow {
    AgentRow {
        agent: id.into(),
        parent: parent.map(Into::into),
        depth: u32::from(parent.is_some()),
        label: label.map(str::to_owned),
        model: Some("scripted/team".to_owned()),
        status: Status::Idle,
        turn: 1,
        step: 1,
        doing: Doing::Resting,
        tools: Vec::new(),
        input_tokens: 10,
        output_tokens: 5,
        left: Vec::new(),
        next_turn: 0,
        next_step: 0,
        last_end: Some("completed".to_owned()),
        last_error: None,
        since: NOW - 5_000,
        events: 12,
    }
}

/// A lead that waits for two researchers, of which one asks its model and one has failed.
fn team() -> State {
    let lead = AgentRow {
        status: Status::Running,
        doing: Doing::Calling,
        tools: vec!["subagent".to_owned(), "subagent".to_owned()],
        input_tokens: 12_345,
        since: NOW - 75_000,
        ..row("lead", None, None)
    };
    let cost = AgentRow {
        status: Status::Running,
        doing: Doing::Asking,
        left: vec![
            Left { resource: "steps".to_owned(), left: 9, limit: 10 },
            Left { resource: "tokens".to_owned(), left: 400, limit: 1000 },
        ],
        next_turn: 1,
        next_step: 2,
        ..row("child-1", Some("lead"), Some("Research cost"))
    };
    let speed = AgentRow {
        last_end: Some("error".to_owned()),
        last_error: Some("error: NO_ADAPTER: no route".to_owned()),
        ..row("child-2", Some("lead"), Some("Research speed"))
    };
    let other = row("other", None, None);
    let mut state = State::new();
    hear(&mut state, true, [lead, cost, speed, other], []);
    state
}

fn hear<const N: usize>(
    state: &mut State,
    whole: bool,
    agents: [AgentRow; N],
    gone: impl IntoIterator<Item = &'static str>,
) {
    let gone = gone.into_iter().map(SessionId::from).collect();
    let tree = Tree { revision: 1, whole, agents: agents.into(), gone };
    assert_eq!(state.hear(Heard::Tree(tree)), []);
}

fn press(state: &mut State, keys: &str) -> Vec<Command> {
    let keys = keys.split(' ').map(|key| match key {
        "enter" => KeyCode::Enter,
        "esc" => KeyCode::Esc,
        "up" => KeyCode::Up,
        "down" => KeyCode::Down,
        "end" => KeyCode::End,
        "left" => KeyCode::Left,
        "right" => KeyCode::Right,
        "backspace" => KeyCode::Backspace,
        "space" => KeyCode::Char(' '),
        key => KeyCode::Char(key.chars().next().unwrap()),
    });
    keys.flat_map(|key| state.press(KeyEvent::new(key, KeyModifiers::NONE))).collect()
}

fn screen(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = Look { colours: false, now: NOW };
    terminal.draw(|frame| draw(frame, state, ".playhouse", look)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content.chunks(usize::from(width));
    let lines =
        lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn asks(agent: &str) -> [Ask; 4] {
    let agent = SessionId::from(agent);
    [
        Ask::Cancel { agent: agent.clone() },
        Ask::Interrupt { agent: agent.clone() },
        Ask::CancelTree { agent: agent.clone() },
        Ask::Steer { agent, text: "ok".to_owned() },
    ]
}

#[test]
fn the_screen_is_the_one_of_the_document() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/top.md")).unwrap();
    let shown = screen(&team(), 110, 16);
    assert!(page.contains(&shown), "docs/top.md shows another screen than this one:\n{shown}");
}

#[test]
fn a_small_screen_has_no_details_and_a_tiny_one_does_no_harm() {
    let state = team();
    assert!(screen(&state, 80, 20).contains("delegated by nobody"));
    assert!(!screen(&state, 80, 12).contains("delegated by"));
    for (width, height) in [(1, 1), (3, 2), (20, 5)] {
        screen(&state, width, height);
    }
}

#[test]
fn keys_move_fold_and_filter() {
    let mut state = team();
    let selected = |state: &State| state.selected.as_ref().unwrap().to_string();
    assert_eq!(selected(&state), "lead");
    press(&mut state, "down down down down");
    assert_eq!(selected(&state), "other");
    press(&mut state, "up up");
    assert_eq!(selected(&state), "child-1");
    // A folded parent says how many it hides.
    press(&mut state, "up left");
    assert!(screen(&state, 110, 10).contains("+ lead (2 below)"));
    press(&mut state, "right / s p e e");
    let shown = screen(&state, 110, 10);
    assert!(shown.contains("Research speed") && shown.contains("lead"), "{shown}");
    assert!(!shown.contains("Research cost") && !shown.contains("other"), "{shown}");
    assert!(shown.contains("show only: spee_"), "{shown}");
    press(&mut state, "esc");
    assert!(screen(&state, 110, 10).contains("Research cost"));
    // By status the one that runs comes first among its siblings, by tokens the dearest.
    press(&mut state, "o");
    let order: Vec<_> = state.lines().iter().map(|line| line.row.agent.to_string()).collect();
    assert_eq!(order, ["lead", "child-1", "child-2", "other"]);
}

#[test]
fn keys_steer_interrupt_and_cancel_and_a_tree_only_once_confirmed() {
    let mut state = team();
    let [cancel, interrupt, cancel_tree, steer] = asks("lead");
    assert_eq!(press(&mut state, "c"), [Command::Ask(cancel.clone())]);
    assert_eq!(press(&mut state, "i"), [Command::Ask(interrupt)]);
    assert_eq!(press(&mut state, "C"), []);
    assert!(screen(&state, 110, 10).contains("cancel lead and everything below it?"));
    assert_eq!(press(&mut state, "n"), []);
    assert_eq!(state.message, "nothing was cancelled");
    assert_eq!(press(&mut state, "C y"), [Command::Ask(cancel_tree)]);
    assert_eq!(press(&mut state, "s o x backspace k enter"), [Command::Ask(steer)]);
    assert_eq!(press(&mut state, "s o esc"), []);
    assert_eq!(press(&mut state, "s space enter"), []);
    assert_eq!(state.hear(Heard::Done(cancel)), []);
    assert_eq!(state.message, "lead: cancelled");
    assert_eq!(press(&mut state, "q"), [Command::Quit]);
    let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut state, "s");
    assert_eq!(state.press(ctrl_c), [Command::Quit]);
}

#[test]
fn a_log_is_read_to_its_end_and_followed() {
    use playhouse_messages::{
        event::{EventBody, NewEvent},
        message::Message,
    };
    let says = |seq, text: &str| {
        let body = EventBody::UserMessage(Message::user("m", text).into());
        NewEvent::append(body).at(seq, 0)
    };
    let mut state = team();
    let agent = SessionId::from("lead");
    let log = |from| Command::Ask(Ask::Log { agent: agent.clone(), from });
    assert_eq!(press(&mut state, "enter"), [log(0)]);
    let events = vec![says(0, "one\ntwo"), says(1, "three")];
    let heard = Heard::Log { agent: agent.clone(), events, next: Some(2) };
    assert_eq!(state.hear(heard), [log(2)], "there is more");
    let heard = Heard::Log { agent: agent.clone(), events: vec![says(2, "four")], next: None };
    assert_eq!(state.hear(heard), []);
    let shown = screen(&state, 60, 6);
    assert!(shown.contains("two\nuser: three\nuser: four\n"), "{shown}");
    // Whoever reads further up is not moved by what comes.
    press(&mut state, "up up");
    let before = screen(&state, 60, 6);
    let tick = state.tick();
    assert!(tick.contains(&log(3)), "{tick:?}");
    assert!(!state.tick().contains(&log(3)), "one question at a time");
    state.hear(Heard::Log { agent: agent.clone(), events: vec![says(3, "five")], next: None });
    assert_eq!(screen(&state, 60, 6), before);
    press(&mut state, "esc");
    assert_eq!(state.mode, Mode::Tree);
}

#[test]
fn what_changes_is_taken_and_what_is_gone_goes() {
    let mut state = team();
    press(&mut state, "down down");
    let done = AgentRow { turn: 2, ..row("child-1", Some("lead"), Some("Research cost")) };
    hear(&mut state, false, [done], ["child-2"]);
    assert_eq!(state.selected.as_ref().unwrap().as_str(), "lead", "the selected one is gone");
    assert_eq!(state.lines().len(), 3);
    assert_eq!(state.tick(), [Command::Ask(Ask::Tree { after: Some(1) })]);
    assert_eq!(state.tick(), [], "one look at a time");
    // A refusal is shown, and the next look asks again.
    let ask = Ask::Tree { after: Some(1) };
    state.hear(Heard::Refused { ask, text: "shutting down".to_owned() });
    assert!(screen(&state, 110, 6).contains("shutting down"));
    assert_eq!(state.tick().len(), 1);
    state.hear(Heard::Lost("the process has ended".to_owned()));
    let shown = screen(&state, 110, 6);
    assert!(shown.contains("the process has ended; what is shown is what it was"), "{shown}");
    assert_eq!(state.tick(), [], "nobody is there to ask");
}

#[test]
fn children_of_who_is_gone_stand_at_the_top() {
    let mut state = team();
    hear(&mut state, false, [], ["lead"]);
    let levels: Vec<_> = state.lines().iter().map(|line| line.level).collect();
    assert_eq!(levels, [0, 0, 0]);
}

#[test]
fn numbers_are_short() {
    assert_eq!([0, 9_999, 10_000, 12_345_678].map(short), ["0", "9999", "10k", "12M"]);
}
