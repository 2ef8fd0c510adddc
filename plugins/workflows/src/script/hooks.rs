//! The functions that a script's hooks call.

use std::sync::{
    Arc,
    atomic::{AtomicI32, Ordering},
};

use playhouse_messages::chunk::Failure;
use rquickjs::{Array, Ctx, Exception, Function, Object, Value as Js, prelude::Opt};
use tokio::sync::mpsc;

use super::{json, watchdog::Watchdog};
use crate::{
    AgentRequest,
    error::code,
    native::too_many_items,
    protocol::{CallNo, GuestMessage},
    request::clip,
    settlement::LOG_CHARS_MAX,
};

/// How large the prompt of a child may be, and its options, in bytes: as many as the run may start
/// wait beside the interpreter, where the script's memory is not counted.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The global names of the language that a script keeps. Left out is what tells of the machine or the
/// engine (`performance`, `navigator`), what could block or leak time between runs (`Atomics`,
/// `SharedArrayBuffer`, weak references), and `queueMicrotask`, which is the host's.
pub(super) const LANGUAGE: &[&str] = &[
    "AggregateError",
    "Array",
    "ArrayBuffer",
    "BigInt",
    "BigInt64Array",
    "BigUint64Array",
    "Boolean",
    "DataView",
    "Date",
    "Error",
    "EvalError",
    "Float16Array",
    "Float32Array",
    "Float64Array",
    "Function",
    "Infinity",
    "Int16Array",
    "Int32Array",
    "Int8Array",
    "InternalError",
    "Iterator",
    "JSON",
    "Map",
    "Math",
    "NaN",
    "Number",
    "Object",
    "Promise",
    "Proxy",
    "RangeError",
    "ReferenceError",
    "Reflect",
    "RegExp",
    "Set",
    "String",
    "SuppressedError",
    "Symbol",
    "SyntaxError",
    "TypeError",
    "URIError",
    "Uint16Array",
    "Uint32Array",
    "Uint8Array",
    "Uint8ClampedArray",
    "WeakMap",
    "WeakSet",
    "decodeURI",
    "decodeURIComponent",
    "encodeURI",
    "encodeURIComponent",
    "escape",
    "globalThis",
    "isFinite",
    "isNaN",
    "parseFloat",
    "parseInt",
    "undefined",
    "unescape",
];

/// What the hooks share.
#[derive(Clone)]
pub(super) struct Hooks {
    pub(super) to_host: mpsc::Sender<GuestMessage>,
    pub(super) dog: Watchdog,
    pub(super) items_max: usize,
    pub(super) calls: Arc<AtomicI32>,
}

impl Hooks {
    /// The object that the prelude gets.
    pub(super) fn object<'js>(&self, ctx: &Ctx<'js>) -> rquickjs::Result<Object<'js>> {
        let host = Object::new(ctx.clone())?;
        let hooks = self.clone();
        let agent = move |ctx: Ctx<'js>, prompt: Opt<Js<'js>>, options: Opt<Js<'js>>| {
            hooks.agent(&ctx, prompt.0, options.0)
        };
        host.set("agent", Function::new(ctx.clone(), agent)?)?;
        let hooks = self.clone();
        let items = move |ctx: Ctx<'js>, what: String, items: Opt<Js<'js>>, functions: bool| {
            hooks.items(&ctx, &what, items.0, functions)
        };
        host.set("items", Function::new(ctx.clone(), items)?)?;
        for (name, message) in [
            ("phase", GuestMessage::Phase as fn(String) -> GuestMessage),
            ("log", GuestMessage::Log),
        ] {
            let hooks = self.clone();
            let said =
                move |ctx: Ctx<'js>, text: Opt<Js<'js>>| hooks.text(&ctx, name, text.0, message);
            host.set(name, Function::new(ctx.clone(), said)?)?;
        }
        Ok(host)
    }

    fn agent<'js>(
        &self,
        ctx: &Ctx<'js>,
        prompt: Option<Js<'js>>,
        options: Option<Js<'js>>,
    ) -> rquickjs::Result<i32> {
        let plain = |value: Option<Js<'js>>| {
            value.map_or(Ok(serde_json::Value::Null), |value| {
                json::plain(ctx, &self.dog, value, REQUEST_BYTES_MAX)
            })
        };
        let request = plain(prompt)
            .and_then(|prompt| Ok((prompt, plain(options)?)))
            .map_err(|fault| Failure::new(code::INVALID_ARGUMENT, format!("agent: {fault}")))
            .and_then(|(prompt, options)| AgentRequest::from_script(prompt, options));
        match request {
            Ok(request) => {
                let call = self.calls.fetch_add(1, Ordering::Relaxed);
                let number = CallNo::try_from(call).unwrap_or_default();
                self.say(ctx, GuestMessage::Agent { call: number, request })?;
                Ok(call)
            }
            Err(failure) => Err(self.fatal(ctx, failure)),
        }
    }

    fn items<'js>(
        &self,
        ctx: &Ctx<'js>,
        what: &str,
        items: Option<Js<'js>>,
        functions: bool,
    ) -> rquickjs::Result<()> {
        let Some(items) = items.and_then(Js::into_array) else {
            return Err(self.invalid(ctx, format!("{what} takes an array")));
        };
        let len = json::length(&items)?;
        if len > self.items_max {
            return Err(self.fatal(ctx, too_many_items(self.items_max)));
        }
        let is_function = |items: &Array<'js>, index| {
            items.get::<Js<'js>>(index).is_ok_and(|item| item.is_function())
        };
        match (0..len).find(|index| functions && !is_function(&items, *index)) {
            Some(index) => Err(self.invalid(
                ctx,
                format!(
                    "{what} takes functions, such as () => agent(\"..\"); item {index} is none"
                ),
            )),
            None => Ok(()),
        }
    }

    fn text<'js>(
        &self,
        ctx: &Ctx<'js>,
        name: &str,
        text: Option<Js<'js>>,
        message: fn(String) -> GuestMessage,
    ) -> rquickjs::Result<()> {
        let text = text.and_then(Js::into_string).map(|text| text.to_string());
        match text {
            // Cut here, since messages wait beside the interpreter.
            Some(Ok(text)) => self.say(ctx, message(clip(&text, LOG_CHARS_MAX))),
            _ => Err(self.invalid(ctx, format!("{name} takes a string"))),
        }
    }

    /// Waits while the host is behind.
    fn say(&self, ctx: &Ctx<'_>, message: GuestMessage) -> rquickjs::Result<()> {
        if self.dog.barks() || self.to_host.blocking_send(message).is_err() {
            let failure = Failure::new(code::CANCELLED, "the run is over");
            return Err(self.fatal(ctx, failure));
        }
        Ok(())
    }

    fn invalid(&self, ctx: &Ctx<'_>, text: String) -> rquickjs::Error {
        self.fatal(ctx, Failure::new(code::INVALID_ARGUMENT, text))
    }

    /// Ends the script. The exception only leaves the current function; it is caught or not, the
    /// script ends at its next instruction.
    fn fatal(&self, ctx: &Ctx<'_>, failure: Failure) -> rquickjs::Error {
        let thrown = Exception::throw_message(ctx, &failure.message);
        self.dog.condemn(failure);
        thrown
    }
}
