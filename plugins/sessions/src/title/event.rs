//! What is logged of titles, and the fold of it.

use playhouse_messages::{
    config::Route,
    event::{Event, EventBody, NewEvent, Seq},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::projection::Projection;

/// A session is called something. Log-only; the last one counts.
pub const TITLE_KIND: &str = "session/title";

/// A model is about to be asked for a title. Log-only.
pub const TITLE_REQUEST_KIND: &str = "session/title-llm-request";

/// The data of [`TITLE_KIND`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Titled {
    /// The title, fit to show.
    pub title: String,
    /// The messages that it was made from; empty exactly if a person chose it.
    pub message_seqs: Vec<Seq>,
    /// Who chose it.
    pub source: TitleSource,
}

/// Who chose a title.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum TitleSource {
    /// Nobody: it is the beginning of the first prompt.
    Fallback,
    /// A provider.
    Provider {
        /// Its name.
        provider: String,
        /// The model that it asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<Route>,
    },
    /// A person; the title is pinned.
    User,
}

/// The data of [`TITLE_REQUEST_KIND`]: the whole request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TitleRequested {
    /// The provider that asks.
    pub title_provider: String,
    /// The messages that the title is made from.
    pub message_seqs: Vec<Seq>,
    /// Where the request goes.
    pub route: Route,
    /// The system prompt.
    pub system: String,
    /// The user messages.
    pub messages: Vec<String>,
    /// The most tokens of the answer.
    pub max_tokens: u64,
}

fn read<T: DeserializeOwned>(kind: &str, body: &EventBody) -> Option<T> {
    match body {
        EventBody::Custom { kind: this, data } if **this == *kind => T::deserialize(data).ok(),
        _ => None,
    }
}

/// Whoever does not know these kinds loses nothing but a name.
fn event(kind: &'static str, data: &impl Serialize) -> NewEvent {
    let data = serde_json::to_value(data).expect("these shapes have string keys and no floats");
    NewEvent::custom(kind, data).ignorable()
}

impl Titled {
    /// Reads one; `None` for an event of another kind or shape.
    pub fn read(body: &EventBody) -> Option<Self> {
        read(TITLE_KIND, body)
    }

    /// The event.
    pub fn event(&self) -> NewEvent {
        event(TITLE_KIND, self)
    }

    /// Whether a person chose it.
    pub fn is_pinned(&self) -> bool {
        self.source == TitleSource::User
    }
}

impl TitleRequested {
    /// Reads one; `None` for an event of another kind or shape.
    pub fn read(body: &EventBody) -> Option<Self> {
        read(TITLE_REQUEST_KIND, body)
    }

    /// The event.
    pub fn event(&self) -> NewEvent {
        event(TITLE_REQUEST_KIND, self)
    }
}

/// The projection `title`: what the session is called; its view is a string or null.
#[derive(Debug, Clone, Copy, Default)]
pub struct TitleProjection;

impl TitleProjection {
    /// Its key.
    pub const KEY: &str = "title";
}

impl Projection for TitleProjection {
    type State = Option<Titled>;

    fn key(&self) -> &str {
        Self::KEY
    }

    fn version(&self) -> u32 {
        1
    }

    fn kinds(&self) -> Option<&[&str]> {
        Some(&[TITLE_KIND])
    }

    fn init(&self) -> Option<Titled> {
        None
    }

    fn apply(&self, state: &mut Option<Titled>, event: &Event) -> bool {
        let Some(titled) = Titled::read(&event.body) else { return false };
        state.replace(titled.clone()) != Some(titled)
    }

    fn view(&self, state: &Option<Titled>) -> Option<Value> {
        Some(state.as_ref().map_or(Value::Null, |titled| titled.title.clone().into()))
    }
}
