//! Scripts: JavaScript in QuickJS, on a thread of its own.
//!
//! The thread has nothing but the language and the hooks: no files, no network, no timers, no
//! modules. What a script may use of memory, stack and time is limited, and a killed script ends at
//! its next instruction. What cannot be forged or caught by a script is not an exception: it is kept
//! beside the interpreter, which then ends.

mod hooks;
mod json;
mod play;
mod thread;
mod watchdog;

pub(crate) use self::thread::launch;
