//! The seam to the bytes that messages refer to: images, by the digest of what they are.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use imagesize::ImageType;
pub use playhouse_messages::attachment::{Attachment, AttachmentId, NotAnAttachmentId};
use playhouse_messages::chunk::Failure;
use sha2::{Digest, Sha256};

/// How many bytes an image may have, unless a store is told otherwise.
pub const IMAGE_BYTES_MAX: usize = 20 * 1024 * 1024;

/// How many bytes an attachment's name may have.
pub const NAME_BYTES_MAX: usize = 255;

/// Keeps images. The same bytes have the same id, so putting them twice is no error and keeps them
/// once. All methods may be called concurrently, and dropping a future leaves no half image.
pub trait AttachmentStore: Send + Sync + 'static {
    /// Names the store in logs and errors: its kind and place.
    fn describe(&self) -> String;

    /// Keeps an image; what it is, is read from its bytes. **Durable** when this returns, if the
    /// store is one that lasts. `name` is for people.
    fn put(
        &self,
        bytes: Bytes,
        name: Option<String>,
    ) -> BoxFuture<'_, Result<Attachment, AttachmentError>>;

    /// The bytes of an image; `None` if the store does not have it.
    fn get<'a>(
        &'a self,
        id: &'a AttachmentId,
    ) -> BoxFuture<'a, Result<Option<Bytes>, AttachmentError>>;
}

/// Why bytes were not kept, or not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachmentError {
    /// They are no image that models take.
    #[error("{what} is no PNG, JPEG, GIF or WebP image: {reason}; convert it to one of these")]
    NotAnImage {
        /// Its name, or "an attachment".
        what: String,
        /// What was found.
        reason: String,
    },
    /// They are too many.
    #[error("{what} has {bytes} bytes, more than {max}: scale it down")]
    TooLarge {
        /// Its name, or "an attachment".
        what: String,
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// The name is too long.
    #[error("an attachment's name has {bytes} bytes, more than {NAME_BYTES_MAX}: shorten it")]
    LongName {
        /// How many it has.
        bytes: usize,
    },
    /// The store holds other bytes than those that were put.
    #[error("{place} is damaged: its bytes are not those of {id}; put the image again")]
    Corrupt {
        /// The attachment.
        id: AttachmentId,
        /// Where it is kept.
        place: String,
    },
    /// The store failed.
    #[error("{place}: {cause}")]
    Store {
        /// Where.
        place: String,
        /// The system's words.
        cause: String,
    },
}

impl AttachmentError {
    /// A stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAnImage { .. } => "UNSUPPORTED_MEDIA_TYPE",
            Self::TooLarge { .. } => "ATTACHMENT_TOO_LARGE",
            Self::LongName { .. } => "ATTACHMENT_NAME",
            Self::Corrupt { .. } => "ATTACHMENT_CORRUPT",
            Self::Store { .. } => "ATTACHMENT_STORE",
        }
    }
}

impl From<AttachmentError> for Failure {
    fn from(error: AttachmentError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// What an image is, from its bytes alone: media type, size in pixels, digest.
///
/// # Errors
///
/// For bytes that are no PNG, JPEG, GIF or WebP image, for more than `bytes_max` of them, and for a
/// name of more than [`NAME_BYTES_MAX`] bytes.
pub fn inspect(
    bytes: &[u8],
    name: Option<String>,
    bytes_max: usize,
) -> Result<Attachment, AttachmentError> {
    if let Some(name) = name.as_ref().filter(|name| name.len() > NAME_BYTES_MAX) {
        return Err(AttachmentError::LongName { bytes: name.len() });
    }
    let what = || name.as_ref().map_or_else(|| "an attachment".to_owned(), |n| format!("\"{n}\""));
    if bytes.len() > bytes_max {
        let bytes = bytes.len();
        return Err(AttachmentError::TooLarge { what: what(), bytes, max: bytes_max });
    }
    let refused =
        |reason: &str| AttachmentError::NotAnImage { what: what(), reason: reason.into() };
    let media_type = match imagesize::image_type(bytes) {
        Ok(ImageType::Png) => "image/png",
        Ok(ImageType::Jpeg) => "image/jpeg",
        Ok(ImageType::Gif) => "image/gif",
        Ok(ImageType::Webp) => "image/webp",
        _ => return Err(refused("its first bytes are of something else")),
    };
    let size = imagesize::blob_size(bytes).map_err(|fault| refused(&fault.to_string()))?;
    let side = |pixels: usize| u32::try_from(pixels).ok().filter(|side| *side > 0);
    let (Some(width), Some(height)) = (side(size.width), side(size.height)) else {
        return Err(refused("it has no pixels, or too many"));
    };
    Ok(Attachment {
        attachment_id: digest(bytes),
        media_type: media_type.to_owned(),
        bytes: bytes.len() as u64,
        width,
        height,
        name,
    })
}

/// The id of these bytes.
pub fn digest(bytes: &[u8]) -> AttachmentId {
    AttachmentId::of_digest(Sha256::digest(bytes).into())
}

/// Keeps images in memory, until its last clone is dropped.
#[derive(Clone)]
pub struct MemoryAttachments {
    kept: Arc<Mutex<HashMap<AttachmentId, Bytes>>>,
    bytes_max: usize,
}

impl MemoryAttachments {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// With this limit of bytes for one image.
    #[must_use]
    pub fn image_bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }
}

impl Default for MemoryAttachments {
    fn default() -> Self {
        Self { kept: Arc::default(), bytes_max: IMAGE_BYTES_MAX }
    }
}

impl fmt::Debug for MemoryAttachments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "MemoryAttachments({})", kept.len())
    }
}

impl AttachmentStore for MemoryAttachments {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn put(
        &self,
        bytes: Bytes,
        name: Option<String>,
    ) -> BoxFuture<'_, Result<Attachment, AttachmentError>> {
        async move {
            let attachment = inspect(&bytes, name, self.bytes_max)?;
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.entry(attachment.attachment_id.clone()).or_insert(bytes);
            Ok(attachment)
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        id: &'a AttachmentId,
    ) -> BoxFuture<'a, Result<Option<Bytes>, AttachmentError>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        futures::future::ready(Ok(kept.get(id).cloned())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head of an image of 3 by 2 pixels: all that is read of one.
    fn heads() -> [(&'static str, Vec<u8>); 4] {
        let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", &[0, 0, 0, 3, 0, 0, 0, 2, 8, 0, 0, 0, 0][..]];
        let jpeg = b"\xff\xd8\xff\xc0\0\x0b\x08\0\x02\0\x03\x01\x01\x11\0\xff\xd9";
        let gif = b"GIF89a\x03\0\x02\0\0\0\0;";
        let webp = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x02\0\0\x01\0\0";
        [
            ("image/png", png.concat()),
            ("image/jpeg", jpeg.to_vec()),
            ("image/gif", gif.to_vec()),
            ("image/webp", webp.to_vec()),
        ]
    }

    #[test]
    fn type_and_size_come_from_the_bytes() {
        for (media_type, bytes) in heads() {
            let found = inspect(&bytes, Some("x.bmp".into()), bytes.len()).unwrap();
            assert_eq!(found.media_type, media_type);
            assert_eq!((found.width, found.height), (3, 2), "{media_type}");
            assert_eq!(found.bytes, bytes.len() as u64);
            assert_eq!(found.attachment_id, digest(&bytes));
        }
        let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b"").as_str(), known);
    }

    #[test]
    fn what_is_no_image_or_too_large_is_refused_by_name() {
        let code = |bytes: &[u8], max| {
            let error = inspect(bytes, Some("cat.png".into()), max).unwrap_err();
            assert!(error.to_string().contains("cat.png"), "{error}");
            error.code()
        };
        for bytes in [&b""[..], b"plain text", b"%PDF-1.7", b"BM\0\0\0\0", b"<svg/>"] {
            assert_eq!(code(bytes, 100), "UNSUPPORTED_MEDIA_TYPE");
        }
        for (_, bytes) in heads() {
            assert_eq!(code(&bytes[..9], 100), "UNSUPPORTED_MEDIA_TYPE");
            assert_eq!(code(&bytes, bytes.len() - 1), "ATTACHMENT_TOO_LARGE");
        }
        let empty = b"GIF89a\0\0\x02\0\0\0\0;";
        assert_eq!(code(empty, 100), "UNSUPPORTED_MEDIA_TYPE");
        let error = inspect(empty, Some("n".repeat(256)), 100).unwrap_err();
        assert_eq!(error.code(), "ATTACHMENT_NAME");
    }

    #[tokio::test]
    async fn memory_keeps_the_same_bytes_once() {
        let store = MemoryAttachments::new();
        let (_, png) = &heads()[0];
        let put = |name: &str| store.put(Bytes::from(png.clone()), Some(name.into()));
        let (a, b) = (put("a").await.unwrap(), put("b").await.unwrap());
        assert_eq!(a.attachment_id, b.attachment_id);
        assert_eq!((a.name.as_deref(), b.name.as_deref()), (Some("a"), Some("b")));
        assert_eq!(store.get(&a.attachment_id).await.unwrap().unwrap(), png);
        assert_eq!(format!("{store:?}"), "MemoryAttachments(1)");
        assert_eq!(store.get(&digest(b"")).await, Ok(None));
        let strict = MemoryAttachments::new().image_bytes_max(4);
        let error = strict.put(Bytes::from(png.clone()), None).await.unwrap_err();
        assert_eq!(error.code(), "ATTACHMENT_TOO_LARGE");
    }
}
