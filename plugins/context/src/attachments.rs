//! Images in a directory: a file each, named for the digest of its bytes.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use playhouse_plugin_api::attachment::{
    Attachment, AttachmentError, AttachmentId, AttachmentStore, IMAGE_BYTES_MAX, digest, inspect,
};

/// Keeps images in a directory (mode 0700, files 0600), for as long as that stays. Several processes
/// may share it.
///
/// An image is **durable** when it was put: its file appears whole or not at all, and its bytes are
/// checked whenever they are read. Nothing is ever deleted.
#[derive(Debug, Clone)]
pub struct DirectoryAttachments {
    dir: Arc<Path>,
    bytes_max: usize,
}

impl DirectoryAttachments {
    /// A store in this directory, which is made when the first image is put.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into().into(), bytes_max: IMAGE_BYTES_MAX }
    }

    /// With this limit of bytes for one image.
    #[must_use]
    pub fn image_bytes_max(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    fn save(&self, bytes: &[u8], name: Option<String>) -> Result<Attachment, AttachmentError> {
        let attachment = inspect(bytes, name, self.bytes_max)?;
        let path = self.path(&attachment.attachment_id);
        // A file that was damaged meanwhile is written anew.
        if !fs::read(&path).is_ok_and(|kept| kept == bytes) {
            self.write(&path, bytes).map_err(|cause| failed(&path, &cause))?;
        }
        Ok(attachment)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        private_dir(&self.dir)?;
        // It is made with mode 0600, and removed again if anything fails.
        let mut file = tempfile::Builder::new().prefix(".put-").tempfile_in(&self.dir)?;
        io::Write::write_all(&mut file, bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        sync_dir(&self.dir)
    }

    fn load(&self, id: &AttachmentId) -> Result<Option<Bytes>, AttachmentError> {
        let path = self.path(id);
        match fs::read(&path) {
            Ok(bytes) if digest(&bytes) == *id => Ok(Some(bytes.into())),
            Ok(_) => {
                let place = path.display().to_string();
                Err(AttachmentError::Corrupt { id: id.clone(), place })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(failed(&path, &cause)),
        }
    }

    fn path(&self, id: &AttachmentId) -> PathBuf {
        self.dir.join(id.digits())
    }
}

impl AttachmentStore for DirectoryAttachments {
    fn describe(&self) -> String {
        format!("directory {}", self.dir.display())
    }

    fn put(
        &self,
        bytes: Bytes,
        name: Option<String>,
    ) -> BoxFuture<'_, Result<Attachment, AttachmentError>> {
        self.beside(move |store| store.save(&bytes, name))
    }

    fn get<'a>(
        &'a self,
        id: &'a AttachmentId,
    ) -> BoxFuture<'a, Result<Option<Bytes>, AttachmentError>> {
        let id = id.clone();
        self.beside(move |store| store.load(&id))
    }
}

impl DirectoryAttachments {
    /// Runs `work` where blocking does not matter. It runs to its end, waited for or not.
    fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, AttachmentError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, AttachmentError>> {
        let store = self.clone();
        async move {
            let done = tokio::task::spawn_blocking(move || work(&store)).await;
            done.unwrap_or_else(|fault| Err(failed(&self.dir, &io::Error::other(fault))))
        }
        .boxed()
    }
}

fn failed(path: &Path, cause: &io::Error) -> AttachmentError {
    AttachmentError::Store { place: path.display().to_string(), cause: cause.to_string() }
}

fn private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Makes the name of a new file durable.
#[cfg(unix)]
fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

#[cfg(not(unix))]
fn sync_dir(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIF: &[u8] = b"GIF89a\x03\0\x02\0\0\0\0;";

    fn put(store: &DirectoryAttachments) -> BoxFuture<'_, Result<Attachment, AttachmentError>> {
        store.put(Bytes::from_static(GIF), Some("dot.gif".into()))
    }

    #[tokio::test]
    async fn an_image_is_kept_once_and_outlives_its_store() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("kept");
        let store = DirectoryAttachments::new(&dir);
        assert_eq!(store.get(&digest(GIF)).await, Ok(None));
        let (first, again) = tokio::join!(put(&store), put(&store));
        assert_eq!(first, again);
        let id = first.unwrap().attachment_id;
        let again = DirectoryAttachments::new(&dir);
        assert_eq!(again.get(&id).await.unwrap().unwrap(), GIF);
        let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, [id.digits()]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn only_the_owner_may_read() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryAttachments::new(home.path().join("kept"));
        let id = put(&store).await.unwrap().attachment_id;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.dir), mode(&store.path(&id))), (0o700, 0o600));
    }

    #[tokio::test]
    async fn damage_is_found_and_healed_by_the_same_bytes() {
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryAttachments::new(home.path());
        let id = put(&store).await.unwrap().attachment_id;
        let mut damaged = GIF.to_vec();
        damaged[8] ^= 1;
        fs::write(store.path(&id), damaged).unwrap();
        let error = store.get(&id).await.unwrap_err();
        assert_eq!(error.code(), "ATTACHMENT_CORRUPT");
        assert!(error.to_string().contains(id.digits()), "{error}");
        put(&store).await.unwrap();
        assert_eq!(store.get(&id).await.unwrap().unwrap(), GIF);
    }

    #[tokio::test]
    async fn what_cannot_be_kept_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryAttachments::new(home.path()).image_bytes_max(4);
        assert_eq!(put(&store).await.unwrap_err().code(), "ATTACHMENT_TOO_LARGE");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        let file = home.path().join("file");
        fs::write(&file, "").unwrap();
        let store = DirectoryAttachments::new(&file);
        let error = put(&store).await.unwrap_err();
        assert_eq!(error.code(), "ATTACHMENT_STORE");
        assert!(error.to_string().contains("file"), "{error}");
    }
}
