//! The object store's paths: whatever an object is called, what was put is what is read and listed, an error changes
//! nothing, and nothing is written outside of the store's folder.

#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bytes::Bytes;
use futures::TryStreamExt as _;
use futures::executor::block_on;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use ringfile_object_store::RingfileStore;
use tempfile::TempDir;

#[derive(Arbitrary, Debug)]
struct Input {
    paths: Vec<String>,
    steps: Vec<Step>,
    removes_empty_folders: bool,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    Copy(u8, u8),
    Rename(u8, u8),
    Get(u8),
    List(Option<u8>),
}

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new_in("/dev/shm").expect("a folder"));

fuzz_target!(|input: Input| {
    // As it comes, or as the store's own escapes make it.
    let paths: Vec<Path> = input
        .paths
        .iter()
        .take(8)
        .flat_map(|path| [Path::parse(path).ok(), Some(Path::from(path.as_str()))])
        .flatten()
        .collect();
    if paths.is_empty() {
        return;
    }
    let root = FOLDER.path().join("outer").join("root");
    std::fs::create_dir_all(&root).expect("a folder");
    block_on(work(&input, &paths, &root));
    let outer = root.parent().expect("made above");
    let beside: Vec<_> = std::fs::read_dir(outer).expect("a folder").collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
    std::fs::remove_dir_all(outer).expect("it exists");
});

async fn work(input: &Input, paths: &[Path], root: &std::path::Path) {
    let store = RingfileStore::builder().prefix(root).removes_empty_folders(input.removes_empty_folders);
    let store = store.build().expect("a store");
    let mut model: BTreeMap<Path, Bytes> = BTreeMap::new();
    let path = |index: u8| &paths[usize::from(index) % paths.len()];
    for step in input.steps.iter().take(64) {
        match *step {
            Step::Put(at, byte) => {
                let content = Bytes::from(vec![byte; usize::from(byte)]);
                if store.put(path(at), content.clone().into()).await.is_ok() {
                    model.insert(path(at).clone(), content);
                }
            }
            Step::Delete(at) => {
                // A delete of what is not there may succeed or fail, as in other stores.
                let deleted = store.delete(path(at)).await;
                if model.remove(path(at)).is_some() {
                    deleted.expect("deleted");
                }
            }
            Step::Copy(from, to) => {
                if store.copy(path(from), path(to)).await.is_ok() {
                    let content = model.get(path(from)).expect("something was copied").clone();
                    model.insert(path(to).clone(), content);
                }
            }
            Step::Rename(from, to) => {
                if store.rename(path(from), path(to)).await.is_ok() {
                    let content = model.remove(path(from)).expect("something was renamed");
                    model.insert(path(to).clone(), content);
                }
            }
            Step::Get(at) => match store.get(path(at)).await {
                Ok(got) => {
                    assert_eq!(&got.bytes().await.expect("read"), model.get(path(at)).expect("it is there"));
                }
                Err(error) => assert!(!model.contains_key(path(at)), "{error}"),
            },
            Step::List(at) => list(&store, at.map(path), &model).await,
        }
    }
    list(&store, None, &model).await;
}

async fn list(store: &RingfileStore, prefix: Option<&Path>, model: &BTreeMap<Path, Bytes>) {
    let mut listed: Vec<_> = store.list(prefix).try_collect().await.expect("listed");
    listed.sort_by(|one, other| one.location.cmp(&other.location));
    let of_prefix = |path: &Path| prefix.is_none_or(|prefix| path.prefix_matches(prefix) && path != prefix);
    let expected: Vec<_> = model.iter().filter(|(path, _)| of_prefix(path)).collect();
    let names = |listed: &[object_store::ObjectMeta]| -> Vec<(Path, u64)> {
        listed.iter().map(|meta| (meta.location.clone(), meta.size)).collect()
    };
    let expected: Vec<_> =
        expected.into_iter().map(|(path, content)| (path.clone(), content.len() as u64)).collect();
    assert_eq!(names(&listed), expected);
}
