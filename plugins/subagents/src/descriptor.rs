//! The descriptor: by which a log says that its agent is somebody's child.
//!
//! A fork begins with events of another session, and so perhaps with that one's descriptor. What
//! counts is the session's *own suffix*: the events after those that it inherited.

use playhouse_messages::{
    event::{EventBody, NewEvent, Seq},
    log::Log,
};
use playhouse_plugin_api::tool::ToolFilter;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// The descriptor's event kind. It is required: a reader that does not know it must not drive the
/// session as if it were a root's.
pub const DESCRIPTOR_KIND: &str = "subagent/descriptor";

/// The version of the descriptor that this build writes.
pub const DESCRIPTOR_VERSION: u32 = 2;

/// What a child is, durably.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Which provider started it.
    pub provider: String,
    /// What it is for, for people. A continuable child has one.
    pub label: Option<String>,
    /// How it is used.
    pub mode: Mode,
}

/// How a child is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// One prompt, one result.
    OneShot,
    /// As long as its parent has something to say to it; made again by this.
    Continuable(Recipe),
}

/// All that a continuable child is made again from. Depth is not in it: the header is its floor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recipe {
    /// The route that it was started on.
    pub route: Option<Route>,
    /// Who it is.
    pub persona: Option<String>,
    /// Masks tools that it would see.
    pub tool_filter: Option<ToolFilter>,
}

/// A model, by its provider's name for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The model's provider.
    pub provider: String,
    /// The model.
    pub model: String,
}

/// A descriptor of this version that says what no descriptor can say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "event {seq} is no {DESCRIPTOR_KIND} of version {DESCRIPTOR_VERSION}: {cause}; the session can \
     be read, and not be continued as a child"
)]
pub struct CorruptDescriptor {
    /// The event.
    pub seq: Seq,
    /// What is wrong with it.
    pub cause: String,
}

impl CorruptDescriptor {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "CORRUPT_DESCRIPTOR"
    }
}

#[derive(Serialize, Deserialize)]
#[serde(
    tag = "mode",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum Wire {
    OneShot {
        version: u32,
        provider: String,
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    Continuable {
        version: u32,
        provider: String,
        label: String,
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        agent_provider: Option<String>,
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        agent_model: Option<String>,
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        persona: Option<String>,
        #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
        tool_filter: Option<WireFilter>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireFilter {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    allow: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    deny: Option<Vec<String>>,
}

/// A key that is there has a value: `null` is none.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl Descriptor {
    /// The descriptor of a child for one prompt.
    pub fn one_shot(provider: impl Into<String>, label: Option<String>) -> Self {
        Self { provider: provider.into(), label, mode: Mode::OneShot }
    }

    /// The descriptor of a child that can be continued.
    pub fn continuable(
        provider: impl Into<String>,
        label: impl Into<String>,
        recipe: Recipe,
    ) -> Self {
        let (provider, label) = (provider.into(), Some(label.into()));
        Self { provider, label, mode: Mode::Continuable(recipe) }
    }

    /// How a continuable child is made again; `None` for a child of one prompt.
    pub fn recipe(&self) -> Option<&Recipe> {
        match &self.mode {
            Mode::OneShot => None,
            Mode::Continuable(recipe) => Some(recipe),
        }
    }

    /// Reads the descriptor in the event at `seq`. There is none in an event of another kind, and
    /// none that counts in one of another version.
    ///
    /// # Errors
    ///
    /// [`CorruptDescriptor`] if the event has an unknown key, a value of a wrong type, an empty
    /// tool filter, or half a route.
    ///
    /// ```
    /// use playhouse_subagents::descriptor::Descriptor;
    ///
    /// let written = Descriptor::one_shot("spawn", Some("Research cost".to_owned()));
    /// assert_eq!(Descriptor::read(0, &written.event().body), Ok(Some(written)));
    /// ```
    pub fn read(seq: Seq, body: &EventBody) -> Result<Option<Self>, CorruptDescriptor> {
        let EventBody::Custom { kind, data } = body else { return Ok(None) };
        if &**kind != DESCRIPTOR_KIND {
            return Ok(None);
        }
        let corrupt = |cause: String| CorruptDescriptor { seq, cause };
        match data.get("version").and_then(Value::as_u64) {
            None => return Err(corrupt("it has no version".to_owned())),
            Some(version) if version != u64::from(DESCRIPTOR_VERSION) => return Ok(None),
            Some(_) => {}
        }
        let wire = Wire::deserialize(data).map_err(|fault| corrupt(fault.to_string()))?;
        wire.checked().map(Some).map_err(|cause| corrupt(cause.to_owned()))
    }

    /// Who a session is: the first descriptor of its own suffix.
    ///
    /// # Errors
    ///
    /// As [`Descriptor::read`].
    pub fn of(log: &Log, inherited_event_count: Seq) -> Result<Option<Self>, CorruptDescriptor> {
        let own = log.range(inherited_event_count..log.len());
        let mut said = own.filter(|event| {
            matches!(&event.body, EventBody::Custom { kind, .. } if &**kind == DESCRIPTOR_KIND)
        });
        said.next().map_or(Ok(None), |event| Self::read(event.seq, &event.body))
    }

    /// The event that records it.
    pub fn event(&self) -> NewEvent {
        let data = serde_json::to_value(Wire::of(self));
        NewEvent::custom(DESCRIPTOR_KIND, data.expect("strings and lists of strings are JSON"))
    }
}

impl Wire {
    fn of(descriptor: &Descriptor) -> Self {
        let (version, provider) = (DESCRIPTOR_VERSION, descriptor.provider.clone());
        let label = descriptor.label.clone();
        match &descriptor.mode {
            Mode::OneShot => Self::OneShot { version, provider, label },
            Mode::Continuable(recipe) => Self::Continuable {
                version,
                provider,
                label: label.unwrap_or_default(),
                agent_provider: recipe.route.as_ref().map(|route| route.provider.clone()),
                agent_model: recipe.route.as_ref().map(|route| route.model.clone()),
                persona: recipe.persona.clone(),
                tool_filter: recipe.tool_filter.as_ref().map(WireFilter::of),
            },
        }
    }

    fn checked(self) -> Result<Descriptor, &'static str> {
        let (provider, label, mode) = match self {
            Self::OneShot { provider, label, .. } => (provider, label, Mode::OneShot),
            Self::Continuable {
                provider,
                label,
                agent_provider,
                agent_model,
                persona,
                tool_filter,
                ..
            } => {
                let route = match (agent_provider, agent_model) {
                    (Some(provider), Some(model)) => Some(Route { provider, model }),
                    (None, None) => None,
                    _ => return Err("agentProvider and agentModel come together"),
                };
                let tool_filter = tool_filter.map(WireFilter::checked).transpose()?;
                let recipe = Recipe { route, persona, tool_filter };
                (provider, Some(label), Mode::Continuable(recipe))
            }
        };
        Ok(Descriptor { provider, label, mode })
    }
}

impl WireFilter {
    fn of(filter: &ToolFilter) -> Self {
        let names = |names: &std::collections::BTreeSet<String>| names.iter().cloned().collect();
        let deny = (!filter.deny.is_empty()).then(|| names(&filter.deny));
        Self { allow: filter.allow.as_ref().map(names), deny }
    }

    fn checked(self) -> Result<ToolFilter, &'static str> {
        let deny = self.deny.into_iter().flatten().collect();
        let filter =
            ToolFilter { allow: self.allow.map(|names| names.into_iter().collect()), deny };
        if filter.allow.is_none() && filter.deny.is_empty() {
            return Err("toolFilter is empty");
        }
        Ok(filter)
    }
}

#[cfg(test)]
mod tests {
    mod subagents {
        use std::sync::Arc;

        use serde_json::json;

        use super::super::*;

        fn body(data: Value) -> EventBody {
            NewEvent::custom(DESCRIPTOR_KIND, data).body
        }

        fn read(data: Value) -> Result<Option<Descriptor>, CorruptDescriptor> {
            Descriptor::read(7, &body(data))
        }

        #[test]
        fn orchestration_1_5_both_modes_read_back_as_they_were_written() {
            let filter = |allow: Option<&[&str]>, deny: &[&str]| ToolFilter {
                allow: allow.map(|names| names.iter().map(ToString::to_string).collect()),
                deny: deny.iter().map(ToString::to_string).collect(),
            };
            let route = Some(Route { provider: "p".into(), model: "m".into() });
            let recipe = |tool_filter| Recipe { route: route.clone(), persona: None, tool_filter };
            let all = [
                Descriptor::one_shot("spawn", None),
                Descriptor::one_shot("fork", Some("Look".into())),
                Descriptor::continuable("spawn", "Look", Recipe::default()),
                Descriptor::continuable("spawn", "Look", recipe(Some(filter(Some(&[]), &[])))),
                Descriptor::continuable("spawn", "Look", recipe(Some(filter(None, &["a"])))),
                Descriptor::continuable("s", "L", recipe(Some(filter(Some(&["a", "b"]), &["b"])))),
            ];
            for descriptor in all {
                assert_eq!(Descriptor::read(0, &descriptor.event().body), Ok(Some(descriptor)));
            }
            let full = Descriptor::continuable("spawn", "Look", recipe(Some(filter(None, &["a"]))));
            let EventBody::Custom { data, .. } = full.event().body else { unreachable!() };
            let expected = json!({
                "version": 2, "mode": "continuable", "provider": "spawn", "label": "Look",
                "agentProvider": "p", "agentModel": "m", "toolFilter": {"deny": ["a"]},
            });
            assert_eq!(data, expected);
        }

        #[test]
        fn orchestration_1_5_what_no_descriptor_can_say_is_corrupt() {
            let with = |key: &str, value: Value| {
                let mut data = json!({
                    "version": 2, "mode": "continuable", "provider": "spawn", "label": "Look",
                });
                data[key] = value;
                data
            };
            let corrupt = [
                json!({"mode": "one-shot", "provider": "spawn"}),
                json!({"version": "2", "mode": "one-shot", "provider": "spawn"}),
                json!({"version": 2, "mode": "one-shot"}),
                json!({"version": 2, "mode": "one-shot", "provider": 1}),
                json!({"version": 2, "mode": "one-shot", "provider": "spawn", "label": null}),
                json!({"version": 2, "mode": "one-shot", "provider": "spawn", "persona": "x"}),
                json!({"version": 2, "mode": "for-ever", "provider": "spawn"}),
                json!({"version": 2, "mode": "continuable", "provider": "spawn"}),
                with("depth", json!(1)),
                with("toolFilter", json!({})),
                with("toolFilter", json!({"deny": []})),
                with("toolFilter", json!({"deny": ["a"], "only": []})),
                with("toolFilter", json!({"allow": [1]})),
                with("agentModel", json!("m")),
            ];
            for data in corrupt {
                let fault = read(data.clone()).expect_err(&data.to_string());
                assert_eq!((fault.seq, fault.code()), (7, "CORRUPT_DESCRIPTOR"));
            }
        }

        #[test]
        fn orchestration_1_5_another_version_is_no_identity() {
            for version in [0, 1, 3] {
                let data = json!({"version": version, "mode": "what", "any": "thing"});
                assert_eq!(read(data), Ok(None));
            }
            let other = NewEvent::custom("x/other", json!({"version": 2})).body;
            assert_eq!(Descriptor::read(0, &other), Ok(None));
        }

        #[test]
        fn orchestration_1_5_only_the_own_suffix_says_who_a_session_is() {
            let names = ["ancestor", "first", "second"];
            let log: Log = (0..)
                .zip(names)
                .map(|(seq, name)| Arc::new(Descriptor::one_shot(name, None).event().at(seq, 0)))
                .collect();
            let named = |found: Result<Option<Descriptor>, _>| found.unwrap().map(|d| d.provider);
            assert_eq!(named(Descriptor::of(&log, 0)).as_deref(), Some("ancestor"));
            assert_eq!(named(Descriptor::of(&log, 1)).as_deref(), Some("first"));
            assert_eq!(named(Descriptor::of(&log, 3)), None);
        }
    }
}
