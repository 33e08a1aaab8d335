//! Many calls at once with few descriptors.

use std::fs::File;
use std::slice::from_ref;

use futures::future::join_all;
use object_store_014::path::Path;
use object_store_014::{ObjectStore, ObjectStoreExt};
use ringfile_object_store::{Caching, RingfileStore};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::support::in_child;

#[tokio::test]
async fn calls_that_wait_have_no_descriptor() {
    // The limit is that of the process.
    if !in_child("calls_that_wait_have_no_descriptor") {
        return;
    }
    let usual = rustix::process::Rlimit { current: Some(1024), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, usual).unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = Path::from("object");
    for caching in [Caching::Buffered, Caching::Direct, Caching::Adaptive] {
        let store = RingfileStore::builder().prefix(folder.path()).caching(caching).memory(16 << 20);
        let store = store.build().unwrap();
        store.put(&path, vec![7; 100_000].into()).await.unwrap();
        // Dropped from the cache, so that the calls wait for the drive.
        let file = File::open(folder.path().join("object")).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let range = 0..100_000;
        let calls = join_all((0..3000).map(|_| store.get_ranges(&path, from_ref(&range)))).await;
        for got in calls {
            assert_eq!(got.unwrap()[0][..], [7; 100_000]);
        }
    }
}
