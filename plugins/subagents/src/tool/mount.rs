//! Keeps a delegation tool where its provider is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use playhouse_jobs::{JOBS_SERVICE, Jobs};
use playhouse_messages::chunk::Failure;
use playhouse_plugin_api::{
    plugin::PluginContext,
    scope::{Registration, Scope},
    service::ServiceInstance,
    world::World,
};

use super::{Background, Behind, Delegation, ToolConfig, wording};
use crate::{CONTINUATIONS_SERVICE, ChildProvider, ChildProviders};

/// Registers a delegation tool for all agents, for as long as the plugin's scope is open and the
/// provider is there: it comes and goes with it, and is worded by it.
///
/// # Errors
///
/// `INVALID_ARGUMENT` for an empty tool filter, or a config that asks for more than a provider which
/// is there can do; `TOOL_DUPLICATE` if a tool has the name. A provider that comes later and cannot do
/// what the config asks for is logged, and gets no tool.
pub fn mount_tool(
    ctx: &PluginContext,
    providers: &ChildProviders,
    config: ToolConfig,
) -> Result<(), Failure> {
    config.check()?;
    let mount = Arc::new(Mount {
        world: ctx.world()?,
        scope: ctx.scope.clone(),
        providers: providers.clone(),
        config: Arc::new(config),
        mounted: Mutex::default(),
    });
    let leaving = mount.clone();
    ctx.scope.on_close(move || leaving.unmount(&mut leaving.mounted()))?;
    let listening = mount.clone();
    providers.lifecycle().provider.add(&ctx.scope, move |_| listening.follow())?;
    mount.sync()?;

    let mut changes = ctx.services.watch();
    ctx.scope.spawn(async move {
        while changes.changed().await.is_ok() {
            mount.follow();
        }
    });
    Ok(())
}

struct Mount {
    world: Arc<World>,
    scope: Scope,
    providers: ChildProviders,
    config: Arc<ToolConfig>,
    mounted: Mutex<Option<Mounted>>,
}

/// A tool that is registered.
struct Mounted {
    provider: Arc<dyn ChildProvider>,
    /// Which provision of the service behind `run_in_background` it was made with.
    behind: Option<ServiceInstance>,
    registrations: Vec<Registration>,
}

impl Mount {
    /// Registers the tool, takes it back, or makes it anew, as things stand now.
    fn sync(&self) -> Result<(), Failure> {
        let mut mounted = self.mounted();
        let provider = self.providers.get(&self.config.provider);
        let (instance, behind) = self.behind();
        let unchanged = match (&*mounted, &provider) {
            (Some(tool), Some(now)) => Arc::ptr_eq(&tool.provider, now) && tool.behind == instance,
            (None, None) => true,
            _ => false,
        };
        if unchanged {
            return Ok(());
        }
        self.unmount(&mut mounted);
        // What closes the scope takes the tool out behind this lock.
        let Some(provider) = provider.filter(|_| self.scope.is_open()) else { return Ok(()) };
        self.config.check_for(&*provider)?;
        let (config, providers) = (self.config.clone(), self.providers.clone());
        let inherits = provider.inherits_parent_context();
        let guided = matches!(behind, Some(Behind::Continuations(_)));
        let tool = Arc::new(Delegation::new(config, providers, inherits, behind));
        let world = &self.world;
        let registration = world.tools.registry().register(&world.scope, tool)?;
        let tool = mounted.insert(Mounted {
            provider,
            behind: instance,
            registrations: vec![registration],
        });
        if guided {
            let section = wording::section(&self.config.name);
            tool.registrations.push(world.prompts.section(&world.scope, section)?);
        }
        Ok(())
    }

    fn follow(&self) {
        if let Err(failure) = self.sync() {
            tracing::error!(tool = self.config.name, %failure, "a delegation tool is not there");
        }
    }

    fn unmount(&self, mounted: &mut Option<Mounted>) {
        if let Some(tool) = mounted.take() {
            tool.registrations.iter().for_each(Registration::remove);
        }
    }

    fn behind(&self) -> (Option<ServiceInstance>, Option<Behind>) {
        let services = &self.world.services;
        match self.config.background {
            Background::Off => (None, None),
            Background::OneShot => {
                let jobs = services.get::<Jobs>(JOBS_SERVICE).map(Behind::Jobs);
                (jobs.as_ref().and_then(|_| services.instance(JOBS_SERVICE)), jobs)
            }
            Background::Continuable => {
                let service = services.get(CONTINUATIONS_SERVICE).map(Behind::Continuations);
                (service.as_ref().and_then(|_| services.instance(CONTINUATIONS_SERVICE)), service)
            }
        }
    }

    fn mounted(&self) -> MutexGuard<'_, Option<Mounted>> {
        self.mounted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
