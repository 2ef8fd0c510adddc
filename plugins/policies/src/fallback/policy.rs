//! For which failures a step goes on elsewhere, and where.

use playhouse_messages::{
    chunk::Failure,
    config::{ModelChoice, Route},
    retry::RetryPolicy,
};

use super::event::{SkipReason, Skipped};

/// Which failures lead to another route, and to which.
///
/// ```
/// use playhouse_messages::config::ModelChoice;
/// use playhouse_policies::FallbackPolicy;
///
/// let model = |provider: &str, model: &str| ModelChoice {
///     provider: provider.into(),
///     model: model.into(),
///     reasoning_effort: None,
/// };
/// let policy = FallbackPolicy::new([model("deepseek", "deepseek-v4-flash"), model("local", "any")])?
///     .on_codes(["RATE_LIMIT", "SERVER"])?;
/// assert_eq!(policy.routes().len(), 2);
/// assert_eq!(FallbackPolicy::new([]).unwrap_err().code(), "INVALID_FALLBACK");
/// # Ok::<(), playhouse_policies::FallbackError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackPolicy {
    routes: Vec<ModelChoice>,
    codes: Vec<String>,
}

/// Why a fallback policy is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackError {
    /// Nowhere to go.
    #[error("a fallback needs at least one route; name one, or leave the fallback out")]
    NoRoutes,
    /// A route without a provider or a model, or with an empty effort.
    #[error("fallback route {position} (`{route}`) has an empty part; name provider and model")]
    EmptyName {
        /// Which, from 1.
        position: usize,
        /// What there is of it.
        route: Route,
    },
    /// A route that stands in the list already.
    #[error("fallback route `{route}` is named twice; remove one of them")]
    Repeated {
        /// Which.
        route: Route,
    },
    /// No codes, an empty one or one named twice.
    #[error("the failure codes of a fallback must be unique and not empty, and at least one")]
    BadCodes,
}

impl FallbackError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        "INVALID_FALLBACK"
    }
}

impl From<FallbackError> for Failure {
    fn from(error: FallbackError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// What a policy makes of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Where the step goes on; `None` if the list is used up.
    pub to: Option<ModelChoice>,
    /// What stood before it in the list, and why it is not that.
    pub skipped: Vec<Skipped>,
}

impl FallbackPolicy {
    /// These routes, in this order, for the codes that the default retry policy lists. Whether a
    /// route is registered counts when it is needed.
    ///
    /// # Errors
    ///
    /// An empty list, an empty name, a route that is named twice.
    pub fn new(routes: impl IntoIterator<Item = ModelChoice>) -> Result<Self, FallbackError> {
        let routes: Vec<_> = routes.into_iter().collect();
        if routes.is_empty() {
            return Err(FallbackError::NoRoutes);
        }
        for (at, choice) in routes.iter().enumerate() {
            let effort = choice.reasoning_effort.as_deref();
            let route = route_of(choice);
            if choice.provider.is_empty() || choice.model.is_empty() || effort == Some("") {
                return Err(FallbackError::EmptyName { position: at + 1, route });
            }
            if routes[..at].iter().any(|earlier| route_of(earlier) == route) {
                return Err(FallbackError::Repeated { route });
            }
        }
        let codes = match RetryPolicy::default() {
            RetryPolicy::Normal { retryable_codes, .. } => retryable_codes,
            RetryPolicy::Always { .. } => Vec::new(),
        };
        Ok(Self { routes, codes })
    }

    /// For failures of these codes.
    ///
    /// # Errors
    ///
    /// An empty list, an empty code, a code that is named twice.
    pub fn on_codes<C: Into<String>>(
        self,
        codes: impl IntoIterator<Item = C>,
    ) -> Result<Self, FallbackError> {
        let codes: Vec<String> = codes.into_iter().map(Into::into).collect();
        let repeated = |(at, code): (usize, &String)| codes[..at].contains(code);
        let empty = codes.is_empty() || codes.iter().any(String::is_empty);
        if empty || codes.iter().enumerate().any(repeated) {
            return Err(FallbackError::BadCodes);
        }
        Ok(Self { codes, ..self })
    }

    /// The routes, in order.
    pub fn routes(&self) -> &[ModelChoice] {
        &self.routes
    }

    /// The failure codes that lead to them.
    pub fn codes(&self) -> &[String] {
        &self.codes
    }

    /// Where a step goes on: the first route that is registered and has not failed in it. `None` if
    /// the failure is none of this policy's.
    pub fn choose(
        &self,
        failure: &Failure,
        failed: &[Route],
        is_registered: impl Fn(&str) -> bool,
    ) -> Option<Choice> {
        if !self.codes.contains(&failure.code) {
            return None;
        }
        let mut skipped = Vec::new();
        for choice in &self.routes {
            let route = route_of(choice);
            let reason = if failed.contains(&route) {
                SkipReason::Failed
            } else if !is_registered(&choice.provider) {
                SkipReason::Unregistered
            } else {
                return Some(Choice { to: Some(choice.clone()), skipped });
            };
            skipped.push(Skipped { route, reason });
        }
        Some(Choice { to: None, skipped })
    }
}

fn route_of(choice: &ModelChoice) -> Route {
    Route::new(&choice.provider, &choice.model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(route: &str) -> ModelChoice {
        let (provider, model) = route.split_once('/').unwrap();
        ModelChoice { provider: provider.into(), model: model.into(), reasoning_effort: None }
    }

    fn policy(routes: &[&str]) -> Result<FallbackPolicy, FallbackError> {
        FallbackPolicy::new(routes.iter().map(|route| choice(route)))
    }

    #[test]
    fn a_policy_that_cannot_work_is_refused() {
        for (routes, fault) in [
            (&[] as &[&str], "at least one route"),
            (&["a/m", "/m"], "route 2 (`/m`) has an empty part"),
            (&["a/"], "route 1 (`a/`)"),
            (&["a/m", "b/m", "a/m"], "`a/m` is named twice"),
        ] {
            let error = policy(routes).unwrap_err();
            assert!(error.to_string().contains(fault), "{error}");
        }
        let efforts = ["high", "low"]
            .map(|effort| ModelChoice { reasoning_effort: Some(effort.into()), ..choice("a/m") });
        assert!(FallbackPolicy::new(efforts).is_err(), "one route, whatever the effort");
        let policy = policy(&["a/m"]).unwrap();
        for codes in [&[] as &[&str], &[""], &["A", "B", "A"]] {
            let refused = policy.clone().on_codes(codes.iter().copied());
            assert_eq!(refused, Err(FallbackError::BadCodes), "{codes:?}");
        }
    }

    #[test]
    fn the_first_route_that_is_there_and_has_not_failed_is_next() {
        let policy = policy(&["a/m", "b/m", "b/n"]).unwrap();
        let registered = |provider: &str| provider != "gone";
        let next = |failed: &[&str]| {
            let failed: Vec<_> = failed.iter().map(|r| r.split_once('/').unwrap()).collect();
            let failed: Vec<_> = failed.into_iter().map(|(p, m)| Route::new(p, m)).collect();
            policy.choose(&Failure::new("SERVER", "x"), &failed, registered).unwrap().to
        };
        for (failed, to) in [
            (&["p/m"] as &[&str], Some("a/m")),
            (&["p/m", "a/m"], Some("b/m")),
            (&["a/m"], Some("b/m")),
            // A session that stays with a fallback may go back to what failed in an earlier step.
            (&["b/m"], Some("a/m")),
            (&["p/m", "a/m", "b/m"], Some("b/n")),
            (&["b/n", "b/m", "a/m"], None),
        ] {
            assert_eq!(next(failed), to.map(choice), "{failed:?}");
        }
        assert_eq!(policy.choose(&Failure::new("AUTH", "x"), &[], registered), None);
    }

    #[test]
    fn what_is_not_registered_is_skipped_with_the_reason() {
        let policy = policy(&["gone/m", "a/m", "b/m"]).unwrap();
        let failed = [Route::new("a", "m")];
        let server = Failure::new("SERVER", "x");
        let skipped = |provider: &str, reason| Skipped { route: Route::new(provider, "m"), reason };
        let (gone, failed_once) =
            (skipped("gone", SkipReason::Unregistered), skipped("a", SkipReason::Failed));
        let chosen = policy.choose(&server, &failed, |provider| provider != "gone").unwrap();
        assert_eq!(chosen.skipped, [gone.clone(), failed_once.clone()]);
        assert_eq!(chosen.to, Some(choice("b/m")));
        let none = policy.choose(&server, &failed, |_| false).unwrap();
        assert_eq!(none.to, None);
        assert_eq!(none.skipped, [gone, failed_once, skipped("b", SkipReason::Unregistered)]);
    }
}
