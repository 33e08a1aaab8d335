//! The Rust passages of the guide's page "Keeping pages in memory", word for word: the test of the documents compares
//! them.

use ringfile::{OpenOptions, block_on};
use ringfile_cache::{Cache, CachedFile};

use crate::support::in_child;

fn in_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("index"), vec![7; 20 * 4096]).unwrap();
    folder
}

fn open(folder: &tempfile::TempDir) -> CachedFile {
    let file = OpenOptions::new().read(true).write(true).open_blocking(folder.path().join("index")).unwrap();
    Cache::new(1 << 20).unwrap().open(file, 4096).unwrap()
}

#[test]
fn reading() -> std::io::Result<()> {
    // The working folder is that of the process.
    if !in_child("reading") {
        return Ok(());
    }
    let folder = in_folder();
    std::env::set_current_dir(folder.path())?;
    block_on(async {
        use ringfile::OpenOptions;
        use ringfile_cache::Cache;

        let cache = Cache::new(256 << 20)?; // at most 256 MiB, for all files together
        let file = OpenOptions::new().read(true).direct(true).buffered_fallback(true).open("index").await?;
        let pages = cache.open(file, 4096)?; // pages of 4 KiB; a power of two up to 2 MiB
        let root = pages.read(0).await?; // from memory, or by one direct read
        assert_eq!(root.len(), 4096); // derefs to the bytes
        Ok(())
    })
}

#[test]
fn a_page_that_may_be_there() -> std::io::Result<()> {
    let folder = in_folder();
    let pages = open(&folder);
    block_on(async {
        #[rustfmt::skip]
        let rows = match pages.get(7) {
            Some(page) => page,           // in memory
            None => pages.read(7).await?, // one read, for all who wait for it
        };
        assert_eq!(rows[..2], [7, 7]);
        Ok(())
    })
}

#[test]
fn writing() -> std::io::Result<()> {
    let folder = in_folder();
    let pages = open(&folder);
    let node = [9; 4096];
    block_on(async {
        pages.write(7, &node).await?; // a whole page, to the file and to the cache
        pages.file().sync_data().await?; // durable
        assert_eq!(*pages.get(7).unwrap(), node);
        Ok(())
    })
}
