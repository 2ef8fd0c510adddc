//! What models cost.

use std::collections::HashMap;

use playhouse_messages::{chunk::Usage, config::Route};

/// What a million tokens of a model cost, in any one currency. Not negative.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Price {
    /// Input that no cache served.
    pub input: f64,
    /// Output, reasoning included.
    pub output: f64,
    /// Input served by a cache.
    pub cache_read: f64,
    /// Input written to a cache.
    pub cache_write: f64,
}

impl Price {
    /// A price of input and output; cached input costs what other input does.
    pub fn new(input: f64, output: f64) -> Self {
        Self { input, output, cache_read: input, cache_write: input }
    }

    /// With prices of its own for input served by a cache and written to it.
    #[must_use]
    pub fn cached(mut self, read: f64, write: f64) -> Self {
        (self.cache_read, self.cache_write) = (read, write);
        self
    }

    /// What a call cost, in millionths, rounded up: a price of a million tokens is that of one token
    /// in millionths.
    pub fn micros(&self, usage: &Usage) -> u64 {
        let part = |tokens: u64, price: f64| tokens as f64 * price;
        let sum = part(usage.input_tokens, self.input)
            + part(usage.output_tokens, self.output)
            + part(usage.cache_read_tokens.unwrap_or(0), self.cache_read)
            + part(usage.cache_write_tokens.unwrap_or(0), self.cache_write);
        // A cast of a float saturates.
        sum.ceil() as u64
    }
}

/// The prices of routes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prices(HashMap<Route, Price>);

impl Prices {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// With the price of one more route.
    #[must_use]
    pub fn with(mut self, provider: &str, model: &str, price: Price) -> Self {
        self.0.insert(Route::new(provider, model), price);
        self
    }

    /// The price of a route.
    pub fn of(&self, route: &Route) -> Option<&Price> {
        self.0.get(route)
    }
}
