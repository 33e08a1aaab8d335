//! Implements the trait, in either version; the module above has the differences.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::future::{self, FutureExt, TryFutureExt};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use ringfile::fs::{FileType, Metadata};
use rustix::io::Errno;

use super::api::local::LocalFileSystem;
use super::api::path::Path;
use super::api::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result, UploadPart,
};
use super::{etag, get_result, put_result};
use crate::RingfileStore;
use crate::disk::{self, Names, is_gone};
use crate::part::{self, Part};
use crate::store::{self, Store, Upload};

const STORE: &str = "RingfileStore";
/// How many objects of a stream are deleted at once, as by `LocalFileSystem`.
const DELETIONS: usize = 10;
/// How many objects are listed at once, as by `LocalFileSystem`.
const LISTED: usize = 1024;

/// Converts an error of the file system to one about an object.
fn failed(error: io::Error, path: &Path) -> Error {
    let (kind, path, source) = (error.kind(), path.to_string(), error.into());
    match kind {
        io::ErrorKind::NotFound => Error::NotFound { path, source },
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path, source },
        io::ErrorKind::PermissionDenied => Error::PermissionDenied { path, source },
        _ => Error::Generic { store: STORE, source },
    }
}

fn not_implemented(store: &RingfileStore, operation: &str) -> Error {
    Error::NotImplemented { operation: operation.into(), implementer: store.to_string() }
}

/// Refuses a store of a simulation outside of it, where its paths are those of other files.
fn check_place(store: &RingfileStore) -> Result<()> {
    if store.is_simulated && !disk::is_simulated() {
        return Err(Error::Generic { store: STORE, source: disk::outside().into() });
    }
    Ok(())
}

fn path_of(store: &RingfileStore, location: &Path) -> Result<PathBuf> {
    check_place(store)?;
    let path = super::local(store).path_to_filesystem(location)?;
    Ok(if disk::is_simulated() { root_of(store).join(location.as_ref()) } else { path })
}

/// Converts an error of copying or renaming.
fn failed_to_name(error: io::Error, from: &Path, to: &Path) -> Error {
    let path = if error.kind() == io::ErrorKind::NotFound { from } else { to };
    failed(error, path)
}

fn root_of(store: &RingfileStore) -> PathBuf {
    store.root.clone().unwrap_or_else(|| "/".into())
}

#[async_trait]
impl ObjectStore for RingfileStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let replace = match opts.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => {
                return Err(not_implemented(self, "`put_opts` with mode `PutMode::Update`"));
            }
        };
        if !opts.attributes.is_empty() {
            return Err(not_implemented(self, "`put_opts` with `opts.attributes` specified"));
        }
        let path = path_of(self, location)?;
        let put = async {
            let upload = self.store.stage(path).await?;
            let written = store::write_all(&upload.file, payload.into_iter().collect(), 0).await;
            match written {
                Ok(()) => upload.publish(replace).await,
                Err(error) => upload.remove().await.and(Err(error)),
            }
        };
        put.await.map(put_result).map_err(|error| failed(error, location))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return Err(not_implemented(self, "`put_multipart_opts` with `opts.attributes` specified"));
        }
        let upload =
            self.store.stage(path_of(self, location)?).await.map_err(|error| failed(error, location))?;
        Ok(Box::new(Parts {
            location: location.clone(),
            upload: Some(upload),
            parts: Vec::new(),
            offset: 0,
            written: Arc::default(),
            is_removed: false,
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let path = path_of(self, location)?;
        let opened = self.store.open(path).await.map_err(|error| failed(error, location))?;
        let meta = meta_of(location.clone(), &opened.metadata);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|error| Error::Generic { store: STORE, source: Box::new(error) })?,
            None => 0..meta.size,
        };
        let stream = if options.head {
            stream::empty().boxed()
        } else {
            let location = location.clone();
            let pieces = Store::stream(&self.store, opened, range.clone());
            pieces.map_err(move |error| failed(error, &location)).boxed()
        };
        Ok(get_result(GetResultPayload::Stream(stream), meta, range))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = path_of(self, location)?;
        self.store.read_ranges(path, ranges).await.map_err(|error| failed(error, location))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deleted = locations.map(move |location| {
            let store = store.clone();
            async move {
                let location = location?;
                let removed = store.store.remove(path_of(&store, &location)?, root_of(&store)).await;
                removed.map(|()| location.clone()).map_err(|error| failed(error, &location))
            }
        });
        deleted.buffered(DELETIONS).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        list(self, prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        list(self, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        check_place(self)?;
        let (store, folder) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listed = disk::blocking(move || async move { Ok(list_folder(&store, folder).await) }).await;
        listed.map_err(|error| failed(error, &prefix.cloned().unwrap_or_default()))?
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (old, new) = (path_of(self, from)?, path_of(self, to)?);
        let copied = self.store.copy(old, new, options.mode == CopyMode::Overwrite).await;
        copied.map_err(|error| failed_to_name(error, from, to))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (old, new) = (path_of(self, from)?, path_of(self, to)?);
        let replace = options.target_mode == RenameTargetMode::Overwrite;
        let renamed = self.store.rename(old, new, root_of(self), replace).await;
        renamed.map_err(|error| failed_to_name(error, from, to))
    }
}

/// An upload in parts, each of which is written to its place as soon as it arrives.
struct Parts {
    location: Path,
    /// `None` when the upload is complete or aborted.
    upload: Option<Upload>,
    /// The parts whose futures the caller has not dropped, and some others.
    parts: Vec<Weak<Part>>,
    /// The offset at which the next part begins.
    offset: u64,
    /// The number of bytes of the parts that have been written. Less than `offset` if a part failed, or was dropped
    /// before it was written.
    written: Arc<Mutex<u64>>,
    /// Whether a failed `complete` has removed the upload.
    is_removed: bool,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("location", &self.location)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

fn over(location: &Path) -> Error {
    let why = format!("the upload of {location} was already completed or aborted");
    Error::Generic { store: STORE, source: why.into() }
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let Some(upload) = &self.upload else { return future::ready(Err(over(&self.location))).boxed() };
        let (offset, len) = (self.offset, data.content_length() as u64);
        self.offset += len;
        let (file, written) = (upload.file.clone(), Arc::clone(&self.written));
        let write = async move {
            store::write_all(&file, data.into_iter().collect(), offset).await?;
            *written.lock().unwrap_or_else(PoisonError::into_inner) += len;
            Ok(())
        };
        let part = Part::new(write.boxed());
        if self.parts.len() == self.parts.capacity() {
            self.parts.retain(|part| part.strong_count() > 0);
        }
        self.parts.push(Arc::downgrade(&part));
        let location = self.location.clone();
        part.write().map_err(move |error| failed(error, &location)).boxed()
    }

    /// First finishes all parts whose futures the caller holds, whether or not the caller polls them. Fails, and removes
    /// what was written, unless every part was written: otherwise the object would have holes or be cut short.
    async fn complete(&mut self) -> Result<PutResult> {
        part::finish(&self.parts).await;
        let upload = self.upload.take().ok_or_else(|| over(&self.location))?;
        let (written, whole) = (*self.written.lock().unwrap_or_else(PoisonError::into_inner), self.offset);
        let published = if written == whole {
            upload.publish(true).await
        } else {
            let why = format!(
                "{written} of its {whole} bytes were written: a part failed, or its future was dropped before it was \
                 ready; upload all parts again"
            );
            upload.remove().await.and(Err(io::Error::other(why)))
        };
        self.is_removed = published.is_err();
        published.map(put_result).map_err(|error| failed(error, &self.location))
    }

    /// Does not wait for parts, since the caller may have stopped polling one. Does nothing after a failed `complete`, after
    /// which `WriteMultipart` calls this, and should return the failure of `complete`.
    async fn abort(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_removed) {
            return Ok(());
        }
        let upload = self.upload.take().ok_or_else(|| over(&self.location))?;
        upload.remove().await.map_err(|error| failed(error, &self.location))
    }
}

/// Makes the store that checks paths.
pub(crate) fn make_local(root: Option<&std::path::Path>) -> io::Result<LocalFileSystem> {
    match root {
        Some(root) if !disk::is_simulated() => {
            LocalFileSystem::new_with_prefix(root).map_err(io::Error::other)
        }
        _ => Ok(LocalFileSystem::new()),
    }
}

fn meta_of(location: Path, metadata: &Metadata) -> ObjectMeta {
    // Btrfs and tmpfs hold times beyond those of chrono, which panics if it converts one.
    let [first, last] = [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC].map(SystemTime::from);
    ObjectMeta {
        location,
        last_modified: metadata.modified.clamp(first, last).into(),
        size: metadata.size,
        e_tag: Some(etag(store::etag(metadata))),
        version: None,
    }
}

// ---- Listings ----

/// A folder that was found, and those above it: one that is above itself, through a symbolic link, has no end.
struct Folder {
    location: Path,
    /// Device and inode; `None` of the first folder.
    id: Option<(u64, u64)>,
    above: Option<Arc<Folder>>,
}

impl Folder {
    fn is_below(&self, id: (u64, u64)) -> bool {
        std::iter::successors(Some(self), |folder| folder.above.as_deref()).any(|above| above.id == Some(id))
    }
}

/// The state of a listing of all objects below a prefix.
struct Walk {
    store: RingfileStore,
    offset: Option<Path>,
    /// Folders that are left.
    folders: Vec<Folder>,
    open: Option<(Arc<Folder>, Names)>,
}

impl Walk {
    /// Returns the next objects, none at the end.
    async fn next(&mut self) -> Result<Vec<ObjectMeta>> {
        let mut found = Vec::new();
        while found.len() < LISTED {
            if self.open.is_none() {
                let Some(folder) = self.folders.pop() else { break };
                let names = names_in(&self.store, &folder.location)?;
                self.open = names.map(|names| (Arc::new(folder), names));
            }
            let Some((folder, names)) = &mut self.open else { continue };
            let Some(name) = names.next().await else {
                self.open = None;
                continue;
            };
            let name = name.map_err(|error| failed(error, &folder.location))?;
            let offset = self.offset.as_ref();
            let Some((location, metadata)) = at(&self.store, &folder.location, &name, offset).await? else {
                continue;
            };
            match metadata.file_type {
                FileType::Directory => {
                    let id = (metadata.device, metadata.inode);
                    if folder.is_below(id) {
                        return Err(failed(Errno::LOOP.into(), &location));
                    }
                    self.folders.push(Folder { location, id: Some(id), above: Some(Arc::clone(folder)) });
                }
                FileType::File if offset.is_none_or(|offset| location > *offset) => {
                    found.extend(object_at(&self.store, location, &metadata));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Lists the objects below a prefix, behind an offset.
fn list(
    store: &RingfileStore,
    prefix: Option<&Path>,
    offset: Option<&Path>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    if let Err(error) = check_place(store) {
        return stream::once(future::ready(Err(error))).boxed();
    }
    let location = prefix.cloned().unwrap_or_default();
    let folders = vec![Folder { location, id: None, above: None }];
    let walk = Walk { store: store.clone(), offset: offset.cloned(), folders, open: None };
    let parts = stream::try_unfold(walk, |mut walk| async move {
        let went = disk::blocking(move || async move { Ok((walk.next().await, walk)) }).await;
        let (found, walk) = went.map_err(|error| failed(error, &Path::default()))?;
        let found = found?;
        Ok::<_, Error>((!found.is_empty()).then(|| (stream::iter(found.into_iter().map(Ok)), walk)))
    });
    parts.try_flatten().boxed()
}

/// Lists the objects and folders in a folder.
async fn list_folder(store: &RingfileStore, folder: Path) -> Result<ListResult> {
    let (mut common_prefixes, mut objects) = (Vec::new(), Vec::new());
    let Some(mut names) = names_in(store, &folder)? else {
        return Ok(super::list_result(common_prefixes, objects));
    };
    while let Some(name) = names.next().await {
        let name = name.map_err(|error| failed(error, &folder))?;
        match at(store, &folder, &name, None).await? {
            Some((location, found)) if found.file_type == FileType::Directory => {
                common_prefixes.push(location)
            }
            Some((location, found)) => objects.extend(object_at(store, location, &found)),
            None => {}
        }
    }
    common_prefixes.sort();
    Ok(super::list_result(common_prefixes, objects))
}

/// Returns the names in a folder; `None` if it does not exist.
fn names_in(store: &RingfileStore, folder: &Path) -> Result<Option<Names>> {
    match Names::of(&root_of(store).join(folder.as_ref())) {
        Err(error) if is_gone(&error) => Ok(None),
        names => names.map(Some).map_err(|error| failed(error, folder)),
    }
}

/// Returns the location of a name in a folder, and what is there; `None` if it is gone, a symbolic link that leads nowhere,
/// or not behind the offset, even if it is a folder.
async fn at(
    store: &RingfileStore,
    folder: &Path,
    name: &OsStr,
    offset: Option<&Path>,
) -> Result<Option<(Path, Metadata)>> {
    let path = root_of(store).join(folder.as_ref()).join(name);
    let below = match name.to_str() {
        Some(name) => Path::parse(name).map_err(Error::from),
        // Fails, and says why.
        None => Path::from_absolute_path(&path).map_err(Error::from),
    };
    let location = below.map(|below| Path::from_iter(folder.parts().chain(below.parts())));
    // All that is below it comes before this. Spares asking a server for each file.
    if let (Ok(location), Some(offset)) = (&location, offset)
        && offset.as_ref() >= format!("{location}0").as_str()
    {
        return Ok(None);
    }
    match disk::metadata(&path).await {
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(failed(error, location.as_ref().unwrap_or(folder))),
        // What is no object may have a name that no object has.
        Ok(found)
            if location.is_err() && !matches!(found.file_type, FileType::File | FileType::Directory) =>
        {
            Ok(None)
        }
        Ok(found) => Ok(Some((location?, found))),
    }
}

/// Returns an object that was listed; `None` for a temporary file, whose name no object has.
fn object_at(store: &RingfileStore, location: Path, metadata: &Metadata) -> Option<ObjectMeta> {
    path_of(store, &location).is_ok().then(|| meta_of(location, metadata))
}
