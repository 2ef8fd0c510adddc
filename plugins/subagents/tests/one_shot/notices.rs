//! Who is told.

use std::sync::{Arc, Mutex};

use playhouse_models::scripted::Reply;
use playhouse_subagents::{ProviderNotice, Slots, Spawn, spawn};

use crate::{house, on};

mod subagents {
    use super::*;

    #[tokio::test]
    async fn orchestration_1_10_each_run_has_a_number_of_its_own() {
        let house = house([on("", Reply::text("done"))]).await;
        let (providers, told) = (house.providers(), Arc::new(Mutex::new(Vec::new())));
        let (starts, ends) = (told.clone(), told.clone());
        let scope = house.root.scope();
        let lifecycle = providers.lifecycle();
        lifecycle.started.add(scope, move |s| starts.lock().unwrap().push((s.run, true))).unwrap();
        lifecycle.ended.add(scope, move |e| ends.lock().unwrap().push((e.run.run, false))).unwrap();
        for _ in 0..2 {
            let run = house.spawn("task").await;
            run.result().await.unwrap();
            run.dispose().await.unwrap();
        }
        house.until_alone().await;
        let told = told.lock().unwrap().clone();
        let [first, last] = [told[0].0, told[2].0];
        assert_ne!(first, last);
        assert_eq!(told, [(first, true), (first, false), (last, true), (last, false)]);
        house.ends_clean().await;
    }

    #[tokio::test]
    async fn orchestration_1_1_a_providers_coming_and_going_are_told_to_all_and_end_no_run() {
        let house = house([on("", Reply::text("done").at_gate("work"))]).await;
        let (providers, world) = (house.providers(), house.world().clone());
        let told = Arc::new(Mutex::new(Vec::new()));
        let record = told.clone();
        let listener = move |notice: &ProviderNotice| record.lock().unwrap().push(notice.clone());
        // Of a scope that has nothing to do with the provider's.
        let listening = world.scope.child("listener").unwrap();
        providers.lifecycle().provider.add(&listening, listener).unwrap();

        let scope = world.scope.child("another").unwrap();
        let another = Arc::new(Named(Spawn::new(world.clone(), Slots::new(1))));
        providers.register(&scope, another.clone()).unwrap();
        let refused = providers.register(&scope, another).unwrap_err();
        assert_eq!(refused.code(), "DUPLICATE_PROVIDER");
        let run = providers.start("another", house.ask("task")).await.unwrap();
        scope.close();
        let gone = providers.start("another", house.ask("task")).await.unwrap_err();
        assert_eq!(gone.code(), "NO_PROVIDER");
        let name = || "another".to_owned();
        let expected =
            [ProviderNotice::Added { name: name() }, ProviderNotice::Removed { name: name() }];
        assert_eq!(*told.lock().unwrap(), expected);
        house.model.gate("work").open();
        assert_eq!(run.result().await.unwrap().text(), "done");
        run.dispose().await.unwrap();
        // The child's scope gives its slot back, whoever's it was.
        let again = spawn(&world, house.ask("task")).await.unwrap();
        again.dispose().await.unwrap();
        house.ends_clean().await;
    }

    struct Named(Spawn);

    impl playhouse_subagents::ChildProvider for Named {
        fn name(&self) -> &str {
            "another"
        }

        fn capabilities(&self) -> playhouse_subagents::Capabilities {
            self.0.capabilities()
        }

        fn start(
            &self,
            request: playhouse_subagents::ChildRequest,
        ) -> futures::future::BoxFuture<
            'static,
            Result<playhouse_subagents::Run, playhouse_subagents::ChildError>,
        > {
            self.0.start(request)
        }
    }
}
