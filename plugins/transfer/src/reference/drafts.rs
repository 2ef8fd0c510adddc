//! A log while it is rewritten: events come and go, and what names an event by its number follows it.

use playhouse_messages::event::Seq;
use serde_json::{Map, Value};

use crate::{
    import::Placed,
    report::{Note, Report},
};

/// An event on its way.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// The line that it comes from, or was made for.
    pub line: u64,
    /// Its number in the file; `None` for an event that the file does not have. Such a one names others
    /// by their new numbers.
    pub old: Option<Seq>,
    /// The event.
    pub event: Map<String, Value>,
}

impl Draft {
    pub(super) fn kind(&self) -> &str {
        self.event.get("type").and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn time(&self) -> i64 {
        self.event.get("time").and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn data(&self, key: &str) -> Option<&Value> {
        self.event.get("data")?.get(key)
    }

    pub(super) fn is_surface(&self) -> bool {
        self.event.contains_key("surfaceOp")
    }

    /// A new event beside this one, at its time.
    pub(super) fn beside(&self, kind: &str, data: Value) -> Self {
        let event = Map::from_iter([
            ("type".to_owned(), kind.into()),
            ("seq".to_owned(), 0.into()),
            ("time".to_owned(), self.time().into()),
            ("data".to_owned(), data),
        ]);
        Self { line: self.line, old: None, event }
    }
}

/// The new log, and where each old event went.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    out: Vec<Draft>,
    /// By old number: the event's place, or that of the one that holds it now.
    places: Vec<Option<usize>>,
    cut: Option<usize>,
}

impl Drafts {
    pub(super) fn len(&self) -> usize {
        self.out.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Draft> {
        self.out.iter()
    }

    pub(super) fn push(&mut self, draft: Draft) -> usize {
        let place = self.out.len();
        if let Some(old) = draft.old {
            self.set(old, Some(place));
        }
        self.out.push(draft);
        place
    }

    fn set(&mut self, old: Seq, place: Option<usize>) {
        // Old numbers are contiguous and come in order, so that this grows by one at a time.
        let at = usize::try_from(old).unwrap_or(usize::MAX);
        if at >= self.places.len() {
            self.places.resize(at + 1, None);
        }
        self.places[at] = place;
    }

    /// These old events are held by the event at `place` now, or by none.
    pub(super) fn folded(&mut self, old: &[Seq], place: Option<usize>) {
        old.iter().for_each(|old| self.set(*old, place));
    }

    /// Puts an event in front of the one at `place`.
    pub(super) fn insert(&mut self, place: usize, draft: Draft) {
        self.out.insert(place, draft);
        for moved in self.places.iter_mut().chain([&mut self.cut]).flatten() {
            *moved += usize::from(*moved >= place);
        }
    }

    /// What a fork inherited ends in front of the next event.
    pub(super) fn mark_cut(&mut self) {
        self.cut = Some(self.out.len());
    }

    pub(super) fn cut(&self) -> Option<u64> {
        self.cut.map(|cut| cut as u64)
    }

    /// The events under their new numbers.
    pub(super) fn placed(mut self, report: &mut Report) -> Vec<Placed> {
        let moved = |(new, draft): (usize, &Draft)| draft.old != Some(new as Seq);
        if self.out.iter().enumerate().any(moved) {
            for (new, draft) in self.out.iter_mut().enumerate() {
                let new = new as Seq;
                draft.event.insert("seq".to_owned(), new.into());
                if let Some(old) = draft.old {
                    let numbers = Numbers { places: &self.places };
                    numbers.rename(new, draft);
                    if old != new {
                        report.renumbered.push((old, new));
                    }
                }
            }
            report.note(Note::Rewritten("the events' numbers, and what names them".to_owned()));
        }
        let placed = |draft: Draft| Placed {
            line: draft.line,
            old: draft.old,
            text: Value::Object(draft.event).to_string().into(),
        };
        self.out.into_iter().map(placed).collect()
    }
}

struct Numbers<'a> {
    places: &'a [Option<usize>],
}

impl Numbers<'_> {
    fn exact(&self, old: Seq) -> Option<Seq> {
        let place = self.places.get(usize::try_from(old).ok()?)?;
        place.map(|place| place as Seq)
    }

    /// Where an event went, or the last one before it that is still there.
    fn nearest(&self, old: Seq) -> Option<Seq> {
        let at = usize::try_from(old).ok().filter(|at| *at < self.places.len())?;
        self.places[..=at].iter().rev().flatten().next().map(|place| *place as Seq)
    }

    fn rename(&self, own: Seq, draft: &mut Draft) {
        let offload = draft.kind() == "image/offload";
        // Of the core's events only these name others in their data.
        let names = offload || draft.kind() == "developer/message" || !is_core(draft.kind());
        if let Some(op) = draft.event.get_mut("surfaceOp") {
            self.fields(op, &|key| matches!(key, "startSeq" | "endSeq"));
        }
        if let Some(sources) = draft.event.get_mut("sourceEventSeqs") {
            self.list(sources);
            let earlier = |seq: &Value| seq.as_u64().is_some_and(|seq| seq < own);
            if let Value::Array(list) = sources {
                list.retain(earlier);
            }
            if sources.as_array().is_some_and(Vec::is_empty) {
                draft.event.shift_remove("sourceEventSeqs");
            }
        }
        if let Some(data) = draft.event.get_mut("data").filter(|_| names) {
            let is_name = |key: &str| key.ends_with("Seq") || offload && key == "seq";
            self.fields(data, &is_name);
        }
    }

    /// Renames fields that name an event, at any depth: those whose key says so, lists of them, and the
    /// ends of a shadowed range.
    fn fields(&self, root: &mut Value, is_name: &dyn Fn(&str) -> bool) {
        let mut stack = vec![root];
        while let Some(value) = stack.pop() {
            match value {
                Value::Array(items) => stack.extend(items),
                Value::Object(fields) => {
                    for (key, value) in fields {
                        match value {
                            Value::Number(_) if is_name(key) => self.number(value),
                            Value::Array(_) if key.ends_with("Seqs") => self.list(value),
                            Value::Object(range) if key == "shadowedRange" => {
                                range.values_mut().for_each(|end| self.number(end));
                            }
                            _ => stack.push(value),
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn number(&self, value: &mut Value) {
        if let Some(new) = value.as_u64().and_then(|old| self.nearest(old)) {
            *value = new.into();
        }
    }

    fn list(&self, value: &mut Value) {
        let Value::Array(list) = value else { return };
        let mut renamed: Vec<Value> = Vec::with_capacity(list.len());
        for item in list.drain(..) {
            let new = match item.as_u64() {
                Some(old) => self.exact(old).map(Value::from),
                None => Some(item),
            };
            renamed.extend(new.filter(|new| !renamed.contains(new)));
        }
        *list = renamed;
    }
}

/// The kinds that Playhouse reads itself.
pub(super) fn is_core(kind: &str) -> bool {
    const CORE: [&str; 17] = [
        "agent/inbox/spliced",
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "system/message",
        "developer/message",
        "user/message",
        "assistant/message",
        "assistant/attempt",
        "tool/call",
        "tool/result",
        "request/header",
        "request/context",
        "model/selection",
        "session/end-seed",
        "image/offload",
    ];
    CORE.contains(&kind)
}
