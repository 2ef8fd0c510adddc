//! `[[acp]]`: agents of other programs.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use playhouse_acp::{AcpConfig, Permission};
use serde::Deserialize;
use toml::Spanned;

use super::{ConfigError, Place, reader::Reader};

/// An agent of another program, as the config names it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AcpAgentConfig {
    /// How it is started, asked and ended.
    pub config: AcpConfig,
    /// The tool by which models delegate to it.
    pub tool: String,
    /// Where the file names it.
    pub place: Place,
}

/// `[[acp]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcpEntry {
    /// The provider's name; `acp` if absent.
    name: Option<Spanned<String>>,
    /// The program: a name in `PATH`, or a path.
    command: Spanned<String>,
    /// Its arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Where it runs; the delegating agent's working directory if absent.
    cwd: Option<PathBuf>,
    /// How it is answered when it asks for a permission, `reject` or `allow`; `reject` if absent.
    #[serde(default)]
    permission: Permission,
    /// Variables for it, also such as are withheld otherwise.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// How long it may take to leave once its input has ended; 6000 if absent.
    dispose_eof_grace_ms: Option<Spanned<i64>>,
    /// How long it may take to leave after SIGTERM; 3000 if absent.
    dispose_grace_ms: Option<Spanned<i64>>,
    /// How many of its processes may live at once; positive. 8 if absent.
    max_children: Option<Spanned<i64>>,
    /// The tool by which models delegate to it; `subagent_NAME` if absent.
    tool: Option<Spanned<String>>,
}

impl Reader<'_> {
    pub(super) fn acp(&self, entries: Vec<AcpEntry>) -> Result<Vec<AcpAgentConfig>, ConfigError> {
        let mut agents: Vec<AcpAgentConfig> = Vec::new();
        for entry in entries {
            let agent = self.acp_agent(entry)?;
            if agents.iter().any(|other| other.config.name == agent.config.name) {
                let name = agent.config.name;
                let problem = format!("\"{name}\" is another ACP agent already; choose another name");
                return Err(agent.place.fault(problem));
            }
            agents.push(agent);
        }
        Ok(agents)
    }

    fn acp_agent(&self, entry: AcpEntry) -> Result<AcpAgentConfig, ConfigError> {
        let mut command = self.not_empty(&entry.command, "command")?;
        if command.contains(std::path::MAIN_SEPARATOR) {
            // As every path of the file.
            command = self.near(command.into()).to_string_lossy().into_owned();
        }
        let mut config = AcpConfig::new(command).args(entry.args).permission(entry.permission);
        let place = match &entry.name {
            Some(name) => {
                config.name = self.not_empty(name, "name")?;
                self.place(&name.span(), "name")
            }
            None => self.place(&entry.command.span(), "command"),
        };
        let grace = |at: &Option<Spanned<i64>>, key| {
            let ms = at.as_ref().map(|at| self.positive(at, key)).transpose();
            ms.map(|ms| ms.map(Duration::from_millis))
        };
        let eof = grace(&entry.dispose_eof_grace_ms, "dispose_eof_grace_ms")?;
        let term = grace(&entry.dispose_grace_ms, "dispose_grace_ms")?;
        config.eof_grace = eof.unwrap_or(config.eof_grace);
        config.term_grace = term.unwrap_or(config.term_grace);
        if let Some(at) = &entry.max_children {
            let limit = self.positive(at, "max_children")?;
            config.max_children = usize::try_from(limit).unwrap_or(usize::MAX);
        }
        config.cwd = entry.cwd.map(|cwd| self.near(cwd));
        config.env = entry.env;
        let tool = entry.tool.as_ref().map(|tool| self.not_empty(tool, "tool")).transpose()?;
        let tool = tool.unwrap_or_else(|| format!("subagent_{}", config.name));
        let config = config.check().map_err(|error| place.fault(error.to_string()))?;
        Ok(AcpAgentConfig { config, tool, place })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("playhouse.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_agent_of_another_program_is_read_and_paths_are_the_files() {
        let config = parse(
            r#"
            [[acp]]
            command = "bin/agent"
            [[acp]]
            name = "other"
            command = "other-agent"
            args = ["--acp"]
            permission = "allow"
            env = { OTHER_KEY = "k" }
            dispose_grace_ms = 10
            max_children = 2
            tool = "ask_other"
            "#,
        )
        .unwrap();
        let [first, second] = &config.acp[..] else { panic!("{:?}", config.acp) };
        let near = Path::new("bin/agent");
        assert!(Path::new(&first.config.command).ends_with(near), "{first:?}");
        assert_eq!((&*first.config.name, &*first.tool), ("acp", "subagent_acp"));
        assert_eq!((&*second.config.command, &*second.tool), ("other-agent", "ask_other"));
        assert_eq!((second.config.max_children, second.config.term_grace.as_millis()), (2, 10));
    }

    #[test]
    fn what_cannot_work_is_refused_by_its_place() {
        for (text, place, hint) in [
            ("[[acp]]\nname = \"a\"", ":1: `command`", "add the key"),
            ("[[acp]]\ncommand = \" \"", ":2: `command`", "not be empty"),
            ("[[acp]]\ncommand = \"a\"\n[[acp]]\ncommand = \"b\"", ":4: `command`", "another name"),
            ("[[acp]]\ncommand = \"a\"\npermission = \"ask\"", ":3: `permission`", "reject"),
            ("[[acp]]\ncommand = \"a\"\ncwd = \"nowhere/at/all\"", ":2: `command`", "existing"),
            ("[[acp]]\ncommand = \"a\"\ndispose_grace_ms = 0", ":3: `dispose_grace_ms`", "positive"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(place) && error.contains(hint), "{error}");
        }
    }
}
