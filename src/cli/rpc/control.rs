//! The control socket: JSON-RPC to a running process, through its store's directory.

use std::{
    fs::Metadata,
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;
use playhouse_stores::StoreKind;
use tokio::{
    io::AsyncWriteExt,
    net::{UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
};

use super::connection::{Connection, Desk};
use crate::cli::{
    exit::{CliError, Exit},
    follow::Which,
};

/// The socket's name in the store's directory.
pub(in crate::cli) const SOCKET: &str = "control.sock";

/// How many clients may be connected at once. Another one is hung up on.
const CLIENTS: usize = 64;

/// The socket of this process.
pub(in crate::cli) struct Control {
    path: PathBuf,
    /// Which file it is. Nobody else gets this number as long as the socket is listened on.
    inode: u64,
    ended: CancelToken,
    serving: JoinHandle<()>,
}

impl Control {
    /// Listens in the directory of the store, which must be locked by this process: whatever socket is
    /// there is a dead one's. Memory has no directory, and what is there is another store's. What cannot
    /// be had, such as a path that is too long for a socket, is told in the log, since the process can
    /// work without.
    pub(in crate::cli) fn listen(kind: StoreKind, dir: &Path, desk: Desk) -> Option<Self> {
        if kind == StoreKind::Memory {
            return None;
        }
        let path = dir.join(SOCKET);
        let (listener, about) = match bind(&path) {
            Ok(bound) => bound,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "no control socket");
                return None;
            }
        };
        let ended = CancelToken::new();
        let serving = tokio::spawn(accept(listener, about.uid(), desk, ended.clone()));
        Some(Self { path, inode: about.ino(), ended, serving })
    }

    /// Takes no more clients and no more requests. Those who are connected hear how it ends. To be
    /// called before the store is let go of, since the next process puts its own socket there.
    pub(in crate::cli) fn end(&self) {
        if self.ended.is_cancelled() {
            return;
        }
        // A store that has failed may have let go by itself.
        let is_ours = std::fs::symlink_metadata(&self.path).map(|it| it.ino() == self.inode);
        if let Err(error) = is_ours.and_then(|is_ours| match is_ours {
            true => std::fs::remove_file(&self.path),
            false => Ok(()),
        }) {
            tracing::debug!(path = %self.path.display(), %error, "the control socket was gone");
        }
        self.ended.cancel(CancelCause::Disposed);
    }

    /// Waits until the clients have heard the rest, which comes once no agent is left.
    pub(in crate::cli) async fn close(self) {
        self.end();
        // A panic has said so.
        let _ = self.serving.await;
    }
}

/// Binds the socket, for its owner only.
fn bind(path: &Path) -> io::Result<(UnixListener, Metadata)> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok((listener, std::fs::metadata(path)?))
}

async fn accept(listener: UnixListener, owner: u32, desk: Desk, ended: CancelToken) {
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = ended.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        while clients.try_join_next().is_some() {}
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Of a client that went at once, or of too many open files: either passes.
                tracing::warn!(%error, "a control client was not taken");
                tokio::task::yield_now().await;
                continue;
            }
        };
        // The socket was bound before its mode was set.
        let may = stream.peer_cred().is_ok_and(|peer| peer.uid() == owner || peer.uid() == 0);
        if !may || clients.len() >= CLIENTS {
            tracing::warn!(may, clients = clients.len(), "a control client is hung up on");
            continue;
        }
        clients.spawn(serve(stream, desk.clone(), ended.clone()));
    }
    drop(listener);
    while clients.join_next().await.is_some() {}
}

async fn serve(stream: UnixStream, desk: Desk, ended: CancelToken) {
    let (input, output) = stream.into_split();
    let connection = match Connection::open(&desk, output, Which::Live) {
        Ok(connection) => connection,
        Err(failure) => return tracing::warn!(%failure, "a control client came too late"),
    };
    let left = tokio::select! {
        biased;
        () = ended.cancelled() => false,
        () = connection.outbox.closed() => true,
        read = connection.serve(input) => {
            if let Err(error) = read {
                tracing::info!(error = error.line(), "a control client broke off");
            }
            true
        }
    };
    if left {
        connection.leave(&ended).await;
    } else {
        connection.stop_tools();
        connection.last_words().await;
    }
}

/// Connects to the process that listens at `path`.
pub(in crate::cli) async fn connect(path: &Path) -> Result<UnixStream, CliError> {
    UnixStream::connect(path).await.map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => CliError::Usage(format!(
            "no running process serves the store at {}; start one with `playhouse rpc` or \
             `playhouse run`, or name another store with --store",
            path.parent().unwrap_or(path).display()
        )),
        _ => CliError::io(format!("connecting to {}", path.display()), cause),
    })
}

/// Connects standard input and output to the process that has the store in `dir`.
pub(super) async fn attach(dir: &Path) -> Result<Exit, CliError> {
    let stream = connect(&dir.join(SOCKET)).await?;
    let (mut from, mut to) = stream.into_split();
    let (mut input, mut output) = (tokio::io::stdin(), tokio::io::stdout());
    let send = async {
        tokio::io::copy(&mut input, &mut to).await?;
        // The client has said all; what it is owed still comes.
        to.shutdown().await
    };
    let hear = tokio::io::copy(&mut from, &mut output);
    tokio::pin!(send, hear);
    let heard = tokio::select! {
        heard = &mut hear => heard,
        sent = &mut send => match sent {
            Ok(()) => hear.await,
            Err(error) => Err(error),
        },
    };
    heard.map_err(|cause| CliError::io("passing messages on", cause))?;
    Ok(Exit::Completed)
}
