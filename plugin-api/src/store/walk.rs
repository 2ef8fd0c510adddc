//! Everything that a store lists, page by page.

use futures::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{BoxStream, try_unfold},
};

use super::{ListQuery, SessionStat, StoreError, StoreReader, ValueQuery};

/// Every session of a store, by id. A page is read when the one before has been taken, so what is
/// stored meanwhile may or may not be in it. Ends after the first error.
pub fn all_sessions<R: StoreReader + ?Sized>(
    reader: &R,
) -> BoxStream<'_, Result<SessionStat, StoreError>> {
    walk(ListQuery::default(), |query| {
        let page = reader.list(query);
        let behind = |id| ListQuery { after: Some(id), ..ListQuery::default() };
        async move { page.await.map(|page| (page.sessions, page.next.map(behind))) }.boxed()
    })
}

/// Every key that has a value, in order, as [`all_sessions`].
pub fn all_values<R: StoreReader + ?Sized>(
    reader: &R,
) -> BoxStream<'_, Result<String, StoreError>> {
    walk(ValueQuery::default(), |query| {
        let page = reader.list_values(query);
        let behind = |key| ValueQuery { after: Some(key), ..ValueQuery::default() };
        async move { page.await.map(|page| (page.keys, page.next.map(behind))) }.boxed()
    })
}

/// A page's items, and the query of the next.
type Page<T, Q> = Result<(Vec<T>, Option<Q>), StoreError>;

fn walk<'a, T: Send + 'a, Q: Send + 'a>(
    first: Q,
    page: impl Fn(Q) -> BoxFuture<'a, Page<T, Q>> + Send + 'a,
) -> BoxStream<'a, Result<T, StoreError>> {
    let start = (Vec::new().into_iter(), Some(first), page);
    try_unfold(start, |(mut items, mut rest, page)| async move {
        loop {
            if let Some(item) = items.next() {
                return Ok(Some((item, (items, rest, page))));
            }
            let Some(query) = rest.take() else { return Ok(None) };
            let (found, behind) = page(query).await?;
            (items, rest) = (found.into_iter(), behind);
        }
    })
    .boxed()
}
