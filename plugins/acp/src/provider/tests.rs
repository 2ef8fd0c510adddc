//! The provider against real processes: agents that are written in the shell.

use std::{path::Path, time::Duration};

use playhouse_models::scripted::{Reply, Script, ScriptedAdapter};
use playhouse_plugin_api::{agent::Agent, creation::NewAgent, options::AgentOptions, scope::Scope};
use playhouse_supervisor::harness::Harness;
use tempfile::TempDir;

use super::*;

/// Reads requests and answers them; `$1` is what it does with a prompt. `say` sends a chunk, `stop`
/// answers the prompt, `id` is that of the request.
const AGENT: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
update() { printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"%s","update":%s}}\n' "$1" "$2"; }
say() { update s1 '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}'; }
stop() { answer '{"stopReason":"'"$1"'"}'; }
ask() {
  printf '{"jsonrpc":"2.0","id":"p1","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"t"},"options":[{"optionId":"no","name":"No","kind":"reject_once"},{"optionId":"yes","name":"Yes","kind":"allow_always"}]}}\n'
  IFS= read -r reply
}
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

/// Waits until a shell has written to a gate.
async fn passed(path: std::path::PathBuf) {
    tokio::task::spawn_blocking(move || std::fs::read_to_string(path)).await.unwrap().unwrap();
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
        // It never answers, ignores SIGTERM and the end of its input, and so does what it starts. Once
        // its question is answered, what it said before has been heard.
        let stubborn = r#"trap "" TERM; say "as far as it got"; ask
            (while :; do tail -f /dev/null; done) & echo x > said; wait"#;
        let config = stage.shell(AGENT, stubborn).graces(QUICK, QUICK);
        let provider = stage.provider(&config);
        let cancel = CancelToken::new();
        let request = ChildRequest::new(&stage.parent, "Go").cancelled_by(cancel.clone());
        let run = provider.start(request).await.unwrap();
        passed(stage.path("said")).await;
        cancel.cancel(CancelCause::Parent);
        let result = run.result().await.unwrap();
        assert_eq!(result.stop_reason, StopReason::Aborted);
        assert_eq!(result.text(), "as far as it got");
        let left = working_in(stage.dir.path());
        assert!(left.len() >= 2, "settled before anything has ended: {left:?}");
        assert_eq!(provider.slots().taken(), 1);
        run.dispose().await.unwrap();
        stage.is_alone();
        assert_eq!(provider.slots().taken(), 0);
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_one_prompt_in_text_and_the_answer_is_what_the_agent_said() {
        let stage = Stage::new().await;
        let thought = r#"update s1 '{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":"hm"}}'"#;
        let other = r#"update s2 '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"x"}}'"#;
        let script = format!(r#"{thought}; {other}; say "one, "; say "two"; stop end_turn"#);
        let run = stage.start(&stage.shell(AGENT, &script)).await.unwrap();
        assert!(run.agent().is_none());
        // The agent's own id is not ours, and not unique.
        assert_ne!(run.id().as_str(), "s1");
        let result = run.result().await.unwrap();
        assert_eq!(
            (result.text().as_str(), &result.stop_reason),
            ("one, two", &StopReason::Completed)
        );
        assert_eq!(result.diagnostic, None);
        run.dispose().await.unwrap();
        stage.is_alone();
        let asked = std::fs::read_to_string(stage.path("asked")).unwrap();
        let asked: Vec<serde_json::Value> =
            asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let granted = asked[0]["params"]["clientCapabilities"].to_string();
        assert!(!granted.contains("true"), "{granted}");
        assert_eq!(
            asked[1]["params"]["prompt"],
            serde_json::json!([{"type": "text", "text": "Go"}])
        );
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_permissions_are_answered_as_the_config_says() {
        let stage = Stage::new().await;
        let script = r#"ask; case $reply in *yes*) say allowed ;; *cancelled*) say refused ;; esac; stop end_turn"#;
        for (permission, said) in [(Permission::Allow, "allowed"), (Permission::Reject, "refused")]
        {
            let config = stage.shell(AGENT, script).permission(permission);
            let run = stage.start(&config).await.unwrap();
            assert_eq!(run.result().await.unwrap().text(), said);
            run.dispose().await.unwrap();
        }
        stage.is_alone();
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_child_that_floods_its_output_is_given_up_and_leaves_nothing() {
        let stage = Stage::new().await;
        let permission = r#"{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{"sessionId":"s1","toolCall":{"toolCallId":"t"},"options":[]}}"#;
        for (line, hint) in [
            (permission, "without reading"),
            (r#"{"jsonrpc":"2.0","id":7,"method":"who/knows","params":{}}"#, "without reading"),
            ("{}", "without reading"),
            (r#"{"jsonrpc": nonsense"#, "not the protocol"),
            ("[1]", "not the protocol"),
        ] {
            let config = stage.shell(AGENT, &format!("yes '{line}'")).graces(QUICK, QUICK);
            let run = stage.start(&config).await.unwrap();
            let result = tokio::time::timeout(PATIENT, run.result()).await;
            let result = result.unwrap_or_else(|_| panic!("it hangs: {line}")).unwrap();
            assert_eq!(result.stop_reason, StopReason::Error, "{line}");
            let diagnostic = result.diagnostic.unwrap();
            assert!(diagnostic.contains(hint), "{line}: {diagnostic}");
            run.dispose().await.unwrap();
            stage.is_alone();
        }
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_long_cause_of_a_failed_start_is_cut() {
        let stage = Stage::new().await;
        let agent = r#"IFS= read -r line; id=$(printf '%s' "$line" | sed -E 's/.*"id":("[^"]*"|[0-9]+).*/\1/')
            long=$(head -c 100000 /dev/zero | tr '\0' x)
            printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"%s"}}\n' "$id" "$long"
            cat > /dev/null"#;
        let config = stage.shell(agent, "").graces(QUICK, QUICK);
        let error = stage.refusal(&config).await.to_string();
        assert!(error.contains("xxx") && error.len() < 3000, "{}", error.len());
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_whatever_goes_wrong_settles_and_partial_text_survives() {
        let stage = Stage::new().await;
        let refuses = r#"say abc; printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"log in first"}}\n' "$id""#;
        for (script, stop_reason, hint) in [
            (r#"say abc; stop max_tokens"#, StopReason::MaxTokens, None),
            (r#"say abc; stop refusal"#, StopReason::Refusal, None),
            (r#"say abc; stop tired"#, StopReason::Error, Some("tired")),
            (r#"say abc; echo oops >&2; exit 3"#, StopReason::Error, Some("exit status: 3")),
            (r#"say abc; echo oops >&2; exit 3"#, StopReason::Error, Some("oops")),
            (r#"say abc; kill -9 $$"#, StopReason::Error, Some("signal: 9")),
            (r#"say abc; echo "Hello, world""#, StopReason::Error, Some("Hello, world")),
            // What it leaves behind holds its output open.
            (r#"say abc; tail -f /dev/null & exit 0"#, StopReason::Error, Some("exit status: 0")),
            (refuses, StopReason::Error, Some("log in first")),
        ] {
            let config = stage.shell(AGENT, script).graces(QUICK, QUICK);
            let run = stage.start(&config).await.unwrap();
            let result = run.result().await.unwrap();
            run.dispose().await.unwrap();
            stage.is_alone();
            assert_eq!(
                (result.text().as_str(), &result.stop_reason),
                ("abc", &stop_reason),
                "{script}"
            );
            let diagnostic = result.diagnostic.unwrap_or_default();
            assert!(diagnostic.contains(hint.unwrap_or_default()), "{script}: {diagnostic}");
            assert_eq!(diagnostic.is_empty(), hint.is_none(), "{script}: {diagnostic}");
        }
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_a_start_that_fails_leaves_nothing_behind() {
        let stage = Stage::new().await;
        let missing = stage.refusal(&AcpConfig::new("/nowhere/at/all")).await;
        assert_eq!(missing.code(), "ACP_SPAWN");
        for (script, hint) in [
            ("echo no protocol here", "no protocol here"),
            ("tail -f /dev/null & echo no protocol here", "no protocol here"),
            ("echo why >&2; exit 7", "exit status: 7"),
            ("tail -f /dev/null & exit 7", "exit status: 7"),
            (
                r#"read -r line; echo '{"jsonrpc":"2.0","id":null,"result":{}}'; exit 1"#,
                "exit status: 1",
            ),
        ] {
            let error = stage.refusal(&stage.shell(script, "").graces(QUICK, QUICK)).await;
            assert_eq!(error.code(), "ACP_START", "{error}");
            assert!(error.to_string().contains(hint), "{script}: {error}");
        }
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_a_cancel_fails_the_start_and_a_start_that_nobody_awaits_is_undone()
    {
        let stage = Stage::new().await;
        let silent = stage.shell("echo x > up; tail -f /dev/null", "").graces(QUICK, QUICK);
        let provider = stage.provider(&silent);
        let cancel = CancelToken::new();
        let request = ChildRequest::new(&stage.parent, "Go").cancelled_by(cancel.clone());

        gate(&stage.path("up"));
        let starting = tokio::spawn(provider.start(request.clone()));
        passed(stage.path("up")).await;
        cancel.cancel(CancelCause::Parent);
        assert_eq!(starting.await.unwrap().unwrap_err().code(), "ABORTED");
        stage.is_alone();
        // With a token that has fired nothing is even tried.
        assert_eq!(provider.start(request).await.unwrap_err().code(), "ABORTED");

        let starting = tokio::spawn(provider.start(ChildRequest::new(&stage.parent, "Go")));
        passed(stage.path("up")).await;
        starting.abort();
        while provider.slots().taken() > 0 {
            tokio::task::yield_now().await;
        }
        stage.is_alone();
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_a_cancel_is_told_to_the_agent_and_its_input_ends() {
        let stage = Stage::new().await;
        gate(&stage.path("asked-now"));
        let config = stage.shell(AGENT, "echo x > asked-now").graces(PATIENT, PATIENT);
        let cancel = CancelToken::new();
        let request = ChildRequest::new(&stage.parent, "Go").cancelled_by(cancel.clone());
        let run = stage.provider(&config).start(request).await.unwrap();
        passed(stage.path("asked-now")).await;
        cancel.cancel(CancelCause::User);
        assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Aborted);
        // It leaves by itself: no grace has passed, and nothing was killed.
        run.dispose().await.unwrap();
        assert!(stage.path("cancelled").exists());
        stage.is_alone();
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_an_owner_that_closes_kills_what_its_children_have_started() {
        let stage = Stage::new().await;
        gate(&stage.path("up"));
        let script = r#"trap "" TERM; say abc; ask; tail -f /dev/null & echo x > up; wait"#;
        let owner = Scope::root("owner");
        let request = ChildRequest::new(&stage.parent, "Go").owned_by(owner.clone());
        let config = stage.shell(AGENT, script).graces(PATIENT, PATIENT);
        let run = stage.provider(&config).start(request).await.unwrap();
        passed(stage.path("up")).await;
        owner.close_and_wait().await;
        let result = run.result().await.unwrap();
        assert_eq!((result.text().as_str(), &result.stop_reason), ("abc", &StopReason::Aborted));
        run.dispose().await.unwrap();
        while !working_in(stage.dir.path()).is_empty() {
            tokio::task::yield_now().await;
        }
        stage.harness.shutdown().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn orchestration_1_11_what_it_cannot_do_is_refused_before_anything_starts() {
        let stage = Stage::new().await;
        let provider = stage.provider(&stage.shell(AGENT, "stop end_turn").max_children(1));
        assert_eq!(provider.capabilities(), Capabilities::default());
        assert!(!provider.inherits_parent_context());
        let ask = || ChildRequest::new(&stage.parent, "Go");
        let options = ChildOptions { max_tokens: Some(1), ..ChildOptions::default() };
        let mut wordless = ask();
        wordless.prompt = Vec::new();
        for (request, code) in
            [(ask().options(options), "UNSUPPORTED_CAPABILITY"), (wordless, "INVALID_ARGUMENT")]
        {
            assert_eq!(provider.start(request).await.unwrap_err().code(), code);
        }
        let run = provider.start(ask()).await.unwrap();
        assert_eq!(provider.start(ask()).await.unwrap_err().code(), "SUBAGENT_CAPACITY");
        assert_eq!(run.result().await.unwrap().stop_reason, StopReason::Completed);
        run.dispose().await.unwrap();
        assert_eq!(provider.slots().taken(), 0);

        let options = AgentOptions::new().model("scripted", "any").max_depth(0);
        let leaf = stage.harness.create(NewAgent::new(options)).await.unwrap();
        let request = ChildRequest::new(&leaf, "Go");
        assert_eq!(provider.start(request).await.unwrap_err().code(), "SUBAGENT_DEPTH");
        // It may delegate, and has no directory.
        let options = AgentOptions::new().model("scripted", "any");
        let nowhere = stage.harness.create(NewAgent::new(options)).await.unwrap();
        let request = ChildRequest::new(&nowhere, "Go");
        assert_eq!(provider.start(request).await.unwrap_err().code(), "ACP_CWD");
        stage.is_alone();
        stage.harness.shutdown().await.unwrap();
    }
}
