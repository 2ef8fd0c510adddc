//! Which session came from which.

use std::collections::{HashMap, HashSet};

use playhouse_messages::id::SessionId;
use playhouse_plugin_api::cancel::CancelToken;

use super::{QueryError, SessionQuery, SessionRecord};

/// A session's ancestors and descendants.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionTrace {
    /// The session.
    pub target: SessionRecord,
    /// Its parent, that one's parent, and so on.
    pub ancestors: Vec<SessionRecord>,
    /// The parent of the last ancestor, if it is not there: then they are not all.
    pub unresolved_parent_id: Option<SessionId>,
    /// The tree below it, each session before its children; siblings by time of creation, then id.
    pub descendants: Vec<Descendant>,
}

impl SessionTrace {
    /// Whether all ancestors are there.
    pub fn is_complete(&self) -> bool {
        self.unresolved_parent_id.is_none()
    }
}

/// A session in a tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Descendant {
    /// The session.
    pub record: SessionRecord,
    /// How far below the target it stands; 1 for a child.
    pub depth: usize,
}

impl SessionQuery {
    /// A session's ancestors and descendants.
    ///
    /// # Errors
    ///
    /// As [`SessionQuery::list`]; [`QueryError::SessionNotFound`],
    /// [`QueryError::InvalidLineage`].
    pub async fn trace_session(
        &self,
        id: &SessionId,
        cancel: &CancelToken,
    ) -> Result<SessionTrace, QueryError> {
        trace(self.list(&[], cancel).await?, id)
    }
}

/// Neither part recurses: lineages may be long.
fn trace(records: Vec<SessionRecord>, id: &SessionId) -> Result<SessionTrace, QueryError> {
    let by_id: HashMap<_, _> = records.iter().map(|record| (&record.header.id, record)).collect();
    let missing = || QueryError::SessionNotFound { id: id.clone() };
    let target = *by_id.get(id).ok_or_else(missing)?;
    let (mut ancestors, mut unresolved_parent_id) = (Vec::new(), None);
    let mut seen = HashSet::from([id]);
    let mut next = target.header.parent_session.as_ref();
    while let Some(parent) = next {
        if !seen.insert(parent) {
            return Err(QueryError::InvalidLineage { id: id.clone() });
        }
        let Some(record) = by_id.get(parent) else {
            unresolved_parent_id = Some(parent.clone());
            break;
        };
        ancestors.push((*record).clone());
        next = record.header.parent_session.as_ref();
    }
    let mut children: HashMap<&SessionId, Vec<&SessionRecord>> = HashMap::new();
    for record in &records {
        if let Some(parent) = &record.header.parent_session {
            children.entry(parent).or_default().push(record);
        }
    }
    for siblings in children.values_mut() {
        // The last of them is taken from the stack first.
        siblings.sort_by_key(|record| {
            std::cmp::Reverse((record.header.created_at, record.header.id.clone()))
        });
    }
    let (mut descendants, mut stack) = (Vec::new(), vec![(id, 0)]);
    while let Some((parent, depth)) = stack.pop() {
        if depth > 0
            && let Some(record) = by_id.get(parent)
        {
            descendants.push(Descendant { record: (*record).clone(), depth });
        }
        // Taken out, so that no session is told twice.
        for child in children.remove(parent).unwrap_or_default() {
            stack.push((&child.header.id, depth + 1));
        }
    }
    Ok(SessionTrace { target: target.clone(), ancestors, unresolved_parent_id, descendants })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use playhouse_messages::header::SessionHeader;

    use super::*;

    fn record(id: &str, created_at: u64, parent: Option<&str>) -> SessionRecord {
        let mut header = SessionHeader::new(id.into(), created_at);
        header.parent_session = parent.map(SessionId::from);
        SessionRecord {
            header: Arc::new(header),
            live: false,
            persisted: true,
            event_count: 0,
            size_bytes: None,
            revision: None,
        }
    }

    #[test]
    fn a_tree_is_told_in_order_and_a_parent_that_is_missing_is_named() {
        let records = vec![
            record("root", 1, Some("gone")),
            record("b", 3, Some("root")),
            record("a", 3, Some("root")),
            record("first", 2, Some("root")),
            record("below", 9, Some("a")),
            record("other", 1, None),
        ];
        let found = trace(records.clone(), &"root".into()).unwrap();
        let tree: Vec<_> = found
            .descendants
            .iter()
            .map(|found| (found.record.header.id.as_str(), found.depth))
            .collect();
        assert_eq!(tree, [("first", 1), ("a", 1), ("below", 2), ("b", 1)]);
        assert!(!found.is_complete());
        assert_eq!(found.unresolved_parent_id, Some("gone".into()));
        let found = trace(records.clone(), &"below".into()).unwrap();
        let ids: Vec<_> = found.ancestors.iter().map(|found| found.header.id.as_str()).collect();
        assert_eq!(ids, ["a", "root"]);
        let error = trace(records, &"none".into()).unwrap_err();
        assert_eq!(error.code(), "SESSION_QUERY_SESSION_NOT_FOUND");
    }

    mod scenario {
        use super::*;

        #[test]
        fn persistence_87_a_cycle_is_refused_and_a_long_lineage_needs_no_stack() {
            for cycle in [
                vec![record("a", 1, Some("a"))],
                vec![record("a", 1, Some("b")), record("b", 1, Some("a"))],
                vec![
                    record("a", 1, Some("b")),
                    record("b", 1, Some("c")),
                    record("c", 1, Some("b")),
                ],
            ] {
                let error = trace(cycle, &"a".into()).unwrap_err();
                assert_eq!(error.code(), "SESSION_QUERY_INVALID_LINEAGE");
            }
            const DEPTH: usize = 10_000;
            let id = |at: usize| format!("s{at:05}");
            let parent = |at: usize| at.checked_sub(1).map(id);
            let records: Vec<_> =
                (0..DEPTH).map(|at| record(&id(at), at as u64, parent(at).as_deref())).collect();
            let below = trace(records.clone(), &id(0).as_str().into()).unwrap();
            assert_eq!(below.descendants.len(), DEPTH - 1);
            assert_eq!(below.descendants.last().map(|last| last.depth), Some(DEPTH - 1));
            let above = trace(records, &id(DEPTH - 1).as_str().into()).unwrap();
            assert_eq!((above.ancestors.len(), above.is_complete()), (DEPTH - 1, true));
        }
    }
}
