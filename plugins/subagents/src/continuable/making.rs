//! How a child comes to be in this process: anew, or from the store.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use playhouse_messages::{
    chunk::Failure,
    config::ModelChoice,
    event::Seq,
    id::SessionId,
    message::{Message, Source},
};
use playhouse_plugin_api::{
    agent::Agent,
    cancel::CancelToken,
    creation::{AgentHandle, AgentMaker, NewAgent},
    options::AgentOptions,
    watch,
};

use super::{
    ContinuationError, StartContinuable,
    machine::{Epoch, Input},
    shell::{Delivery, Resident, Shell},
    watching::watch_child,
};
use crate::{
    Basis, ChildError, ChildOptions, Composition, Depth, Slot,
    compose::{child_of, child_options, record},
    descriptor::{Descriptor, Recipe, Route},
};

/// What a fresh child is made from: all of it is read before the first wait.
pub(super) struct Blueprint {
    id: SessionId,
    /// The id was asked for, so that somebody else may have it.
    given: bool,
    provider: String,
    basis: Basis,
    options: AgentOptions,
    composition: Composition,
    descriptor: Descriptor,
}

impl Blueprint {
    /// What a start asks for, and the first message.
    pub fn of(
        shell: &Shell,
        provider: &str,
        start: &StartContinuable,
    ) -> Result<(Self, Message), ContinuationError> {
        let StartContinuable { label, child_id, request } = start;
        let parent = &request.parent;
        let found = shell.providers.get(provider).ok_or_else(|| {
            let known = shell.providers.names().join(", ");
            ChildError::NoProvider { name: provider.to_owned(), known }
        })?;
        let can = found.capabilities();
        let asked = [
            (true, found.is_continuable(), "continuable"),
            // One that goes on has no one result.
            (request.output_schema.is_some(), false, "outputSchema"),
            (request.max_depth.is_some(), can.depth_limit, "depthLimit"),
            (request.tool_filter.is_some(), can.tool_filter, "toolFilter"),
            (request.persona.is_some(), can.persona, "persona"),
        ];
        if let Some((_, _, capability)) = asked.into_iter().find(|(asked, can, _)| *asked && !can) {
            let provider = provider.to_owned();
            return Err(ChildError::UnsupportedCapability { provider, capability }.into());
        }
        let depth = Depth::below(parent, request.max_depth)?;
        let options = child_options(parent, &request.options, depth);
        let route = options
            .model
            .as_ref()
            .map(|choice| Route { provider: choice.provider.clone(), model: choice.model.clone() });
        let (persona, tool_filter) = (request.persona.clone(), request.tool_filter.clone());
        let recipe = Recipe { route, persona: persona.clone(), tool_filter: tool_filter.clone() };
        let world = &shell.world;
        let id = child_id.clone().unwrap_or_else(|| world.ids.session());
        if world.agents.made(&id).is_some() {
            return Err(ContinuationError::DuplicateChild { id });
        }
        let source = Source::delegation(parent.id().as_str());
        let prompt = Message::user_from(world.ids.message(), request.prompt.clone(), source);
        let blueprint = Self {
            id,
            given: child_id.is_some(),
            provider: provider.to_owned(),
            basis: found.basis(parent),
            options,
            composition: Composition::below(world, parent).filtered(tool_filter).persona(persona),
            descriptor: Descriptor::continuable(provider, label, recipe),
        };
        Ok((blueprint, prompt))
    }

    pub fn id(&self) -> &SessionId {
        &self.id
    }
}

/// What happens to a child before it is live.
struct SetUp {
    shell: Arc<Shell>,
    /// Held by the creation until the child's scope takes it, so that it is given back when whatever
    /// was made is gone, and not before.
    slot: Mutex<Option<Slot>>,
    composition: Composition,
    descriptor: Option<Descriptor>,
    /// The first message. It is accepted while input is held back: whoever cancels the child from now
    /// on, also in the moment in which it becomes live, cancels its prompt.
    prompt: Option<Message>,
    /// Where the epoch begins, and where the log stood once the prompt was in it.
    began: OnceLock<(Seq, Option<Seq>)>,
}

impl SetUp {
    async fn run(self: Arc<Self>, child: Agent) -> Result<(), Failure> {
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        child.scope().on_close(move || drop(slot))?;
        self.composition.apply(&self.shell.world, &child)?;
        if let Some(descriptor) = &self.descriptor {
            record(&child, descriptor).await?;
        }
        self.shell.set_ups.install(&child).await?;
        let from = child.session().log().len();
        let mut accepted = None;
        if let Some(prompt) = &self.prompt {
            child.followup(prompt.clone()).await?;
            accepted = Some(child.session().log().len());
        }
        let _ = self.began.set((from, accepted));
        Ok(())
    }
}

impl Shell {
    pub async fn make(
        self: Arc<Self>,
        child: SessionId,
        epoch: Epoch,
        delivery: Arc<Delivery>,
        cancel: CancelToken,
    ) {
        let made = match &delivery.blueprint {
            Some(blueprint) => self.fresh(blueprint, &delivery, &cancel).await,
            None => self.stored(&child, &delivery.caller, &cancel).await,
        };
        self.making_over(epoch);
        let (handle, provider, (from, accepted)) = match made {
            Ok(made) => made,
            Err(error) => return self.input(Input::Made { child, epoch, made: Err(error) }),
        };
        let agent = handle.agent().clone();
        let look = watch::Sender::new(());
        let looks = look.subscribe();
        let resident = Resident {
            epoch,
            handle,
            from,
            parent: delivery.caller.clone(),
            provider,
            started: Mutex::default(),
            look,
            end: Mutex::default(),
        };
        self.installed(child.clone(), Arc::new(resident));
        self.input(Input::Made { child, epoch, made: Ok(accepted) });
        self.spawn(|shell| watch_child(shell, agent, epoch, looks));
    }

    async fn fresh(
        self: &Arc<Self>,
        blueprint: &Blueprint,
        delivery: &Delivery,
        cancel: &CancelToken,
    ) -> Result<Made, ContinuationError> {
        let duplicate = || ContinuationError::DuplicateChild { id: blueprint.id.clone() };
        if blueprint.given
            && let Some(store) = &self.world.store
            && let Ok(Some(_)) = store.stat(&blueprint.id).await
        {
            return Err(duplicate());
        }
        let set_up = SetUp {
            shell: self.clone(),
            slot: Mutex::new(Some(self.slots.take()?)),
            composition: blueprint.composition.clone(),
            descriptor: Some(blueprint.descriptor.clone()),
            prompt: Some(delivery.message.clone()),
            began: OnceLock::new(),
        };
        let new = child_of(&delivery.caller, blueprint.options.clone()).id(blueprint.id.clone());
        let (new, set_up) = self.owned(new, set_up, cancel);
        let basis = blueprint.basis.clone();
        let handle =
            basis.make(&**self.maker()?, new).await.map_err(|error| match error.code() {
                "SESSION_ALREADY_EXISTS" => duplicate(),
                _ => making_failed(&blueprint.id, error.into()),
            })?;
        Ok((handle, blueprint.provider.clone(), began(&set_up)))
    }

    /// By the stored session alone: the provider may be gone.
    async fn stored(
        self: &Arc<Self>,
        id: &SessionId,
        parent: &Agent,
        cancel: &CancelToken,
    ) -> Result<Made, ContinuationError> {
        let not = |why: String| ContinuationError::NotResumable { id: id.clone(), why };
        let store = self.world.store.as_ref().ok_or(ContinuationError::PersistenceUnavailable)?;
        let stored = cancel.race(store.read(id)).await.ok_or(ContinuationError::Cancelled)?;
        let stored = stored.map_err(|error| not(error.to_string()))?;
        if stored.header.delegated_by() != Some(parent.id()) {
            return Err(ContinuationError::Unauthorized {
                caller: parent.id().clone(),
                target: id.clone(),
                why: "it is not its parent",
            });
        }
        let log = stored.log().map_err(|error| not(error.to_string()))?;
        let descriptor = Descriptor::of(&log, stored.inherited_event_count)
            .map_err(|error| not(error.to_string()))?;
        let Some((descriptor, recipe)) =
            descriptor.as_ref().and_then(|found| Some((found, found.recipe()?)))
        else {
            return Err(not("it is the session of no continuable sub-agent".to_owned()));
        };
        let model = recipe.route.clone().map(|Route { provider, model }| ModelChoice {
            provider,
            model,
            reasoning_effort: None,
        });
        let own = ChildOptions { model, ..ChildOptions::default() };
        let (depth, max_depth) =
            (stored.header.delegation_depth.unwrap_or(0), parent.options().max_depth);
        let options = child_options(parent, &own, Depth { depth, max_depth });
        let set_up = SetUp {
            shell: self.clone(),
            slot: Mutex::new(Some(self.slots.take()?)),
            composition: Composition::below(&self.world, parent)
                .filtered(recipe.tool_filter.clone())
                .persona(recipe.persona.clone()),
            descriptor: None,
            prompt: None,
            began: OnceLock::new(),
        };
        let new = child_of(parent, options).id(id.clone());
        let (new, set_up) = self.owned(new, set_up, cancel);
        let handle = self.maker()?.resume(new).await;
        let handle = handle.map_err(|error| match error.code() {
            "SESSION_ALREADY_OWNED" => ContinuationError::ActivationClosing { id: id.clone() },
            _ => making_failed(id, error.into()),
        })?;
        Ok((handle, descriptor.provider.clone(), began(&set_up)))
    }

    fn owned(&self, new: NewAgent, set_up: SetUp, cancel: &CancelToken) -> (NewAgent, Arc<SetUp>) {
        let set_up = Arc::new(set_up);
        let making = set_up.clone();
        let new = new
            .owned_by(self.owner.clone())
            .cancelled_by(cancel.clone())
            .set_up(move |child| making.clone().run(child));
        (new, set_up)
    }

    fn maker(&self) -> Result<&Arc<dyn AgentMaker>, ContinuationError> {
        self.world.maker.get().ok_or(ContinuationError::Unavailable)
    }
}

/// The child, its provider's name, and where its epoch begins.
type Made = (AgentHandle, String, (Seq, Option<Seq>));

fn began(set_up: &SetUp) -> (Seq, Option<Seq>) {
    set_up.began.get().copied().unwrap_or_default()
}

fn making_failed(id: &SessionId, failure: Failure) -> ContinuationError {
    let revoked = ContinuationError::SetUpRevoked { id: id.clone() };
    if failure.code == revoked.code() { revoked } else { ChildError::Start(failure).into() }
}
