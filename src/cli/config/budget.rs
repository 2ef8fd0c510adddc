//! What agents may spend, and how many requests may run: `[budget]`, `[limits]`, `[[price]]`.

use std::time::Duration;

use playhouse_budgets::{Budget, Prices, Resource, fair::Caps};
use serde::Deserialize;
use toml::Spanned;

use super::{Config, ConfigError, reader::Reader};

/// `[budget]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct BudgetEntry {
    /// Tokens of an agent that no other delegates to, and of all below it: input, cached or not, and
    /// output.
    tokens: Option<Spanned<i64>>,
    /// What their requests may cost, in the currency of the prices.
    cost: Option<Spanned<f64>>,
    /// Their turns.
    turns: Option<Spanned<i64>>,
    /// Their steps, over all turns.
    steps: Option<Spanned<i64>>,
    /// Their tool calls.
    tool_calls: Option<Spanned<i64>>,
    /// How long any of them may run, in milliseconds.
    wall_time_ms: Option<Spanned<i64>>,
    /// How many below it may live at once.
    live_children: Option<Spanned<i64>>,
    /// How many levels may stand below it.
    depth: Option<Spanned<i64>>,
}

/// `[limits]`
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsEntry {
    /// How many model requests run at once, shared fairly by trees of agents; positive. No limit if
    /// absent.
    requests: Option<Spanned<i64>>,
}

/// `[[price]]`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceEntry {
    /// The route.
    provider: Spanned<String>,
    /// The model.
    model: Spanned<String>,
    /// A million tokens of input; not negative.
    input: Spanned<f64>,
    /// A million tokens of output; not negative.
    output: Spanned<f64>,
    /// A million tokens of input that a cache served; not negative. As `input` if absent.
    cache_read: Option<Spanned<f64>>,
    /// A million tokens of input written to a cache; not negative. As `input` if absent.
    cache_write: Option<Spanned<f64>>,
}

/// What a model costs, in the currency of whoever reads the sums.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Price {
    /// The provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// A million tokens of input.
    pub input: f64,
    /// A million tokens of output.
    pub output: f64,
    /// A million tokens of input that a cache served.
    pub cache_read: f64,
    /// A million tokens of input written to a cache.
    pub cache_write: f64,
}

impl Config {
    /// What cost budgets count by.
    pub(in crate::cli) fn price_table(&self) -> Prices {
        self.prices.iter().fold(Prices::new(), |table, price| {
            let amount = playhouse_budgets::Price::new(price.input, price.output)
                .cached(price.cache_read, price.cache_write);
            table.with(&price.provider, &price.model, amount)
        })
    }

    /// How many requests may run at once; `None` if nothing bounds them.
    pub(in crate::cli) fn request_caps(&self) -> Option<Caps> {
        let mut caps = Caps { global: self.max_requests, ..Caps::default() };
        for (name, provider) in &self.providers {
            caps.providers.extend(provider.max_requests.map(|cap| (name.clone(), cap)));
        }
        (caps != Caps::default()).then_some(caps)
    }
}

/// An amount of the prices' currency in millionths, rounded up.
///
/// # Errors
///
/// If it is negative or no number.
pub(in crate::cli) fn micros(amount: f64) -> Result<u64, &'static str> {
    if amount.is_finite() && amount >= 0.0 {
        // A cast of a float saturates.
        Ok((amount * 1e6).ceil() as u64)
    } else {
        Err("must be an amount in the currency of the prices: 0 or more")
    }
}

impl Reader<'_> {
    pub(super) fn budget(&self, entry: &BudgetEntry) -> Result<Option<Budget>, ConfigError> {
        let mut budget = Budget::new();
        let counts = [
            (Resource::Tokens, "tokens", &entry.tokens),
            (Resource::Turns, "turns", &entry.turns),
            (Resource::Steps, "steps", &entry.steps),
            (Resource::ToolCalls, "tool_calls", &entry.tool_calls),
            (Resource::LiveChildren, "live_children", &entry.live_children),
            (Resource::Depth, "depth", &entry.depth),
        ];
        for (resource, key, at) in counts {
            if let Some(at) = at {
                let limit = u64::try_from(*at.get_ref()).map_err(|_| {
                    self.fault(at, &format!("budget.{key}"), "must be 0 or more; 0 allows none")
                })?;
                budget = budget.limited(resource, limit);
            }
        }
        if let Some(at) = &entry.cost {
            let cost = micros(*at.get_ref());
            budget = budget.cost(cost.map_err(|text| self.fault(at, "budget.cost", text))?);
        }
        if let Some(at) = &entry.wall_time_ms {
            let time = self.positive(at, "budget.wall_time_ms")?;
            budget = budget.wall_time(Duration::from_millis(time));
        }
        Ok((!budget.is_empty()).then_some(budget))
    }

    pub(super) fn max_requests(&self, entry: &LimitsEntry) -> Result<Option<usize>, ConfigError> {
        self.requests(entry.requests.as_ref(), "limits.requests")
    }

    pub(super) fn requests(
        &self,
        at: Option<&Spanned<i64>>,
        key: &str,
    ) -> Result<Option<usize>, ConfigError> {
        let requests = at.map(|at| self.positive(at, key)).transpose()?;
        Ok(requests.map(|requests| usize::try_from(requests).unwrap_or(usize::MAX)))
    }

    pub(super) fn prices(&self, entries: &[PriceEntry]) -> Result<Vec<Price>, ConfigError> {
        let mut prices: Vec<Price> = Vec::new();
        for entry in entries {
            let amount = |at: &Spanned<f64>, key: &str| {
                let amount = *at.get_ref();
                let usable = amount.is_finite() && amount >= 0.0;
                let problem = "must be a price per million tokens: 0 or more";
                if usable { Ok(amount) } else { Err(self.fault(at, key, problem)) }
            };
            let input = amount(&entry.input, "input")?;
            let cached = |at: &Option<Spanned<f64>>, key: &str| {
                at.as_ref().map_or(Ok(input), |at| amount(at, key))
            };
            let price = Price {
                provider: self.not_empty(&entry.provider, "provider")?,
                model: self.not_empty(&entry.model, "model")?,
                input,
                output: amount(&entry.output, "output")?,
                cache_read: cached(&entry.cache_read, "cache_read")?,
                cache_write: cached(&entry.cache_write, "cache_write")?,
            };
            if prices.iter().any(|p| p.provider == price.provider && p.model == price.model) {
                let problem = format!("{}/{} has a price already", price.provider, price.model);
                return Err(self.fault(&entry.model, "model", problem + "; remove one of them"));
            }
            prices.push(price);
        }
        Ok(prices)
    }
}
