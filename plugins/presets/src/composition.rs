//! What the files of a preset say.

use std::collections::BTreeSet;

use playhouse_messages::config::ModelChoice;
use playhouse_plugin_api::options::AgentOptions;
use serde::Deserialize;
use serde_json::Value;

/// The composition of a preset: its rows, the texts of files put in. Immutable; two that are equal
/// make equal agents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Composition {
    rows: Vec<Row>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Row {
    /// Who the agent is.
    Persona(Persona),
    /// A section of the system prompt.
    Section(TextRow),
    /// A runtime fact.
    Context(TextRow),
    /// Which of the harness's tools it sees.
    Tools(Tools),
    /// Which model it uses, unless told otherwise.
    Model(Model),
    /// What a factory of the embedder makes.
    Plugin(PluginRow),
}

/// Who an agent is: the section `deployment:persona`, at order 0.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Persona {
    /// The text; `{{name}}` stands for a prompt variable.
    #[serde(default)]
    pub text: String,
    /// A file of the preset that holds the text instead.
    pub file: Option<String>,
    /// It is the whole system prompt.
    #[serde(default)]
    pub complete: bool,
    /// Whether the agent is told runtime facts.
    #[serde(default = "yes")]
    pub include_runtime_context: bool,
}

fn yes() -> bool {
    true
}

/// A section of the system prompt, or a runtime fact.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextRow {
    /// Its name; it takes the place of the harness's of that name.
    pub name: String,
    /// Where it stands among the others.
    pub order: f64,
    /// The text; `{{name}}` stands for a prompt variable.
    #[serde(default)]
    pub text: String,
    /// A file of the preset that holds the text instead.
    pub file: Option<String>,
}

/// Which of the harness's tools an agent sees.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tools {
    /// Only these; all if absent.
    pub allow: Option<BTreeSet<String>>,
    /// Not these.
    #[serde(default)]
    pub deny: BTreeSet<String>,
}

/// Which model an agent uses. What the agent's own options say counts more.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The route's provider; with `model` or not at all.
    pub provider: Option<String>,
    /// The model under it.
    pub model: Option<String>,
    /// The reasoning effort for the route.
    pub effort: Option<String>,
    /// The output limit of one request, in tokens; positive.
    pub max_tokens: Option<u64>,
}

/// What a factory of the embedder makes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginRow {
    /// The factory's name.
    pub name: String,
    /// What it gets.
    #[serde(default)]
    pub config: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, rename = "row")]
    rows: Vec<Row>,
}

impl Composition {
    /// Parses and checks a composition file. `read` gives the text of a file that a row names.
    ///
    /// # Errors
    ///
    /// What is wrong, for people.
    pub fn parse(
        text: &str,
        mut read: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, String> {
        let File { mut rows } = toml::from_str(text).map_err(|fault| fault.to_string())?;
        for (at, row) in rows.iter_mut().enumerate() {
            row.check(&mut read).map_err(|fault| format!("row {}: {fault}", at + 1))?;
        }
        for (kind, count) in [
            ("persona", rows.iter().filter(|row| matches!(row, Row::Persona(_))).count()),
            ("model", rows.iter().filter(|row| matches!(row, Row::Model(_))).count()),
        ] {
            if count > 1 {
                return Err(format!("there are {count} {kind} rows; keep one"));
            }
        }
        Ok(Self { rows })
    }

    /// The rows, in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The factories that its plugin rows name.
    pub fn factories(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().filter_map(|row| match row {
            Row::Plugin(row) => Some(row.name.as_str()),
            _ => None,
        })
    }

    /// Puts what the preset says of the model where the options say nothing. An effort goes with
    /// the preset's route, and not with another.
    ///
    /// ```
    /// use playhouse_plugin_api::options::AgentOptions;
    /// use playhouse_presets::Composition;
    ///
    /// let rows = r#"
    ///     [[row]]
    ///     kind = "model"
    ///     provider = "p"
    ///     model = "m"
    ///     effort = "high"
    ///     max_tokens = 100
    /// "#;
    /// let preset = Composition::parse(rows, |_| Err("no files".to_owned()))?;
    /// let mut filled = AgentOptions::new();
    /// preset.fill(&mut filled);
    /// assert_eq!(filled, AgentOptions::new().model("p", "m").reasoning_effort("high").max_tokens(100));
    /// let mut told = AgentOptions::new().model("q", "n").max_tokens(7);
    /// preset.fill(&mut told);
    /// assert_eq!(told, AgentOptions::new().model("q", "n").max_tokens(7));
    /// # Ok::<(), String>(())
    /// ```
    pub fn fill(&self, options: &mut AgentOptions) {
        for row in &self.rows {
            let Row::Model(row) = row else { continue };
            options.max_tokens = options.max_tokens.or(row.max_tokens);
            if options.model.is_none() {
                options.model = row.choice();
            }
        }
    }
}

impl Model {
    fn choice(&self) -> Option<ModelChoice> {
        let (provider, model) = (self.provider.clone()?, self.model.clone()?);
        Some(ModelChoice { provider, model, reasoning_effort: self.effort.clone() })
    }
}

impl Row {
    fn check(
        &mut self,
        read: &mut impl FnMut(&str) -> Result<String, String>,
    ) -> Result<(), String> {
        let name = |name: &str| if name.is_empty() { Err("`name` is empty") } else { Ok(()) };
        match self {
            Self::Persona(row) => put_in(&mut row.text, row.file.as_deref(), read)?,
            Self::Section(row) | Self::Context(row) => {
                name(&row.name)?;
                if !row.order.is_finite() {
                    return Err("`order` must be a finite number".to_owned());
                }
                put_in(&mut row.text, row.file.as_deref(), read)?;
            }
            Self::Tools(row) => {
                if row.allow.is_none() && row.deny.is_empty() {
                    return Err("it needs `allow` or `deny`".to_owned());
                }
            }
            Self::Model(row) => {
                let empty = |field: &Option<String>| field.as_deref() == Some("");
                if row.provider.is_some() != row.model.is_some() {
                    return Err("`provider` and `model` go together".to_owned());
                }
                if row.effort.is_some() && row.model.is_none() {
                    return Err("`effort` needs `provider` and `model`".to_owned());
                }
                if empty(&row.provider) || empty(&row.model) || empty(&row.effort) {
                    return Err("a part of the route is empty; leave it out".to_owned());
                }
                if row.max_tokens == Some(0) {
                    return Err("`max_tokens` must be positive".to_owned());
                }
            }
            Self::Plugin(row) => name(&row.name)?,
        }
        Ok(())
    }
}

/// Puts a file's text in where a row names one.
fn put_in(
    text: &mut String,
    file: Option<&str>,
    read: &mut impl FnMut(&str) -> Result<String, String>,
) -> Result<(), String> {
    match file {
        Some(_) if !text.is_empty() => Err("`text` and `file` exclude each other".to_owned()),
        Some(file) => {
            read(file)?.trim_end().clone_into(text);
            if text.is_empty() { Err(format!("`{file}` is empty")) } else { Ok(()) }
        }
        None if text.is_empty() => Err("it needs `text` or `file`".to_owned()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Composition, String> {
        Composition::parse(text, |file| match file {
            "persona.md" => Ok("You are {{name}}.\n".to_owned()),
            _ => Err(format!("`{file}` is not there")),
        })
    }

    #[test]
    fn files_are_put_in_and_defaults_are_as_said() {
        let parsed = parse("[[row]]\nkind = \"persona\"\nfile = \"persona.md\"").unwrap();
        let [Row::Persona(persona)] = parsed.rows() else { panic!("{parsed:?}") };
        assert_eq!(persona.text, "You are {{name}}.");
        assert_eq!((persona.complete, persona.include_runtime_context), (false, true));
        assert_eq!(parse("").unwrap(), Composition::default());
    }

    #[test]
    fn what_makes_no_sense_is_named_with_its_row() {
        for (text, expected) in [
            ("[[row]]\nkind = \"persona\"", "row 1: it needs `text` or `file`"),
            ("[[row]]\nkind = \"persona\"\ntext = \"a\"\nfile = \"b\"", "row 1: `text` and `file`"),
            ("[[row]]\nkind = \"persona\"\nfile = \"x\"", "row 1: `x` is not there"),
            ("[[row]]\nkind = \"tools\"", "row 1: it needs `allow` or `deny`"),
            ("[[row]]\nkind = \"model\"\nprovider = \"p\"", "go together"),
            ("[[row]]\nkind = \"model\"\neffort = \"high\"", "`effort` needs"),
            ("[[row]]\nkind = \"model\"\nmax_tokens = 0", "must be positive"),
            (
                "[[row]]\nkind = \"section\"\nname = \"\"\norder = 1\ntext = \"x\"",
                "`name` is empty",
            ),
            ("[[row]]\nkind = \"section\"\nname = \"a\"\norder = nan\ntext = \"x\"", "finite"),
            ("[[row]]\nkind = \"wizard\"", "unknown variant `wizard`"),
            ("[[row]]\nkind = \"plugin\"\nname = \"a\"\ncolour = 1", "unknown field `colour`"),
            ("rows = 3", "unknown field `rows`"),
            ("[[row", "row"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
        let persona = "[[row]]\nkind = \"persona\"\ntext = \"a\"\n";
        assert_eq!(parse(&persona.repeat(2)).unwrap_err(), "there are 2 persona rows; keep one");
    }
}
