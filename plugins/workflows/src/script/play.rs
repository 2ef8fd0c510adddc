//! One script, from its parsing to its result.

use std::sync::{
    Arc,
    atomic::{AtomicI32, Ordering},
    mpsc::Receiver,
};

use playhouse_messages::chunk::Failure;
use rquickjs::{
    CatchResultExt, CaughtError, Context, Ctx, Function, Module, Object, Promise, Runtime,
    Value as Js,
    context::{
        EvalOptions,
        intrinsic::{
            Date, Eval, Json, MapSet, Promise as Promises, Proxy, RegExp, RegExpCompiler,
            TypedArrays,
        },
    },
    promise::PromiseState,
};
use serde_json::Value;

use super::{
    hooks::{Hooks, LANGUAGE},
    json,
    thread::Script,
    watchdog::Watchdog,
};
use crate::{
    error::code,
    protocol::{GuestMessage, HostMessage},
    request::clip,
};

type Language = (Date, Eval, RegExpCompiler, RegExp, Json, Proxy, MapSet, TypedArrays, Promises);

const PRELUDE: &str = include_str!("prelude.js");

/// How scripts are called in errors.
const FILE: &str = "workflow.js";

/// What a script throws is told in so many characters.
const THROWN_CHARS_MAX: usize = 4096;

/// A thrown value that is larger than this many bytes is not told.
const THROWN_BYTES_MAX: usize = 1 << 20;

/// Parses the script, says so, and runs it once it is told to. `None` if nobody wants a result.
pub(super) fn play(
    script: &Script,
    dog: &Watchdog,
    to_host: &tokio::sync::mpsc::Sender<GuestMessage>,
    from_host: &Receiver<HostMessage>,
) -> Option<Result<Value, Failure>> {
    let stage = || -> rquickjs::Result<(Runtime, Context)> {
        let runtime = Runtime::new()?;
        runtime.set_memory_limit(script.memory_bytes);
        runtime.set_max_stack_size(script.stack_bytes);
        let barks = dog.clone();
        runtime.set_interrupt_handler(Some(Box::new(move || barks.barks())));
        let context = Context::custom::<Language>(&runtime)?;
        Ok((runtime, context))
    };
    let (_runtime, context) = match stage() {
        Ok(stage) => stage,
        Err(fault) => {
            let text = format!("the interpreter does not start: {fault}");
            return Some(Err(Failure::new(code::WORKER_DIED, text)));
        }
    };
    let hooks = Hooks {
        to_host: to_host.clone(),
        dog: dog.clone(),
        items_max: script.items_max,
        calls: Arc::new(AtomicI32::new(1)),
    };
    context.with(|ctx| {
        dog.begin_slice();
        let performance = match Performance::prepare(&ctx, script, &hooks) {
            Ok(performance) => performance,
            Err(failure) => return Some(Err(dog.verdict().unwrap_or(failure))),
        };
        dog.end_slice();
        to_host.blocking_send(GuestMessage::Ready).ok()?;
        match from_host.recv() {
            Ok(HostMessage::Go) => {}
            _ => return None,
        }
        let result = performance.run(&ctx, script, dog, from_host);
        // Whatever the script made of it.
        let result = dog.verdict().map_or(result, Err);
        dog.end_slice();
        Some(result)
    })
}

/// A parsed script and what answers its calls.
struct Performance<'js> {
    body: Function<'js>,
    settle: Function<'js>,
    give: Function<'js>,
    /// The number of the script's next call.
    calls: Arc<AtomicI32>,
}

impl<'js> Performance<'js> {
    fn prepare(ctx: &Ctx<'js>, script: &Script, hooks: &Hooks) -> Result<Self, Failure> {
        let dog = &hooks.dog;
        let broken = |fault: CaughtError<'js>| {
            Failure::new(code::WORKER_DIED, format!("the prelude failed: {fault}"))
        };
        let made = || -> rquickjs::Result<_> {
            let prelude: Function<'js> = ctx.eval(PRELUDE)?;
            let desk: Object<'js> = prelude.call((hooks.object(ctx)?, LANGUAGE.to_vec()))?;
            Ok((desk.get("settle")?, desk.get("give")?))
        };
        let (settle, give) = made().catch(ctx).map_err(broken)?;
        let mut options = EvalOptions::default();
        options.filename = Some(FILE.to_owned());
        // On its first line, so that lines are told right.
        let source = format!("(async () => {{{}\n}})", script.body);
        // A body that ends its function would run what follows with the parsing. Within one more block
        // the same text is no program, and a module is compiled and not run.
        let within = format!("(async () => {{{{{}\n}}}})", script.body);
        Module::declare(ctx.clone(), FILE, within)
            .catch(ctx)
            .map_err(|fault| Failure::new(code::SCRIPT_PARSE, thrown(ctx, dog, fault)))?;
        let body = ctx.eval_with_options(source, options).catch(ctx);
        let body =
            body.map_err(|fault| Failure::new(code::SCRIPT_PARSE, thrown(ctx, dog, fault)))?;
        Ok(Self { body, settle, give, calls: hooks.calls.clone() })
    }

    fn run(
        &self,
        ctx: &Ctx<'js>,
        script: &Script,
        dog: &Watchdog,
        from_host: &Receiver<HostMessage>,
    ) -> Result<Value, Failure> {
        let failed = |fault| Failure::new(code::WORKFLOW_ERROR, thrown(ctx, dog, fault));
        dog.begin_slice();
        self.give.call::<_, ()>((script.args.to_string(),)).catch(ctx).map_err(failed)?;
        let promise: Promise<'js> = self.body.call(()).catch(ctx).map_err(failed)?;
        let mut settled = 0;
        loop {
            while !dog.barks() && ctx.execute_pending_job() {}
            if let Some(failure) = dog.verdict() {
                return Err(failure);
            }
            match promise.state() {
                PromiseState::Pending if self.calls.load(Ordering::Relaxed) - 1 == settled => {
                    let text = "the script awaits what never comes: no agent of it is at work";
                    return Err(Failure::new(code::WORKFLOW_ERROR, text));
                }
                PromiseState::Pending => {}
                PromiseState::Rejected => {
                    let fault = promise.result::<Js<'js>>().map(|result| result.catch(ctx));
                    return match fault {
                        Some(Err(fault)) => Err(failed(fault)),
                        _ => Err(Failure::new(code::WORKFLOW_ERROR, "the script threw")),
                    };
                }
                PromiseState::Resolved => {
                    let value = promise.result::<Js<'js>>().transpose().catch(ctx);
                    let value = value.map_err(failed)?.unwrap_or(Js::new_undefined(ctx.clone()));
                    return json::plain(ctx, dog, value, script.memory_bytes).map_err(|fault| {
                        let text = format!("{fault}; a workflow returns plain JSON");
                        Failure::new(code::RESULT_UNSERIALIZABLE, text)
                    });
                }
            }
            dog.end_slice();
            match from_host.recv() {
                Ok(HostMessage::Settled { call, answer: Ok(value) }) => {
                    settled += 1;
                    dog.begin_slice();
                    let call = i32::try_from(call).unwrap_or_default();
                    self.settle
                        .call::<_, ()>((call, value.to_string()))
                        .catch(ctx)
                        .map_err(failed)?;
                }
                Ok(HostMessage::Settled { answer: Err(failure), .. }) => return Err(failure),
                Ok(HostMessage::Go) => {}
                Ok(HostMessage::Cancel(reason)) => {
                    return Err(Failure::new(code::CANCELLED, reason));
                }
                Err(_) => return Err(Failure::new(code::CANCELLED, "nobody wants the result")),
            }
        }
    }
}

/// What was thrown, in words. Runs no code of the script's but getters.
fn thrown<'js>(ctx: &Ctx<'js>, dog: &Watchdog, fault: CaughtError<'js>) -> String {
    let text = match fault {
        CaughtError::Exception(exception) => {
            let name: Option<String> = exception.as_object().get("name").ok();
            let message = exception.message().unwrap_or_default();
            let mut text = format!("{}: {message}", name.unwrap_or_else(|| "Error".to_owned()));
            if let Some(stack) = exception.stack().filter(|stack| !stack.trim().is_empty()) {
                text = format!("{text}\n{}", stack.trim_end());
            }
            text
        }
        CaughtError::Value(value) => match json::plain(ctx, dog, value, THROWN_BYTES_MAX) {
            Ok(value) => format!("thrown: {value}"),
            Err(_) => "something was thrown that is no error".to_owned(),
        },
        CaughtError::Error(error) => error.to_string(),
    };
    clip(&text, THROWN_CHARS_MAX)
}
