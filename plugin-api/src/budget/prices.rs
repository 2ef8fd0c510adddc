//! What models cost.

use std::collections::HashMap;

use playhouse_messages::{chunk::Usage, config::Route};

/// What a million tokens of a model cost, in any one currency: no part of it is negative, or no number.
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

    fn is_one(&self) -> bool {
        let parts = [self.input, self.output, self.cache_read, self.cache_write];
        parts.iter().all(|part| part.is_finite() && *part >= 0.0)
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

    /// With the price of one more route. What is negative or no number is no price: the route stays
    /// without one, and a cost budget over it is refused.
    #[must_use]
    pub fn with(mut self, provider: &str, model: &str, price: Price) -> Self {
        if price.is_one() {
            self.0.insert(Route::new(provider, model), price);
        }
        self
    }

    /// The price of a route.
    pub fn of(&self, route: &Route) -> Option<&Price> {
        self.0.get(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_price_leaves_a_route_without_one() {
        let route = Route::new("p", "m");
        let of = |price| Prices::new().with("p", "m", price).of(&route).is_some();
        assert!(of(Price::new(0.0, 1.5)));
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(!of(Price::new(bad, 1.0)) && !of(Price::new(1.0, bad)));
            assert!(!of(Price::new(1.0, 1.0).cached(bad, 1.0)));
        }
    }
}
