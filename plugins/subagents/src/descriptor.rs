//! The descriptor: by which a log says that its agent is somebody's child.

use playhouse_messages::event::{EventBody, NewEvent};
use serde::{Deserialize, Serialize};

/// The descriptor's event kind. It is required: a reader that does not know it must not drive the
/// session as if it were a root's.
pub const DESCRIPTOR_KIND: &str = "subagent/descriptor";

/// The version of the descriptor that this build writes.
pub const DESCRIPTOR_VERSION: u32 = 2;

/// What a child is, durably.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Descriptor {
    /// Must equal [`DESCRIPTOR_VERSION`].
    pub version: u32,
    /// How it is used.
    pub mode: Mode,
    /// Which provider started it.
    pub provider: String,
    /// What it is for, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// How a child is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// One prompt, one result.
    OneShot,
}

impl Descriptor {
    /// The descriptor of a child for one prompt.
    pub fn one_shot(provider: impl Into<String>, label: Option<String>) -> Self {
        let (version, mode) = (DESCRIPTOR_VERSION, Mode::OneShot);
        Self { version, mode, provider: provider.into(), label }
    }

    /// Reads the descriptor in an event; `None` for an event of another kind, or a descriptor that
    /// this build does not understand.
    ///
    /// ```
    /// use playhouse_subagents::descriptor::Descriptor;
    ///
    /// let written = Descriptor::one_shot("spawn", Some("Research cost".to_owned()));
    /// assert_eq!(Descriptor::read(&written.event().body), Some(written));
    /// ```
    pub fn read(body: &EventBody) -> Option<Self> {
        let EventBody::Custom { kind, data } = body else { return None };
        if &**kind != DESCRIPTOR_KIND {
            return None;
        }
        let descriptor: Self = serde_json::from_value(data.clone()).ok()?;
        (descriptor.version == DESCRIPTOR_VERSION).then_some(descriptor)
    }

    /// The event that records it.
    pub fn event(&self) -> NewEvent {
        let mut data = serde_json::json!({
            "version": self.version,
            "mode": self.mode,
            "provider": self.provider,
        });
        if let Some(label) = &self.label {
            data["label"] = label.as_str().into();
        }
        NewEvent::custom(DESCRIPTOR_KIND, data)
    }
}
