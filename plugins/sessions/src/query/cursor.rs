//! Places in a list of hits.

use super::QueryError;

/// Where the next page begins: good for one request over one state of what is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) offset: usize,
    pub(super) request: u64,
    pub(super) generation: u64,
}

impl Cursor {
    pub(super) fn encode(self) -> String {
        format!("{:x}-{:016x}-{:016x}", self.offset, self.request, self.generation)
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(|part| u64::from_str_radix(part, 16).ok());
        let (offset, request, generation) = (parts.next()??, parts.next()??, parts.next()??);
        let offset = usize::try_from(offset).ok()?;
        parts.next().is_none().then_some(Self { offset, request, generation })
    }

    /// The offset that a cursor means, 0 without one.
    pub(super) fn offset(
        cursor: Option<&str>,
        request: u64,
        generation: u64,
    ) -> Result<usize, QueryError> {
        let Some(text) = cursor else { return Ok(0) };
        let cursor = Self::decode(text).ok_or(QueryError::InvalidCursor)?;
        if cursor.request != request {
            return Err(QueryError::InvalidCursor);
        }
        if cursor.generation != generation {
            return Err(QueryError::StaleCursor);
        }
        Ok(cursor.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_request_and_state() {
        let text = Cursor { offset: 20, request: 7, generation: u64::MAX }.encode();
        assert_eq!(Cursor::offset(Some(&text), 7, u64::MAX), Ok(20));
        assert_eq!(Cursor::offset(Some(&text), 7, 1), Err(QueryError::StaleCursor));
        for (text, request) in [(&*text, 8), ("", 7), ("1-2", 7), ("1-7-1-1", 7), ("x-7-1", 7)] {
            assert_eq!(Cursor::offset(Some(text), request, 1), Err(QueryError::InvalidCursor));
        }
        assert_eq!(Cursor::offset(None, 7, 1), Ok(0));
    }
}
