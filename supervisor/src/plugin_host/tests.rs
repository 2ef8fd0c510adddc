use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use playhouse_plugin_api::plugin::PluginContext;
use tokio::sync::Semaphore;

use super::*;

/// How the setups of a [`Probe`] end.
#[derive(Clone, Copy, PartialEq)]
enum Script {
    Succeed,
    Fail,
    Panic,
    PanicBeforeTheFuture,
}

/// A plugin that says what becomes of it.
struct Probe {
    name: &'static str,
    requires: Vec<&'static str>,
    script: Mutex<Script>,
    /// A permit lets one setup pass.
    gate: Arc<Semaphore>,
    started: Arc<watch::Sender<usize>>,
    /// Scopes of this plugin that are open.
    open: Arc<AtomicUsize>,
    /// Setups that run now; more than one at a time is a fault.
    running: Arc<AtomicUsize>,
}

impl Probe {
    fn new(requires: &[&'static str]) -> Arc<Self> {
        Self::named("probe", requires)
    }

    fn named(name: &'static str, requires: &[&'static str]) -> Arc<Self> {
        Arc::new(Self {
            name,
            requires: requires.to_vec(),
            script: Mutex::new(Script::Succeed),
            gate: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            started: Arc::new(watch::Sender::new(0)),
            open: Arc::default(),
            running: Arc::default(),
        })
    }

    fn script(&self, script: Script) {
        *self.script.lock().unwrap() = script;
    }

    fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn setups(&self) -> usize {
        *self.started.borrow()
    }

    /// From here on each setup waits for a permit.
    fn shut_gate(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Plugin for Probe {
    fn name(&self) -> &str {
        self.name
    }

    fn requires(&self) -> Vec<&'static str> {
        self.requires.clone()
    }

    fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
        let script = *self.script.lock().unwrap();
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = self.open.clone();
        ctx.scope.on_close(move || _ = open.fetch_sub(1, Ordering::SeqCst)).unwrap();
        self.started.send_modify(|count| *count += 1);
        assert_ne!(script as u8, Script::PanicBeforeTheFuture as u8, "before the future");
        assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "two setups at a time");
        let running = Running(self.running.clone());
        let gate = self.gate.clone();
        async move {
            let _running = running;
            gate.acquire().await.unwrap().forget();
            match script {
                Script::Fail => Err(Failure::new("NO_LUCK", "no luck")),
                Script::Panic => panic!("boom"),
                _ => Ok(()),
            }
        }
        .boxed()
    }
}

struct Stage {
    root: Scope,
    services: Services,
    plugins: Plugins,
    join: JoinHandle<()>,
}

async fn stage() -> Stage {
    let (root, services) = (Scope::root("root"), Services::new());
    let limits = RestartLimits::default();
    let started = Plugins::start(root.clone(), services.clone(), limits, None).await;
    let (plugins, join) = started.unwrap();
    Stage { root, services, plugins, join }
}

impl Stage {
    /// Offers a service from a scope of its own, which is returned.
    fn provide(&self, name: &'static str) -> Scope {
        let scope = self.root.child(name).unwrap();
        self.services.provide(&scope, name, Arc::new(())).unwrap();
        scope
    }

    async fn host_of(&self, handle: &PluginHandle) -> Option<ActorCell> {
        handle.host().await
    }

    async fn kill_host(&self, handle: &PluginHandle) {
        self.host_of(handle).await.unwrap().kill();
    }
}

async fn until(handle: &PluginHandle, is_it: impl FnMut(&PluginStatus) -> bool) -> PluginStatus {
    handle.watch().wait_for(is_it).await.unwrap().clone()
}

async fn until_active(handle: &PluginHandle) {
    until(handle, |status| *status == PluginStatus::Active).await;
}

async fn until_failed(handle: &PluginHandle) -> Failure {
    match until(handle, |status| matches!(status, PluginStatus::Failed { .. })).await {
        PluginStatus::Failed { failure } => failure,
        status => panic!("{status:?}"),
    }
}

async fn until_waiting(handle: &PluginHandle) -> Vec<&'static str> {
    match until(handle, |status| matches!(status, PluginStatus::Waiting { .. })).await {
        PluginStatus::Waiting { missing } => missing,
        status => panic!("{status:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_waits_for_its_services_and_is_unwound_while_one_is_gone() {
    let stage = stage().await;
    let probe = Probe::new(&["shell", "files"]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    assert_eq!(until_waiting(&handle).await, ["shell", "files"]);
    stage.provide("shell");
    until(&handle, |status| *status == PluginStatus::Waiting { missing: vec!["files"] }).await;
    assert_eq!(handle.reload().await.unwrap_err().code, "PLUGIN_WAITING");
    assert_eq!(probe.setups(), 0);
    let files = stage.provide("files");
    until_active(&handle).await;
    assert_eq!((probe.setups(), probe.open()), (1, 1));
    files.close();
    assert_eq!(until_waiting(&handle).await, ["files"]);
    assert_eq!(probe.open(), 0);
    stage.provide("files");
    until_active(&handle).await;
    assert_eq!((probe.setups(), probe.open()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_replaced_between_two_looks_sets_the_plugin_up_again() {
    let stage = stage().await;
    let probe = Probe::new(&["shell"]);
    let shell = stage.provide("shell");
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    let mut started = probe.started.subscribe();
    // On one thread nothing looks between these two.
    shell.close();
    stage.provide("shell");
    started.wait_for(|count| *count == 2).await.unwrap();
    until_active(&handle).await;
    assert_eq!(probe.open(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_goes_during_a_setup_drops_it() {
    let stage = stage().await;
    let probe = Probe::new(&["shell"]);
    probe.shut_gate();
    let shell = stage.provide("shell");
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    probe.started.subscribe().wait_for(|count| *count == 1).await.unwrap();
    assert_eq!(handle.status(), PluginStatus::SettingUp);
    shell.close();
    until_waiting(&handle).await;
    assert_eq!(probe.open(), 0);
    stage.provide("shell");
    probe.gate.add_permits(1);
    until_active(&handle).await;
    assert_eq!((probe.setups(), probe.running.load(Ordering::SeqCst)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_service_another_plugin_provides_follows_it() {
    struct Provider;
    impl Plugin for Provider {
        fn name(&self) -> &str {
            "provider"
        }
        fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
            let provided = ctx.services.provide(&ctx.scope, "shell", Arc::new(()));
            async move { provided.map(drop).map_err(Failure::from) }.boxed()
        }
    }
    let stage = stage().await;
    let probe = Probe::new(&["shell"]);
    let follower = stage.plugins.host(probe.clone()).await.unwrap();
    let provider = stage.plugins.host(Arc::new(Provider)).await.unwrap();
    until_active(&follower).await;
    let mut started = probe.started.subscribe();
    provider.reload().await.unwrap();
    started.wait_for(|count| *count == 2).await.unwrap();
    until_active(&follower).await;
    provider.stop().await;
    until_waiting(&follower).await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_unwinds_and_returns_when_the_plugin_is_set_up_again() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    handle.reload().await.unwrap();
    assert_eq!((handle.status(), probe.setups(), probe.open()), (PluginStatus::Active, 2, 1));
    probe.script(Script::Fail);
    assert_eq!(handle.reload().await.unwrap_err().code, "NO_LUCK");
    assert_eq!(probe.open(), 0);
    probe.script(Script::Succeed);
    handle.reload().await.unwrap();
    assert_eq!((probe.setups(), probe.open()), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_reload_during_a_setup_starts_over_and_answers_everyone() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    probe.shut_gate();
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    let mut started = probe.started.subscribe();
    started.wait_for(|count| *count == 1).await.unwrap();
    let reload = || {
        let handle = handle.clone();
        tokio::spawn(async move { handle.reload().await })
    };
    let first = reload();
    started.wait_for(|count| *count == 2).await.unwrap();
    let second = reload();
    started.wait_for(|count| *count == 3).await.unwrap();
    assert_eq!(probe.open(), 1);
    probe.gate.add_permits(1);
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(()), Ok(())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_setup_left_running_has_ended_before_the_next_begins() {
    /// Holds the one permit of a semaphore until its task is told, and is deaf until then.
    struct Holder(Arc<Semaphore>, Mutex<Option<std::sync::mpsc::Receiver<()>>>);
    impl Plugin for Holder {
        fn name(&self) -> &str {
            "holder"
        }
        fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
            let permit = self.0.clone().try_acquire_owned();
            let told = self.1.lock().unwrap().take();
            async move {
                let permit = permit.map_err(|_| Failure::new("BUSY", "still held"))?;
                let (ready, started) = tokio::sync::oneshot::channel();
                ctx.scope.spawn(async move {
                    let _permit = permit;
                    ready.send(()).unwrap();
                    if let Some(told) = told {
                        // Hands this worker's other tasks over: only this one is deaf.
                        tokio::task::block_in_place(|| told.recv()).unwrap();
                    }
                    std::future::pending().await
                });
                started.await.unwrap();
                Ok(())
            }
            .boxed()
        }
    }
    let stage = stage().await;
    let semaphore = Arc::new(Semaphore::new(1));
    let (tell, told) = std::sync::mpsc::channel();
    let holder = Arc::new(Holder(semaphore.clone(), Mutex::new(Some(told))));
    let handle = stage.plugins.host(holder).await.unwrap();
    until_active(&handle).await;
    let asking = handle.clone();
    let reload = tokio::spawn(async move { asking.reload().await });
    until(&handle, |status| *status == PluginStatus::SettingUp).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    tell.send(()).unwrap();
    assert_eq!(reload.await.unwrap(), Ok(()));
    for _ in 0..3 {
        handle.reload().await.unwrap();
    }
    handle.stop().await;
    assert_eq!(semaphore.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_setup_is_a_failure_and_leaves_nothing() {
    for (script, message) in [
        (Script::Panic, "panicked: boom"),
        (Script::PanicBeforeTheFuture, "panicked: assertion `left != right` failed: before"),
    ] {
        let stage = stage().await;
        let probe = Probe::new(&["shell"]);
        probe.script(script);
        let shell = stage.provide("shell");
        let handle = stage.plugins.host(probe.clone()).await.unwrap();
        let failure = until_failed(&handle).await;
        assert_eq!(failure.code, "PANIC");
        assert!(failure.message.starts_with(message), "{failure:?}");
        assert_eq!(probe.open(), 0);
        assert!(stage.host_of(&handle).await.is_some());
        // Another service changes nothing; another instance of a required one is another chance.
        stage.provide("other");
        probe.script(Script::Succeed);
        shell.close();
        until_waiting(&handle).await;
        assert_eq!(probe.setups(), 1);
        stage.provide("shell");
        until_active(&handle).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_host_costs_the_scope_and_another_sets_the_plugin_up_again() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let other = stage.plugins.host(Probe::named("other", &[])).await.unwrap();
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    stage.kill_host(&handle).await;
    assert_eq!(until_failed(&handle).await.code, "PLUGIN_HOST_DIED");
    assert_eq!(probe.open(), 0);
    until_active(&handle).await;
    assert_eq!((probe.setups(), probe.open()), (2, 1));
    until_active(&other).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_killed_during_a_setup_drops_it_and_the_reload_that_asked() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    probe.shut_gate();
    let asking = handle.clone();
    let reload = tokio::spawn(async move { asking.reload().await });
    let mut started = probe.started.subscribe();
    started.wait_for(|count| *count == 2).await.unwrap();
    stage.kill_host(&handle).await;
    assert_eq!(reload.await.unwrap().unwrap_err().code, "PLUGIN_HOST_DIED");
    started.wait_for(|count| *count == 3).await.unwrap();
    assert_eq!(probe.open(), 1);
    probe.gate.add_permits(1);
    until_active(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_dies_too_often_stays_down_until_a_reload() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    let mut delays = Vec::new();
    for _ in 0..5 {
        until_active(&handle).await;
        let died = tokio::time::Instant::now();
        stage.kill_host(&handle).await;
        until_failed(&handle).await;
        until_active(&handle).await;
        delays.push(died.elapsed().as_millis() / 100 * 100);
    }
    assert_eq!(delays, [100, 200, 400, 800, 1600]);
    stage.kill_host(&handle).await;
    assert_eq!(until_failed(&handle).await.code, "PLUGIN_GIVEN_UP");
    // The deaths still count, so that only the reload can forgive them.
    tokio::time::advance(Duration::from_secs(20)).await;
    assert!(stage.host_of(&handle).await.is_none());
    assert_eq!((probe.setups(), probe.open()), (6, 0));
    handle.reload().await.unwrap();
    assert_eq!(handle.status(), PluginStatus::Active);
    stage.kill_host(&handle).await;
    assert_eq!(until_failed(&handle).await.code, "PLUGIN_HOST_DIED");
    until_active(&handle).await;
}

#[tokio::test(start_paused = true)]
async fn a_reload_overtakes_the_delay_and_a_later_death_has_its_own() {
    let stage = stage().await;
    let handle = stage.plugins.host(Probe::new(&[])).await.unwrap();
    until_active(&handle).await;
    stage.kill_host(&handle).await;
    until_failed(&handle).await;
    tokio::time::advance(Duration::from_millis(50)).await;
    handle.reload().await.unwrap();
    let died = tokio::time::Instant::now();
    stage.kill_host(&handle).await;
    until_failed(&handle).await;
    until_active(&handle).await;
    assert_eq!(died.elapsed().as_millis() / 50 * 50, 100);
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_final_and_gives_the_name_back() {
    let stage = stage().await;
    let probe = Probe::new(&["shell"]);
    let shell = stage.provide("shell");
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    let refused = stage.plugins.host(Probe::new(&[])).await.unwrap_err();
    assert_eq!(refused.code(), "PLUGIN_DUPLICATE");
    handle.stop().await;
    handle.stop().await;
    assert_eq!((handle.status(), probe.open()), (PluginStatus::Stopped, 0));
    shell.close();
    stage.provide("shell");
    assert_eq!(handle.reload().await.unwrap_err().code, "PLUGIN_STOPPED");
    assert_eq!((handle.status(), probe.setups()), (PluginStatus::Stopped, 1));
    let next = stage.plugins.host(Probe::new(&[])).await.unwrap();
    until_active(&next).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_without_a_host_can_be_stopped() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    stage.kill_host(&handle).await;
    until_failed(&handle).await;
    handle.stop().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    assert!(stage.host_of(&handle).await.is_none());
    assert_eq!((handle.status(), probe.setups()), (PluginStatus::Stopped, 1));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_stops_the_last_hosted_first_and_ends_the_root() {
    struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);
    impl Plugin for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn setup(&self, ctx: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
            let (name, gone) = (self.0, self.1.clone());
            async move {
                ctx.scope.on_close(move || gone.lock().unwrap().push(name)).unwrap();
                Ok(())
            }
            .boxed()
        }
    }
    let stage = stage().await;
    let gone = Arc::<Mutex<Vec<_>>>::default();
    for name in ["a", "b", "c"] {
        let handle = stage.plugins.host(Arc::new(Named(name, gone.clone()))).await.unwrap();
        until_active(&handle).await;
    }
    stage.plugins.shutdown().await;
    assert_eq!(*gone.lock().unwrap(), ["c", "b", "a"]);
    stage.join.await.unwrap();
    stage.plugins.shutdown().await;
    let refused = stage.plugins.host(Probe::new(&[])).await.unwrap_err();
    assert_eq!(refused.code(), "SHUTTING_DOWN");
}

#[tokio::test(start_paused = true)]
async fn closing_the_scope_above_stops_every_plugin() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    stage.root.close();
    until(&handle, |status| *status == PluginStatus::Stopped).await;
    assert_eq!(probe.open(), 0);
    let refused = stage.plugins.host(Probe::new(&[])).await.unwrap_err();
    assert_eq!(refused.code(), "SHUTTING_DOWN");
}

#[tokio::test(start_paused = true)]
async fn the_death_of_the_root_closes_the_scopes_of_all() {
    let stage = stage().await;
    let probe = Probe::new(&[]);
    let handle = stage.plugins.host(probe.clone()).await.unwrap();
    until_active(&handle).await;
    let host = stage.host_of(&handle).await.unwrap();
    stage.plugins.root.kill();
    stage.join.await.unwrap();
    host.wait(None).await.unwrap();
    // The status' sender goes with the last owner of the scope.
    let mut watch = handle.watch();
    while watch.changed().await.is_ok() {}
    assert_eq!(probe.open(), 0);
    assert!(stage.root.is_open());
    handle.stop().await;
    assert_eq!(handle.reload().await.unwrap_err().code, "PLUGIN_STOPPED");
}

#[tokio::test]
async fn a_plugin_that_cannot_say_its_name_is_refused() {
    struct Nameless;
    impl Plugin for Nameless {
        fn name(&self) -> &str {
            panic!("who?")
        }
        fn setup(&self, _: PluginContext) -> BoxFuture<'static, Result<(), Failure>> {
            unreachable!("it is never hosted")
        }
    }
    let stage = stage().await;
    let refused = stage.plugins.host(Arc::new(Nameless)).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the plugin cannot say its name and requirements: panicked: who?"
    );
}
