//! Starting a child for one prompt in this process.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use playhouse_messages::{
    chunk::Failure,
    event::{CancelCause, Seq},
    message::{Message, Source},
};
use playhouse_plugin_api::{agent::Agent, cancel::CancelToken, world::World};

use crate::{
    Basis, ChildError, ChildRequest, Composition, Depth, Run, Slot, Slots,
    compose::{child_of, child_options, record},
    descriptor::Descriptor,
    run::Answer,
    structured::Structured,
};

/// Starts a child by the provider of this name: a slot is taken before anything is made, and goes
/// with the child's scope.
pub(crate) async fn start(
    world: Arc<World>,
    slots: Slots,
    provider: &str,
    basis: Basis,
    request: ChildRequest,
) -> Result<Run, ChildError> {
    let parent = &request.parent;
    let depth = Depth::below(parent, request.max_depth)?;
    let structured = request.output_schema.as_ref().map(Structured::new).transpose()?;
    let maker = world.maker.get().cloned().ok_or_else(|| {
        ChildError::Start(Failure::new("NO_HARNESS", "no harness makes agents in this world"))
    })?;
    let slot = slots.take()?;
    let composition = Composition::below(&world, parent)
        .filtered(request.tool_filter)
        .persona(request.persona)
        .structured(structured.clone());
    let source = Source::delegation(parent.id().as_str());
    let set_up = Arc::new(SetUp {
        slot: Mutex::new(Some(slot)),
        descriptor: Descriptor::one_shot(provider, request.label),
        composition,
        prompt: Message::user_from(world.ids.message(), request.prompt, source),
        began: OnceLock::new(),
        cancel: request.cancel.clone(),
        world,
    });
    let owner = request.owner.unwrap_or_else(|| parent.scope().clone());
    let making = set_up.clone();
    let new = child_of(parent, child_options(parent, &request.options, depth))
        .owned_by(owner)
        .cancelled_by(request.cancel.clone())
        .set_up(move |child| making.clone().run(child));
    let child = basis.make(&*maker, new).await?;
    let from = set_up.began.get().copied().unwrap_or(0);
    Ok(Run::local(child, Answer { from, structured, cancel: request.cancel }))
}

/// What happens to a child before it is live.
struct SetUp {
    /// Held by the creation until the child's scope takes it, so that it is given back when
    /// whatever was made is gone, and not before.
    slot: Mutex<Option<Slot>>,
    descriptor: Descriptor,
    composition: Composition,
    prompt: Message,
    /// Where the child's own work begins.
    began: OnceLock<Seq>,
    cancel: CancelToken,
    world: Arc<World>,
}

impl SetUp {
    async fn run(self: Arc<Self>, child: Agent) -> Result<(), Failure> {
        let scope = child.scope();
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        scope.on_close(move || drop(slot))?;
        self.composition.apply(&self.world, &child)?;
        record(&child, &self.descriptor).await?;
        let _ = self.began.set(child.session().log().len());
        let (cancel, cancelled) = (self.cancel.clone(), Arc::downgrade(child.cell()));
        scope.spawn(async move {
            cancel.cancelled().await;
            if let Some(child) = cancelled.upgrade() {
                Agent::new(child).cancel(CancelCause::Parent);
            }
        });
        // Accepted while input is held back: whoever cancels the child from now on, also in the
        // moment in which it becomes live, cancels its prompt.
        child.followup(self.prompt.clone()).await?;
        Ok(())
    }
}
