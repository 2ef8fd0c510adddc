//! The terminal: taken over, listened to, and given back whatever happens.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEvent, KeyEventKind},
};
use tokio::sync::mpsc;

/// How long a read of the keyboard lasts before it is asked whether to go on.
const LISTEN: Duration = Duration::from_millis(100);

/// Keys that may wait to be handled. A person types slower.
const QUEUE: usize = 256;

/// What somebody does at the terminal.
#[derive(Debug)]
pub(super) enum Happened {
    Key(KeyEvent),
    Resized,
    /// Nothing more can be read.
    Closed(io::Error),
}

/// The terminal, in raw mode on its other screen. Dropping it gives it back; so does a panic.
pub(super) struct Terminal {
    pub(super) screen: DefaultTerminal,
    happened: mpsc::Receiver<Happened>,
    ended: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Takes the terminal over.
    pub(super) fn open() -> io::Result<Self> {
        let screen = ratatui::try_init()?;
        let (tell, happened) = mpsc::channel(QUEUE);
        let ended = Arc::new(AtomicBool::new(false));
        let until = ended.clone();
        let listener = std::thread::spawn(move || listen(&tell, &until));
        Ok(Self { screen, happened, ended, listener: Some(listener) })
    }

    /// What happens next. Cancel safe.
    pub(super) async fn next(&mut self) -> Happened {
        let gone = || Happened::Closed(io::ErrorKind::UnexpectedEof.into());
        self.happened.recv().await.unwrap_or_else(gone)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
        self.ended.store(true, Ordering::Release);
        self.happened.close();
        if let Some(listener) = self.listener.take() {
            // It looks up within `LISTEN`; a panic of its own has said so.
            let _ = listener.join();
        }
    }
}

fn listen(tell: &mpsc::Sender<Happened>, ended: &AtomicBool) {
    while !ended.load(Ordering::Acquire) {
        let happened = match event::poll(LISTEN) {
            Ok(false) => continue,
            Ok(true) => match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Happened::Key(key),
                Ok(Event::Resize(..)) => Happened::Resized,
                Ok(_) => continue,
                Err(error) => Happened::Closed(error),
            },
            Err(error) => Happened::Closed(error),
        };
        let over = matches!(happened, Happened::Closed(_));
        if tell.blocking_send(happened).is_err() || over {
            return;
        }
    }
}
