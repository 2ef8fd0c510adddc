//! The command, as its users see it: every test spawns the binary.

mod bad_input;
mod fork;
mod hibernation;
mod images;
mod presets;
pub mod rpc;
mod run;
mod sessions;
#[cfg(feature = "stress")]
mod stress;
#[cfg(unix)]
mod top;
mod upkeep;
mod wire;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory to run the command in.
pub struct House {
    dir: TempDir,
}

impl House {
    pub fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_playhouse"));
        command.args(args).current_dir(self.path()).stdin(Stdio::null());
        for variable in [
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_BASE_URL",
            "DEEPSEEK_API_KEY",
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            "PLAYHOUSE_LOG",
        ] {
            command.env_remove(variable);
        }
        command
    }

    pub fn run(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args).output().unwrap())
    }

    pub fn spawn(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        Running::of(command.stdin(Stdio::piped()))
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The one line of an error, after checking that it is one.
    #[track_caller]
    pub fn error(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        let errors: Vec<_> = self.err.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{self:?}");
        errors[0]
    }

    pub fn json(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A running command whose output is read by the line.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Lines that were read and that nobody has asked for.
    kept: Vec<String>,
}

impl Running {
    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines, kept: Vec::new() }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn end_input(&mut self) {
        self.input = None;
    }

    /// The first line that fits, of those that came and those to come. Others are kept.
    #[track_caller]
    fn line<T>(&mut self, mut fits: impl FnMut(&str) -> Option<T>) -> T {
        let found = self.kept.iter().enumerate().find_map(|(at, line)| Some((at, fits(line)?)));
        if let Some((at, found)) = found {
            self.kept.remove(at);
            return found;
        }
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => match fits(&line) {
                    Some(found) => return found,
                    None => self.kept.push(line),
                },
                Err(error) => panic!("{error} among:\n{}", self.kept.join("\n")),
            }
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for the end; gives the exit code and the lines that nobody asked for.
    fn end(mut self) -> (Option<i32>, Vec<String>) {
        self.end_input();
        self.kept.extend(self.lines.iter());
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.kept))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed leaves nothing running; one that succeeded has waited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
