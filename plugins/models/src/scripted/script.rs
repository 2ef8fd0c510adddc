//! Scripts: rules or a sequence of replies.

use playhouse_plugin_api::llm::Purpose;
use serde::Deserialize;

use super::{Conversation, Reply, behaviours, template};

/// What a scripted model answers to what.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Tried in order; the first that fits answers.
    pub rules: Vec<Rule>,
    /// If not empty: one reply a request, in order, whatever it says. Rules are not consulted.
    pub sequence: Vec<Reply>,
    /// The last reply of the sequence answers every later request too.
    pub repeat_last: bool,
}

/// A reply and when it is given.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// All of it must hold.
    pub when: When,
    /// The answer.
    pub reply: Reply,
}

/// Conditions on a request. What is absent always holds.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// A system prompt contains this.
    pub system_contains: Option<String>,
    /// The last user text contains this.
    pub user_contains: Option<String>,
    /// The whole last user text fits this pattern, in which each `*` takes any text, as little as
    /// fits; a reply can quote what the stars took.
    pub user_matches: Option<String>,
    /// A result of this tool stands after the last assistant message; `*` for any tool.
    pub after_tool: Option<String>,
    /// One of those results contains this.
    pub result_contains: Option<String>,
    /// This many assistant messages stand after the last user message.
    pub assistant_messages: Option<usize>,
    /// The request declares this tool.
    pub has_tool: Option<String>,
    /// The request does not declare this tool.
    pub lacks_tool: Option<String>,
    /// The request is for this model.
    pub model: Option<String>,
    /// What the call is for.
    pub purpose: Option<Purpose>,
}

/// Why a script is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// Not a script in TOML.
    #[error("invalid script: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// No such behaviour.
    #[error("unknown behaviour \"{name}\"; there are {}", behaviours::NAMES.join(", "))]
    UnknownBehaviour {
        /// The name.
        name: String,
    },
}

impl ScriptError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Toml(_) => "INVALID_SCRIPT",
            Self::UnknownBehaviour { .. } => "UNKNOWN_BEHAVIOUR",
        }
    }
}

impl Script {
    /// A script without rules: it refuses every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a script.
    ///
    /// # Errors
    ///
    /// The place and the cause, if the text is not a script.
    pub fn from_toml(text: &str) -> Result<Self, ScriptError> {
        toml::from_str(text).map_err(|error| ScriptError::Toml(Box::new(error)))
    }

    /// The built-in script: a root agent that plans, delegates to three sub-agents in parallel and
    /// reports, and sub-agents that look something up and answer. It adapts to the tools that the
    /// request declares: without `subagent` it answers alone.
    pub fn team() -> Self {
        #[expect(
            clippy::unwrap_used,
            reason = "the text is part of the build, and a test reads it"
        )]
        Self::from_toml(include_str!("team.toml")).unwrap()
    }

    /// One reply a request, in order, then none.
    pub fn sequence(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self { sequence: replies.into_iter().collect(), ..Self::default() }
    }

    /// A sequence of named behaviours, such as `rate_limit` or `partial_disconnect`.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_BEHAVIOUR`, with the names that there are.
    pub fn behaviours<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, ScriptError> {
        let reply = |name: &str| {
            Reply::behaviour(name)
                .ok_or_else(|| ScriptError::UnknownBehaviour { name: name.to_owned() })
        };
        Ok(Self::sequence(names.into_iter().map(reply).collect::<Result<Vec<_>, _>>()?))
    }

    /// A sequence drawn at random from named behaviours by weight. The same seed gives the same
    /// sequence; weights of 0 alone give an empty one.
    ///
    /// # Errors
    ///
    /// `UNKNOWN_BEHAVIOUR`, with the names that there are.
    pub fn random<'a>(
        seed: u64,
        count: usize,
        weighted: impl IntoIterator<Item = (&'a str, u32)>,
    ) -> Result<Self, ScriptError> {
        let (names, weights): (Vec<_>, Vec<_>) = weighted.into_iter().unzip();
        let replies = Self::behaviours(names)?.sequence;
        let weighted: Vec<_> = replies.into_iter().zip(weights).collect();
        Ok(Self::sequence(behaviours::draw(seed, count, &weighted)))
    }

    /// With a rule after those that it has.
    #[must_use]
    pub fn rule(mut self, when: When, reply: Reply) -> Self {
        self.rules.push(Rule { when, reply });
        self
    }

    /// With a rule that always holds.
    #[must_use]
    pub fn reply(self, reply: Reply) -> Self {
        self.rule(When::default(), reply)
    }

    /// The last reply of the sequence answers every later request too.
    #[must_use]
    pub fn repeating_last(mut self) -> Self {
        self.repeat_last = true;
        self
    }

    /// The reply of the first rule that fits, and what its stars took.
    pub(super) fn answer(&self, conversation: &Conversation) -> Option<(&Reply, Vec<String>)> {
        self.rules
            .iter()
            .find_map(|rule| rule.when.fits(conversation).map(|captures| (&rule.reply, captures)))
    }
}

impl When {
    /// The last user text contains this.
    #[must_use]
    pub fn user_contains(mut self, text: impl Into<String>) -> Self {
        self.user_contains = Some(text.into());
        self
    }

    /// The last user text fits this pattern.
    #[must_use]
    pub fn user_matches(mut self, pattern: impl Into<String>) -> Self {
        self.user_matches = Some(pattern.into());
        self
    }

    /// A system prompt contains this.
    #[must_use]
    pub fn system_contains(mut self, text: impl Into<String>) -> Self {
        self.system_contains = Some(text.into());
        self
    }

    /// A result of this tool was just given.
    #[must_use]
    pub fn after_tool(mut self, tool: impl Into<String>) -> Self {
        self.after_tool = Some(tool.into());
        self
    }

    /// The request declares this tool.
    #[must_use]
    pub fn has_tool(mut self, tool: impl Into<String>) -> Self {
        self.has_tool = Some(tool.into());
        self
    }

    /// This many assistant messages stand after the last user message.
    #[must_use]
    pub fn assistant_messages(mut self, count: usize) -> Self {
        self.assistant_messages = Some(count);
        self
    }

    /// What the stars took, if everything holds.
    fn fits(&self, c: &Conversation) -> Option<Vec<String>> {
        fn holds<T>(condition: &Option<T>, check: impl FnOnce(&T) -> bool) -> bool {
            condition.as_ref().is_none_or(check)
        }
        let results = || c.results.iter();
        let fits = holds(&self.system_contains, |text| c.system.iter().any(|s| s.contains(text)))
            && holds(&self.user_contains, |text| c.prompt.contains(text))
            && holds(&self.after_tool, |tool| results().any(|r| tool == "*" || r.tool == *tool))
            && holds(&self.result_contains, |text| results().any(|r| r.text.contains(text)))
            && holds(&self.assistant_messages, |&count| c.assistant_messages == count)
            && holds(&self.has_tool, |tool| c.tools.contains(tool))
            && holds(&self.lacks_tool, |tool| !c.tools.contains(tool))
            && holds(&self.model, |model| c.model == *model)
            && holds(&self.purpose, |&purpose| c.purpose == Some(purpose));
        match (&self.user_matches, fits) {
            (_, false) => None,
            (None, true) => Some(Vec::new()),
            (Some(pattern), true) => template::captures(pattern, &c.prompt),
        }
    }
}
