//! What is there after: everything that was promised, and nothing else.

use std::path::Path;

use futures::TryStreamExt as _;
use playhouse_messages::id::SessionId;
use playhouse_plugin_api::store::{SessionStat, StoreError, StoredSession, all_sessions};
use playhouse_stores::{StoreKind, verify};

use super::{
    Promises, content,
    workload::{KEY, config},
};

/// What the process died of, and so which promises must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survived {
    /// `kill -9`: what is written holds.
    Written,
    /// The loss of power: what is durable holds.
    Durable,
}

/// A promise that was not kept, or worse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// Something that was promised is not there.
    #[error("lost: {0}")]
    Lost(String),
    /// Something else is there than what was written.
    #[error("wrong: {0}")]
    Wrong(String),
    /// The store or a session of it does not open.
    #[error("failed to open: {0}")]
    Open(String),
}

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Events that are there.
    pub events: u64,
    /// Sessions that are there.
    pub sessions: u64,
    /// What should not be.
    pub broken: Vec<Broken>,
}

/// Opens the store in `dir` as the next process would, reads all of it, and compares it with what was
/// promised. Leaves it closed and whole, and the promises at what was found.
pub async fn check(
    kind: StoreKind,
    dir: &Path,
    promises: &mut Promises,
    survived: Survived,
) -> Found {
    let mut found = Found::default();
    if let Err(error) = look(kind, dir, promises, survived, &mut found).await {
        found.broken.push(Broken::Open(error.to_string()));
    }
    found
}

async fn look(
    kind: StoreKind,
    dir: &Path,
    promises: &mut Promises,
    survived: Survived,
    found: &mut Found,
) -> Result<(), StoreError> {
    // A process that died before it made the store has promised nothing.
    if StoreKind::detect(dir).is_ok() {
        let at = dir.to_path_buf();
        let report = tokio::task::spawn_blocking(move || verify(at, |_| ())).await;
        let report = report.map_err(|fault| StoreError::Io {
            what: "verifying".to_owned(),
            cause: fault.to_string(),
        })??;
        if !report.is_whole() {
            found.broken.push(Broken::Wrong(format!("damage: {report}")));
        }
    }
    let store = config(kind).open(dir).await?;
    let stats: Vec<_> = all_sessions(&*store).try_collect().await?;
    let read = |id: SessionId| {
        let store = &store;
        async move { store.read(&id).await.map(|session| (id, session)) }
    };
    for stat in &stats {
        match read(stat.header.id.clone()).await {
            Ok((id, session)) => check_session(&id, stat, &session, found),
            Err(error) => found.broken.push(Broken::Open(error.to_string())),
        }
    }
    let marks = match survived {
        Survived::Written => &promises.written,
        Survived::Durable => &promises.durable,
    };
    for (id, promised) in marks {
        let count = stats.iter().find(|stat| stat.header.id == *id).map_or(0, |s| s.event_count);
        if count < *promised {
            let text = format!("{id}: {promised} events were promised, {count} are there");
            found.broken.push(Broken::Lost(text));
        }
    }
    if survived == Survived::Written {
        for (id, (attempt, parts)) in &promises.tails {
            let tail = read(id.clone()).await.ok().and_then(|(_, session)| session.tail);
            let kept = tail.is_some_and(|tail| {
                tail.attempt > *attempt
                    || (tail.attempt == *attempt && tail.parts.len() as u64 >= *parts)
            });
            if !kept {
                let text = format!("{id}: {parts} parts of the tail of attempt {attempt}");
                found.broken.push(Broken::Lost(text));
            }
        }
    }
    for id in &promises.deleted {
        if stats.iter().any(|stat| stat.header.id == *id) {
            found.broken.push(Broken::Wrong(format!("{id} was deleted and is back")));
        }
    }
    let value = store.get_value(KEY).await?;
    let n = value.as_ref().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    let promised = match survived {
        Survived::Written => promises.value,
        Survived::Durable => promises.durable_value,
    };
    if n.unwrap_or(0) < promised
        || value.as_ref().is_some_and(|v| Some(v) != n.map(content::value).as_ref())
    {
        found.broken.push(Broken::Lost(format!("value {promised}; {value:?} is there")));
    }
    store.close().await?;
    // From now on, what is there is the least that must be.
    for stat in stats.iter().filter(|stat| content::number(&stat.header.id).is_some()) {
        let id = &stat.header.id;
        promises.written.insert(id.clone(), stat.event_count);
        promises.durable.insert(id.clone(), stat.event_count);
    }
    (promises.value, promises.durable_value) = (n.unwrap_or(0), n.unwrap_or(0));
    promises.tails.clear();
    Ok(())
}

fn check_session(id: &SessionId, stat: &SessionStat, session: &StoredSession, found: &mut Found) {
    let count = session.events.len() as u64;
    found.events += count;
    found.sessions += 1;
    if count != stat.event_count || session.header.id != *id {
        let text = format!("{id}: {count} events, {} by the catalog", stat.event_count);
        found.broken.push(Broken::Wrong(text));
    }
    let differs = (0..).zip(&session.events).find(|(seq, text)| content::event(id, *seq) != **text);
    if let Some((seq, _)) = differs {
        found.broken.push(Broken::Wrong(format!("{id}: event {seq} is another one")));
    }
    if let Some(tail) = &session.tail {
        let part = |index| content::part(id, tail.attempt, index);
        if (0..).zip(&tail.parts).any(|(index, bytes)| part(index) != *bytes) {
            let text = format!("{id}: the tail of attempt {} is another one", tail.attempt);
            found.broken.push(Broken::Wrong(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use playhouse_plugin_api::store::EventBatch;

    use super::*;

    /// A store with twenty events of a session and three values, and what it promised.
    async fn kept(dir: &Path) -> Promises {
        let store = config(StoreKind::Journal).open(dir).await.unwrap();
        let id = content::session(0);
        let writer = store.create(&Arc::new(content::header(&id)), 0).await.unwrap();
        let events = content::events(&id, 0, 20);
        writer.append(EventBatch { first_seq: 0, events }).await.unwrap();
        writer.tail(20, content::part(&id, 20, 0)).await.unwrap();
        store.put_value(KEY, content::value(3)).await.unwrap();
        store.close().await.unwrap();
        let mut promises = Promises::default();
        let lines = ["written session-0 20 .", "durable session-0 10 .", "tail session-0 20 1 ."];
        for line in lines.into_iter().chain(["value 3 .", "deleted passing-1-0 ."]) {
            promises.add(line.parse().unwrap());
        }
        promises
    }

    #[tokio::test]
    async fn a_promise_that_is_not_kept_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let promises = kept(dir.path()).await;
        let look = |line: &'static str, survived| {
            let mut promises = promises.clone();
            let dir = dir.path();
            async move {
                if !line.is_empty() {
                    promises.add(line.parse().unwrap());
                }
                check(StoreKind::Journal, dir, &mut promises, survived).await.broken
            }
        };
        assert_eq!(look("", Survived::Written).await, []);
        for line in [
            "written session-0 21 .",
            "written session-1 1 .",
            "tail session-0 20 2 .",
            "tail session-0 21 1 .",
            "value 4 .",
        ] {
            assert!(matches!(look(line, Survived::Written).await[..], [Broken::Lost(_)]), "{line}");
            assert_eq!(look(line, Survived::Durable).await, [], "{line}");
        }
        let durable = look("durable session-0 21 .", Survived::Durable).await;
        assert!(matches!(durable[..], [Broken::Lost(_)]));
        let deleted = look("deleted session-0 .", Survived::Written).await;
        assert!(matches!(deleted[..], [Broken::Wrong(_)]));
    }

    #[tokio::test]
    async fn what_was_not_written_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut promises = kept(dir.path()).await;
        let store = config(StoreKind::Journal).open(dir.path()).await.unwrap();
        let (writer, _) = store.open_write(&content::session(0)).await.unwrap();
        let events = vec![content::event(&content::session(1), 20)];
        writer.append(EventBatch { first_seq: 20, events }).await.unwrap();
        store.close().await.unwrap();
        let found = check(StoreKind::Journal, dir.path(), &mut promises, Survived::Written).await;
        assert!(found.broken.iter().any(|broken| matches!(broken, Broken::Wrong(_))));
    }
}
