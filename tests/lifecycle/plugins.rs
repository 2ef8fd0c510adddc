//! Plugins that a harness is built with.

#[tokio::test]
async fn a_harness_starts_with_its_plugins_set_up_or_not_at_all() {
    use futures::FutureExt;
    use playhouse::{Plugin, PluginContext, messages::chunk::Failure};

    /// Registers a tool, after others had their turn; or fails.
    struct Late(bool);

    impl Plugin for Late {
        fn name(&self) -> &str {
            "late"
        }

        fn setup(
            &self,
            ctx: PluginContext,
        ) -> futures::future::BoxFuture<'static, Result<(), Failure>> {
            let fails = self.0;
            async move {
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                if fails {
                    return Err(Failure::new("NO_LUCK", "it did not work"));
                }
                let text = playhouse::plugin_api::prompt::Section::text("late", 0.0, "I am here.");
                let world = ctx.world()?;
                let section = world.prompts.section(&world.scope, text);
                let section =
                    section.map_err(|fault| Failure::new("SECTION", fault.to_string()))?;
                drop(section);
                Ok(())
            }
            .boxed()
        }
    }

    let harness = playhouse::minimal().plugin(Late(false)).start().await.unwrap();
    // A second section of that name would be refused.
    let text = playhouse::plugin_api::prompt::Section::text("late", 0.0, "Me too.");
    assert!(harness.world().prompts.section(&harness.world().scope, text).is_err());
    harness.shutdown().await.unwrap();

    let error = playhouse::minimal().plugin(Late(true)).start().await.unwrap_err();
    assert_eq!(error.code(), "NO_LUCK");
    assert!(error.to_string().contains("`late`"), "{error}");
}
