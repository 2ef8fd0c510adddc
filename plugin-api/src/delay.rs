//! Where a simulation holds actors back.
//!
//! An actor that waits before it takes a message is, for all who sent to it, a network that is slow
//! and keeps the order of each sender. Without the feature `sim` there is nothing here to call.

/// Waits as the simulation of this thread says; without one, or without the feature `sim`, not at all.
#[inline]
pub async fn before_message() {
    #[cfg(feature = "sim")]
    if let Some(wait) = source::next() {
        tokio::time::sleep(wait).await;
    }
}

#[cfg(feature = "sim")]
pub use source::delay_by;

#[cfg(feature = "sim")]
mod source {
    use std::{cell::RefCell, time::Duration};

    type Source = Box<dyn FnMut() -> Option<Duration>>;

    thread_local! {
        static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
    }

    /// Says how long the actors that run on this thread wait before each message, in place of what
    /// was said before. `None` lets them run freely again.
    pub fn delay_by(source: Option<Source>) {
        SOURCE.set(source);
    }

    pub(super) fn next() -> Option<Duration> {
        SOURCE.with_borrow_mut(|source| source.as_mut()?())
    }
}
