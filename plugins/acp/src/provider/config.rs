//! How an agent of another program is started, asked and ended.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use playhouse_subagents::ChildError;

/// The provider's name unless told otherwise.
pub const ACP: &str = "acp";

/// How long an agent may take to leave once its standard input has ended, unless told otherwise.
pub const EOF_GRACE_DEFAULT: Duration = Duration::from_millis(6000);

/// How long it may take to leave after SIGTERM, unless told otherwise.
pub const TERM_GRACE_DEFAULT: Duration = Duration::from_millis(3000);

/// How many processes of one provider may live at once, unless told otherwise.
pub const MAX_CHILDREN_DEFAULT: usize = 8;

const GRACE_MS_MAX: u128 = (1 << 31) - 1;

/// An agent of another program.
///
/// ```
/// use playhouse_acp::{AcpConfig, Permission};
///
/// let config = AcpConfig::new("other-agent").args(["--acp"]).permission(Permission::Allow);
/// assert!(config.check().is_ok());
/// assert_eq!(AcpConfig::new("").check().unwrap_err().code(), "INVALID_ARGUMENT");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcpConfig {
    /// The provider's name, unique in a harness.
    pub name: String,
    /// The program: a path, or a name that is looked for in `PATH`.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it runs; the parent's working directory if absent. Relative to the current directory.
    pub cwd: Option<PathBuf>,
    /// How it is answered when it asks for a permission.
    pub permission: Permission,
    /// Variables for it, also such as are withheld otherwise.
    pub env: BTreeMap<String, String>,
    /// How long it may take to leave once its standard input has ended; 1 ms to 2^31-1 ms.
    pub eof_grace: Duration,
    /// How long it may take to leave after SIGTERM; 1 ms to 2^31-1 ms.
    pub term_grace: Duration,
    /// How many of them may live at once.
    pub max_children: usize,
}

/// How an agent is answered when it asks for a permission: nobody is there to be asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// No.
    #[default]
    Reject,
    /// The first option that allows, once or always; no if there is none.
    Allow,
}

impl AcpConfig {
    /// This program, without arguments and with the defaults.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            name: ACP.to_owned(),
            command: command.into(),
            args: Vec::new(),
            cwd: None,
            permission: Permission::default(),
            env: BTreeMap::new(),
            eof_grace: EOF_GRACE_DEFAULT,
            term_grace: TERM_GRACE_DEFAULT,
            max_children: MAX_CHILDREN_DEFAULT,
        }
    }

    /// Named like this.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// With these arguments.
    #[must_use]
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Running here.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Answering requests for permission like this.
    #[must_use]
    pub fn permission(mut self, permission: Permission) -> Self {
        self.permission = permission;
        self
    }

    /// With this variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// With these times to leave, once standard input has ended and after SIGTERM.
    #[must_use]
    pub fn graces(mut self, eof: Duration, term: Duration) -> Self {
        (self.eof_grace, self.term_grace) = (eof, term);
        self
    }

    /// With this many processes at once.
    #[must_use]
    pub fn max_children(mut self, limit: usize) -> Self {
        self.max_children = limit;
        self
    }

    /// The same config with an absolute working directory.
    ///
    /// # Errors
    ///
    /// [`ChildError::Config`], naming the field.
    pub fn check(&self) -> Result<Self, ChildError> {
        let refused = |text: String| Err(ChildError::Config(format!("ACP agent: {text}")));
        for (field, text) in [("name", &self.name), ("command", &self.command)] {
            if text.trim().is_empty() {
                return refused(format!("`{field}` must not be empty; give it a value"));
            }
        }
        for (field, grace) in [("EOF grace", self.eof_grace), ("TERM grace", self.term_grace)] {
            if !(1..=GRACE_MS_MAX).contains(&grace.as_millis()) {
                return refused(format!("its {field} must be 1 to {GRACE_MS_MAX} ms"));
            }
        }
        let mut checked = self.clone();
        if let Some(cwd) = &self.cwd {
            let found = (!cwd.as_os_str().is_empty()).then(|| std::path::absolute(cwd));
            match found {
                Some(Ok(absolute)) if absolute.is_dir() => checked.cwd = Some(absolute),
                _ => {
                    let text = format!("working directory \"{}\"", cwd.display());
                    return refused(format!("{text} is none; name an existing directory"));
                }
            }
        }
        Ok(checked)
    }

    /// Where a child runs whose parent works in `parent`.
    pub(super) fn working_dir(&self, parent: Option<&str>) -> Result<PathBuf, String> {
        let dir = match (&self.cwd, parent) {
            (Some(dir), _) => dir.as_path(),
            (None, Some(dir)) => Path::new(dir),
            (None, None) => {
                return Err("neither the agent nor its parent has a working directory".to_owned());
            }
        };
        match dir.is_absolute() && dir.is_dir() {
            true => Ok(dir.to_path_buf()),
            false => Err(format!("working directory {} is no absolute directory", dir.display())),
        }
    }
}

impl fmt::Debug for AcpConfig {
    /// The values of variables may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpConfig")
            .field("name", &self.name)
            .field("command", &self.command)
            .field("cwd", &self.cwd)
            .field("permission", &self.permission)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_and_values_of_variables_are_not_shown() {
        let good = AcpConfig::new("agent").cwd(".").env("API_KEY", "s3cret");
        assert!(good.check().unwrap().cwd.unwrap().is_absolute());
        let shown = format!("{good:?}");
        assert!(shown.contains("API_KEY") && !shown.contains("s3cret"), "{shown}");
        for (bad, hint) in [
            (AcpConfig::new(" "), "`command`"),
            (AcpConfig::new("a").name(""), "`name`"),
            (AcpConfig::new("a").cwd(""), "working directory"),
            (AcpConfig::new("a").cwd("nowhere/at/all"), "working directory"),
            (AcpConfig::new("a").graces(Duration::ZERO, TERM_GRACE_DEFAULT), "EOF grace"),
            (AcpConfig::new("a").graces(EOF_GRACE_DEFAULT, Duration::MAX), "TERM grace"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
        }
    }

    #[test]
    fn a_child_runs_where_the_config_says_or_else_where_its_parent_works() {
        let here = std::env::temp_dir();
        let parent = here.to_str().unwrap();
        let (any, fixed) = (AcpConfig::new("a"), AcpConfig::new("a").cwd(".").check().unwrap());
        assert_eq!(any.working_dir(Some(parent)).unwrap(), here);
        assert_eq!(fixed.working_dir(Some(parent)).unwrap(), fixed.cwd.clone().unwrap());
        assert!(any.working_dir(None).is_err());
        assert!(any.working_dir(Some("relative")).is_err());
        assert!(any.working_dir(Some("/nowhere/at/all")).is_err());
    }
}
