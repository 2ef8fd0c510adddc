//! What the workload writes: a function of the place alone.

use bytes::Bytes;
use playhouse_messages::{event::Seq, header::SessionHeader, id::SessionId};

/// The sessions that are written on and on.
pub(super) const SESSIONS: u64 = 6;

/// Their ids; `None` for any other session.
pub(super) fn number(id: &SessionId) -> Option<u64> {
    id.as_str().strip_prefix("session-")?.parse().ok()
}

pub(super) fn session(number: u64) -> SessionId {
    format!("session-{number}").into()
}

/// A session that is deleted as soon as it is there.
pub(super) fn passing(life: u64, number: u64) -> SessionId {
    format!("passing-{life}-{number}").into()
}

pub(super) fn header(id: &SessionId) -> SessionHeader {
    SessionHeader::new(id.clone(), 1)
}

/// An event's text: mostly small, now and then larger than a page, rarely than a batch.
pub(super) fn event(id: &SessionId, seq: Seq) -> Bytes {
    let mut dice = dice(id, seq);
    let len = match dice.u32(0..400) {
        0 => dice.usize(40_000..70_000),
        1..=8 => dice.usize(4_000..9_000),
        _ => dice.usize(0..400),
    };
    let pad: String = std::iter::repeat_with(|| dice.alphanumeric()).take(len).collect();
    format!("{{\"type\":\"crash/test\",\"seq\":{seq},\"time\":1,\"data\":{{\"pad\":\"{pad}\"}}}}")
        .into()
}

pub(super) fn events(id: &SessionId, from: Seq, count: u64) -> Vec<Bytes> {
    (from..from + count).map(|seq| event(id, seq)).collect()
}

/// A part of a tail.
pub(super) fn part(id: &SessionId, attempt: u64, index: u64) -> Bytes {
    let mut dice = dice(id, attempt ^ (index << 32));
    let len = dice.usize(1..200);
    std::iter::repeat_with(|| dice.u8(..)).take(len).collect()
}

/// The value that is put the `n`th time.
pub(super) fn value(n: u64) -> Bytes {
    format!("{n:010}").into()
}

fn dice(id: &SessionId, place: u64) -> fastrand::Rng {
    let id = id.as_str().bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
    fastrand::Rng::with_seed(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ place)
}
