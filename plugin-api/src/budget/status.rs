//! What is left, for people and programs.

use playhouse_messages::id::SessionId;
use serde::Serialize;

/// How far one budget has got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// The agent whose option it is.
    pub owner: SessionId,
    /// Whether all below that agent share it.
    pub tree: bool,
    /// Its limits.
    pub resources: Vec<ResourceStatus>,
}

/// How far one limit has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// Its name.
    pub resource: &'static str,
    /// The limit, in units of the resource.
    pub limit: u64,
    /// How much is used.
    pub used: u64,
    /// How much requests under way have reserved.
    pub reserved: u64,
}

impl BudgetStatus {
    /// How much is left of a resource, what is reserved counted as used; `None` if it is not limited.
    pub fn left(&self, resource: super::Resource) -> Option<u64> {
        let found = self.resources.iter().find(|it| it.resource == resource.name())?;
        Some(found.limit.saturating_sub(found.used).saturating_sub(found.reserved))
    }
}
