//! Hosting plugins, one after the other.

use playhouse_messages::chunk::Failure;
use playhouse_supervisor::plugin_host::{HostError, PluginHandle, PluginStatus};

use super::exit::CliError;

/// Waits until a plugin is set up: an agent's first step must see its tools. What it needs was set up
/// before it, or will never be.
pub(super) async fn set_up(hosted: Result<PluginHandle, HostError>) -> Result<(), CliError> {
    let plugin = hosted.map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let mut status = plugin.watch();
    let settled = |status: &PluginStatus| *status != PluginStatus::SettingUp;
    let failed = match status.wait_for(settled).await.as_deref() {
        Ok(PluginStatus::Waiting { missing }) => {
            let text =
                format!("nothing before it provides {}; name that first", missing.join(", "));
            Failure::new("PLUGIN_WAITING", text)
        }
        Ok(PluginStatus::Failed { failure }) => failure.clone(),
        Ok(PluginStatus::Active) => return Ok(()),
        _ => Failure::new("PLUGIN_STOPPED", "it was stopped"),
    };
    let text = format!("plugin \"{}\" could not be set up: {}", plugin.name(), failed.message);
    Err(CliError::Library(Failure::new(failed.code, text)))
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::BoxFuture};
    use playhouse_plugin_api::plugin::{Plugin, PluginContext};

    use super::*;

    struct Needs(Vec<&'static str>);

    impl Plugin for Needs {
        fn name(&self) -> &str {
            "needy"
        }

        fn requires(&self) -> Vec<&'static str> {
            self.0.clone()
        }

        fn setup(&self, _: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
            async { Ok(()) }.boxed()
        }
    }

    #[tokio::test]
    async fn a_plugin_whose_need_never_comes_is_told_and_not_waited_for() {
        let harness = crate::minimal().start().await.unwrap();
        let waiting = set_up(harness.host(Needs(vec!["nobody"])).await).await.unwrap_err();
        assert!(waiting.line().contains("nothing before it provides nobody"), "{}", waiting.line());
        harness.shutdown().await.unwrap();
        let harness = crate::minimal().start().await.unwrap();
        set_up(harness.host(Needs(vec![])).await).await.unwrap();
        harness.shutdown().await.unwrap();
    }
}
