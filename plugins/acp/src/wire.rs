//! Newline-delimited JSON over pipes: what both sides speak.

use std::{io, sync::Arc};

use agent_client_protocol::Lines;
use futures::{Sink, SinkExt, Stream, TryStreamExt};
use playhouse_messages::event::CancelCause;
use playhouse_plugin_api::cancel::CancelToken;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec, LinesCodecError};

/// The longest line that is read, in bytes: an image in base64 fits, a peer gone mad does not fill
/// memory.
pub const LINE_BYTES_MAX: usize = 32 << 20;

/// The lines that a peer writes. One that is too long, or not UTF-8, is an error.
pub(crate) fn read_lines(
    input: impl AsyncRead + Send + 'static,
) -> impl Stream<Item = io::Result<String>> + Send + 'static {
    FramedRead::new(input, LinesCodec::new_with_max_length(LINE_BYTES_MAX)).map_err(plain)
}

/// Lines for a peer. Dropping the sink closes the pipe.
pub(crate) fn write_lines(
    output: impl AsyncWrite + Send + 'static,
) -> impl Sink<String, Error = io::Error> + Send + 'static {
    let lines = FramedWrite::new(output, LinesCodec::new());
    SinkExt::<String>::sink_map_err(lines, plain)
}

/// A transport of the protocol over two pipes, such as standard input and output, or a child's.
///
/// ```
/// use agent_client_protocol::Client;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (here, there) = tokio::io::duplex(1024);
/// let (input, output) = tokio::io::split(here);
/// let transport = playhouse_acp::wire::pipes(input, output);
/// drop(there);
/// Client.v1().connect_with(transport, async |_agent| Ok(())).await?;
/// # Ok::<(), agent_client_protocol::Error>(()) }).unwrap();
/// ```
pub fn pipes(
    input: impl AsyncRead + Send + 'static,
    output: impl AsyncWrite + Send + 'static,
) -> Lines<
    impl Sink<String, Error = io::Error> + Send + 'static,
    impl Stream<Item = io::Result<String>> + Send + 'static,
> {
    Lines::new(write_lines(output), read_lines(input))
}

/// As [`pipes`]; each update that is written gives a permit back to `window`, and `lost` fires when
/// nobody reads any more.
pub(crate) fn windowed(
    input: impl AsyncRead + Send + 'static,
    output: impl AsyncWrite + Send + 'static,
    window: Arc<Semaphore>,
    lost: CancelToken,
) -> Lines<
    impl Sink<String, Error = io::Error> + Send + 'static,
    impl Stream<Item = io::Result<String>> + Send + 'static,
> {
    let told = write_lines(output).sink_map_err(move |error| {
        lost.cancel(CancelCause::Disposed);
        error
    });
    let counted = told.with(move |line: String| {
        // Quotes within a text are escaped, so that no text looks like this.
        if line.contains(r#""method":"session/update""#) {
            window.add_permits(1);
        }
        std::future::ready(Ok::<_, io::Error>(line))
    });
    Lines::new(counted, read_lines(input))
}

fn plain(error: LinesCodecError) -> io::Error {
    match error {
        LinesCodecError::Io(error) => error,
        LinesCodecError::MaxLineLengthExceeded => {
            let text = format!("a line has more than {LINE_BYTES_MAX} bytes");
            io::Error::new(io::ErrorKind::InvalidData, text)
        }
    }
}
