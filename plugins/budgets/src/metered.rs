//! Requests that are reserved before they are sent, and counted when they are over.

use std::sync::Arc;

use futures::StreamExt;
use playhouse_messages::{
    chunk::{Failure, StreamChunk, Usage},
    config::Route,
};
use playhouse_plugin_api::{
    agent::Agent,
    budget::{Account, Meter, Reserved, estimated_tokens},
    hook::{HookResult, Next},
    llm::{ModelCall, ModelStream},
};

/// The code of a request that a budget refused.
const BUDGET_EXHAUSTED: &str = "BUDGET_EXHAUSTED";

/// Sends a request, if something is left of every budget that counts: the turns end otherwise.
///
/// An agent's own request waits while others have reserved what is left. A call that was built by hand
/// may be made from within such a request, so it does not.
pub(crate) async fn request(
    agent: &Agent,
    account: Arc<Account>,
    call: ModelCall,
    next: Next<ModelCall, ModelStream>,
) -> HookResult<ModelStream> {
    let route = call.config().route();
    account.check_route(&route)?;
    let prompt = account.last_tokens().unwrap_or_else(|| text_tokens(&call));
    let guess = Usage {
        input_tokens: prompt,
        // At least one, so that a request of unknown size is one that spends.
        output_tokens: call.config().max_tokens.unwrap_or(1),
        ..Usage::default()
    };
    let amounts = account.amounts(&route, &guess);
    let patient = matches!(call, ModelCall::Step(_));
    let reserved = match account.reserve(amounts, patient).await {
        Ok(reserved) => reserved,
        Err(refused) => {
            refused.end_turns(agent);
            return Err(Failure::new(BUDGET_EXHAUSTED, refused.to_string()));
        }
    };
    let mut request =
        Request { account, route, reserved: Some(reserved), meter: Meter::new(prompt) };
    let stream = next.run(call).await?;
    Ok(stream
        .inspect(move |item| {
            if let Ok(chunk) = item {
                request.see(chunk);
            }
        })
        .boxed())
}

fn text_tokens(call: &ModelCall) -> u64 {
    let bytes = call.messages().iter().map(|message| message.text().len()).sum();
    estimated_tokens(bytes)
}

/// A request under way. However it ends, what it used counts, and its reservation is given back.
struct Request {
    account: Arc<Account>,
    route: Route,
    reserved: Option<Reserved>,
    meter: Meter,
}

impl Request {
    fn see(&mut self, chunk: &StreamChunk) {
        self.meter.see(chunk);
        if matches!(chunk, StreamChunk::Finish { .. }) {
            self.settle();
        }
    }

    fn settle(&mut self) {
        if let Some(reserved) = self.reserved.take() {
            self.account.commit(reserved, &self.route, &self.meter);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.settle();
    }
}
