//! The provider against real processes: agents that are written in the shell.

use std::{path::Path, time::Duration};

use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{
    agent::Agent,
    creation::NewAgent,
    options::AgentOptions,
    scope::Scope,
};
use playhouse_supervisor::harness::Harness;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use super::*;

/// Reads requests and answers them; `$1` is what it does with a prompt. `say` sends a chunk, `stop`
/// answers the prompt, `id` is that of the request.
const AGENT: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
update() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%s","update":%s}}\n' "$1" "$2"; }
say() { update s1 '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}'; }
stop() { answer '{"stopReason":"'"$1"'"}'; }
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -E 's/.*"id":("[^"]*"|[0-9]+).*/\1/')
  case $line in
    *'"method":"initialize"'*) printf '%s\n' "$line" >> asked
      answer '{"protocolVersion":1}' ;;
    *'"method":"session/new"'*) answer '{"sessionId":"s1"}' ;;
    *'"method":"session/prompt"'*) printf '%s\n' "$line" >> asked
      eval "$1" ;;
    *'"method":"session/cancel"'*) echo cancelled > cancelled ;;
  esac
done
"#;

/// A parent in a directory of its own, whose agents are written in the shell.
struct Stage {
    dir: TempDir,
    harness: Harness,
    parent: Agent,
}

impl Stage {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let harness = Harness::builder().start().await.unwrap();
        let model = Arc::new(ScriptedAdapter::new(Script::new().reply(Reply::text("unused"))));
        harness.world().models.register(["scripted"], model).unwrap();
        let options = AgentOptions::new().model("scripted", "any");
        let new = NewAgent::new(options).cwd(dir.path().to_str().unwrap());
        let parent = harness.create(new).await.unwrap().agent().clone();
        Self { dir, harness, parent }
    }

    fn shell(&self, script: &str, on_prompt: &str) -> AcpConfig {
        AcpConfig::new("/bin/sh").args(["-c", script, "agent", on_prompt])
    }

    fn provider(&self, config: &AcpConfig) -> AcpProvider {
        AcpProvider::new(config, self.harness.world().ids.clone()).unwrap()
    }

    async fn start(&self, config: &AcpConfig) -> Result<Run, ChildError> {
        self.provider(config).start(ChildRequest::new(&self.parent, "Go")).await
    }

    /// The result of an agent that does this with its prompt, after it was ended.
    async fn result(&self, on_prompt: &str) -> ChildResult {
        let run = self.start(&self.shell(AGENT, on_prompt)).await.unwrap();
        let result = run.result().await.unwrap();
        run.dispose().await.unwrap();
        self.is_alone();
        result
    }

    async fn refusal(&self, config: &AcpConfig) -> ChildError {
        let error = self.start(config).await.unwrap_err();
        self.is_alone();
        error
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// No process works in the stage's directory, which every agent does.
    #[track_caller]
    fn is_alone(&self) {
        assert_eq!(working_in(self.dir.path()), Vec::<String>::new());
    }
}

/// The running processes whose working directory this is.
fn working_in(dir: &Path) -> Vec<String> {
    let dir = dir.canonicalize().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let here = processes.filter(|process| {
        std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == dir)
    });
    here.map(|process| std::fs::read_to_string(process.path().join("stat")).unwrap_or_default())
        .filter(|stat| !stat.is_empty())
        .collect()
}

/// A named pipe by which a shell tells that it has come so far: a write to it waits for a reader.
fn gate(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

async fn passed(path: &Path) -> String {
    let mut text = String::new();
    tokio::fs::File::open(path).await.unwrap().read_to_string(&mut text).await.unwrap();
    text
}

const QUICK: Duration = Duration::from_millis(50);
const PATIENT: Duration = Duration::from_secs(60);

mod subagents {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_14_13_a_cancel_settles_at_once_and_dispose_returns_when_all_processes_are_gone()
     {
        let stage = Stage::new().await;
        gate(&stage.path("said"));
        // It never answers, ignores SIGTERM and the end of its input, and so does what it starts.
        let stubborn = r#"trap "" TERM; say "as far as it got"; (while :; do tail -f /dev/null; done) & echo x > said; wait"#;
        let config = stage.shell(AGENT, stubborn).graces(QUICK, QUICK);
        let provider = stage.provider(&config);
        let cancel = CancelToken::new();
        let request = ChildRequest::new(&stage.parent, "Go").cancelled_by(cancel.clone());
        let run = provider.start(request).await.unwrap();
        passed(&stage.path("said")).await;
        heard(&run, &provider).await;
        cancel.cancel(CancelCause::Parent);
        let result = run.result().await.unwrap();
        assert_eq!(result.stop_reason, StopReason::Aborted);
        assert_eq!(result.text(), "as far as it got");
        assert!(working_in(stage.dir.path()).len() >= 2, "settled before anything has ended");
        assert_eq!(provider.slots().taken(), 1);
        run.dispose().await.unwrap();
        stage.is_alone();
        assert_eq!(provider.slots().taken(), 0);
        stage.harness.shutdown().await.unwrap();
    }

    /// The chunk was written before the gate; it is read once the scheduler has come to it.
    async fn heard(run: &Run, _provider: &AcpProvider) {
        let _ = run;
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    }
}
