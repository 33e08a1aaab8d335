//! What a store with `sync(true)` promises, on a simulated disk with faults, whose power is cut: each object is a whole
//! version, and none that is older than the last that was acknowledged. Each sync that the store makes is found missing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::seeds::seeds;
use futures::TryStreamExt;
use futures::future::join_all;
use object_store_014::path::Path;
use object_store_014::{Error, ObjectStore, ObjectStoreExt, PutMode, Result};
use ringfile::sim::{Disk, Faults, Simulation, Strictness, for_each_seed};
use ringfile::{Pool, fs};
use ringfile_object_store::{Caching, RingfileStore, Step};

const TASKS: u64 = 3;
/// Each task has an object in each of these, so that it creates and removes folders of others.
const FOLDERS: [&str; 7] = ["", "a/", "a/b/", "a/c/", "d/", "e/f/", "link/"];

/// The number of a content, or `None` if there is no object.
type Version = Option<u64>;

fn content(number: u64) -> Vec<u8> {
    number.to_ne_bytes().repeat(1 + (number * 7919 % 1500) as usize)
}

/// Returns the number of a content; an error if it is not whole.
fn number_of(bytes: &[u8]) -> std::result::Result<u64, String> {
    let number = bytes.first_chunk().map_or(0, |first| u64::from_ne_bytes(*first));
    if content(number) == bytes { Ok(number) } else { Err(format!("{} bytes are not whole", bytes.len())) }
}

/// What each object was, in order, and from which of these on it may be found.
struct Object {
    versions: Vec<Version>,
    acknowledged: usize,
}

impl Default for Object {
    fn default() -> Self {
        Self { versions: vec![None], acknowledged: 0 }
    }
}

#[derive(Default)]
struct Told {
    objects: BTreeMap<String, Object>,
    /// The renames under way of what was acknowledged, by task: from, to, and what.
    moving: BTreeMap<u64, (String, String, u64)>,
    last_number: u64,
    acknowledged: usize,
    /// What came from the cache.
    hits: u64,
    wrong: Option<String>,
}

type History = Rc<RefCell<Told>>;

impl Told {
    fn new_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Notes that these objects may change.
    fn begin(&mut self, changes: &[(&str, Version)]) {
        for (path, version) in changes {
            self.objects.entry((*path).to_owned()).or_default().versions.push(*version);
        }
    }

    /// Returns whether an object can only be its last version.
    fn is_acknowledged(&self, path: &str) -> bool {
        self.objects.get(path).is_some_and(|object| object.acknowledged + 1 == object.versions.len())
    }

    fn check(&mut self, path: &str, found: std::result::Result<Version, String>) {
        let object = self.objects.entry(path.to_owned()).or_default();
        let possible = &object.versions[object.acknowledged..];
        let is_right = found.as_ref().is_ok_and(|found| possible.contains(found));
        if !is_right {
            self.wrong.get_or_insert_with(|| format!("{path} has {found:?}, and may have {possible:?}"));
        }
    }
}

/// Does `act`, which changes these objects, and notes it before and after.
async fn change(
    told: &History,
    changes: &[(&str, Version)],
    act: impl Future<Output = Result<()>>,
) -> Result<()> {
    told.borrow_mut().begin(changes);
    let done = act.await;
    let mut told = told.borrow_mut();
    for (path, _) in changes {
        let object = told.objects.get_mut(*path).unwrap();
        match &done {
            Ok(()) => object.acknowledged = object.versions.len() - 1,
            Err(Error::AlreadyExists { .. } | Error::NotFound { .. }) => _ = object.versions.pop(),
            // It may have happened or not.
            Err(_) => {}
        }
    }
    told.acknowledged += usize::from(done.is_ok());
    done
}

struct Session {
    store: RingfileStore,
    /// Without syncs.
    careless: RingfileStore,
    /// Whether an object has one of its names while it is renamed. Where POSIX alone holds, not if another task may remove
    /// its new folder, and create it again, after the store has made the folder durable.
    keeps_renamed: bool,
    disk: Disk,
    task: u64,
    told: History,
}

fn store(left_out: Option<Step>, sync: bool, removes: bool, cache: usize) -> RingfileStore {
    let builder = RingfileStore::builder().prefix("data").pool(Pool::new(1 << 20)).caching(Caching::Direct);
    builder.cache(cache).sync(sync).removes_empty_folders(removes).leave_out(left_out).build().unwrap()
}

impl Session {
    fn pick(&self) -> String {
        let folder = FOLDERS[self.disk.random_below(FOLDERS.len() as u64) as usize];
        format!("{folder}{}", self.task)
    }

    /// Changes objects for ever.
    async fn run(self) {
        loop {
            // An error is a fault, or says that an object is there or not.
            let _ = self.step().await;
        }
    }

    async fn step(&self) -> Result<()> {
        let (name, other) = (self.pick(), self.pick());
        let path = Path::from(name.as_str());
        match self.disk.random_below(10) {
            0 | 1 => self.put(&path, self.disk.random_below(3)).await,
            2 => self.upload(&path).await,
            3 => change(&self.told, &[(&name, None)], self.store.delete(&path)).await,
            4 => self.take_from_careless(&name).await,
            5 => self.look(&name).await.map(drop),
            _ => self.name(&name, &other).await,
        }
    }

    async fn put(&self, path: &Path, way: u64) -> Result<()> {
        let number = self.told.borrow_mut().new_number();
        let mode = if way == 0 { PutMode::Create } else { PutMode::Overwrite };
        let put = async { self.store.put_opts(path, content(number).into(), mode.into()).await.map(drop) };
        change(&self.told, &[(path.as_ref(), Some(number))], put).await
    }

    async fn upload(&self, path: &Path) -> Result<()> {
        let number = self.told.borrow_mut().new_number();
        let is_given_up = self.disk.random_below(4) == 0;
        let upload = async {
            let mut upload = self.store.put_multipart(path).await?;
            let content = content(number);
            let parts = content.chunks(3000).map(|part| upload.put_part(part.to_vec().into()));
            for part in join_all(parts.collect::<Vec<_>>()).await {
                part?;
            }
            if is_given_up { upload.abort().await } else { upload.complete().await.map(drop) }
        };
        if is_given_up {
            return upload.await;
        }
        change(&self.told, &[(path.as_ref(), Some(number))], upload).await
    }

    /// Copies or renames, or both, often to a new folder.
    async fn name(&self, from: &str, to: &str) -> Result<()> {
        let (old, is_there) = (Path::from(from), self.look(from).await?.is_some());
        if !is_there {
            self.put(&old, 1).await?;
        }
        let Some(number) = self.look(from).await? else { return Ok(()) };
        let new_folder = format!("new-{}/{}", self.disk.random_below(1000), self.task);
        let to = if self.disk.random_below(3) == 0 { &new_folder } else { to };
        if from == to {
            return Ok(());
        }
        let (new, way) = (Path::from(to), self.disk.random_below(8));
        match way {
            0 => {
                let copy = self.store.copy_if_not_exists(&old, &new);
                change(&self.told, &[(to, Some(number))], copy).await?;
            }
            1 | 2 => change(&self.told, &[(to, Some(number))], self.store.copy(&old, &new)).await?,
            3 | 4 => {
                // Nobody waits until this copy is durable.
                self.told.borrow_mut().begin(&[(to, Some(number))]);
                self.careless.copy(&old, &new).await?;
            }
            _ => {}
        }
        if way > 1 {
            let rename = async {
                if way == 5 {
                    self.store.rename_if_not_exists(&old, &new).await
                } else {
                    self.store.rename(&old, &new).await
                }
            };
            if self.disk.random_below(8) == 0 {
                // Few cuts come by themselves while an object has neither its old name nor its new one for certain.
                let (disk, soon) = (self.disk.clone(), Duration::from_micros(self.disk.random_below(10_000)));
                ringfile::spawn(async move {
                    ringfile::sim::sleep(soon).await;
                    disk.cut_power();
                });
            }
            if self.keeps_renamed && self.told.borrow().is_acknowledged(from) {
                self.told.borrow_mut().moving.insert(self.task, (from.to_owned(), to.to_owned(), number));
            }
            let renamed = change(&self.told, &[(from, None), (to, Some(number))], rename).await;
            self.told.borrow_mut().moving.remove(&self.task);
            renamed?;
        }
        Ok(())
    }

    /// Copies or renames an object that nobody has synced.
    async fn take_from_careless(&self, to: &str) -> Result<()> {
        let number = self.told.borrow_mut().new_number();
        // A new one each time: after a failed sync the next one succeeds, although content is lost.
        let (from, new) = (Path::from(format!("careless/{number}")), Path::from(to));
        self.careless.put(&from, content(number).into()).await?;
        let name = async {
            if number.is_multiple_of(2) {
                self.store.copy(&from, &new).await
            } else {
                self.store.rename(&from, &new).await
            }
        };
        change(&self.told, &[(to, Some(number))], name).await
    }

    /// Reads an object in one of the ways, and checks that it may be so.
    async fn look(&self, path: &str) -> Result<Version> {
        let found = look(&self.store, path, self.disk.random_below(2) == 0).await?;
        let mut told = self.told.borrow_mut();
        told.hits = told.hits.max(self.store.cache_metrics().hits);
        told.check(path, found.clone());
        Ok(found.unwrap_or_default())
    }
}

/// Reads an object. The inner error is a content that is not whole.
async fn look(
    store: &RingfileStore,
    path: &str,
    in_ranges: bool,
) -> Result<std::result::Result<Version, String>> {
    let path = Path::from(path);
    let read = async {
        if !in_ranges {
            return Ok(store.get(&path).await?.bytes().await?.to_vec());
        }
        let size = store.head(&path).await?.size;
        // The second half first.
        let got = store.get_ranges(&path, &[size / 2..size, 0..size / 2]).await?;
        Ok([&got[1][..], &got[0]].concat())
    };
    match read.await {
        Ok(bytes) => Ok(number_of(&bytes).map(Some)),
        Err(Error::NotFound { .. }) => Ok(Ok(None)),
        Err(error) => Err(error),
    }
}

/// Creates the store's folder, and the one to which a link in it leads. The store makes both durable.
async fn prepare() {
    fs::create_dir_all("data").await.unwrap();
    fs::create_dir_all("elsewhere").await.unwrap();
    // It may be there.
    let _ = fs::symlink("../elsewhere", "data/link").await;
}

async fn session(left_out: Option<Step>, strictness: Strictness, disk: Disk, told: History, seed: u64) {
    prepare().await;
    let removes = seed.is_multiple_of(2);
    // It keeps no read that is longer than a quarter of it, and no object is.
    let cache = if seed.is_multiple_of(3) { 64 << 10 } else { 0 };
    let (store, careless) = (store(left_out, true, removes, cache), store(None, false, false, 0));
    // The syncs of other tasks would hide one that is missing.
    let tasks = if left_out.is_some() { 1 } else { TASKS };
    let keeps_renamed = !removes || tasks == 1 || strictness == Strictness::Journal;
    let tasks = (0..tasks).map(|task| {
        let (store, careless) = (store.clone(), careless.clone());
        let session =
            Session { store, careless, keeps_renamed, disk: disk.clone(), task, told: Rc::clone(&told) };
        ringfile::spawn(session.run())
    });
    join_all(tasks.collect::<Vec<_>>()).await;
}

/// Checks what a power cut has left, and takes it as it is.
async fn check(told: History) {
    prepare().await;
    let store = store(None, false, false, 0);
    let paths: Vec<String> = told.borrow().objects.keys().cloned().collect();
    let mut there = BTreeMap::new();
    for path in &paths {
        let found = look(&store, path, false).await.unwrap();
        told.borrow_mut().check(path, found.clone());
        if let Ok(Some(number)) = found {
            there.insert(path.clone(), number);
        }
        let object = Object { versions: vec![found.unwrap_or_default()], acknowledged: 0 };
        told.borrow_mut().objects.insert(path.clone(), object);
    }
    let moving = std::mem::take(&mut told.borrow_mut().moving);
    for (from, to, number) in moving.into_values() {
        if there.get(&from) != Some(&number) && there.get(&to) != Some(&number) {
            told.borrow_mut().wrong.get_or_insert_with(|| format!("{from} was renamed to {to}, and is lost"));
        }
    }
    let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
    let listed = listed.iter().filter(|object| !object.location.as_ref().starts_with("careless"));
    let listed: BTreeSet<_> = listed.map(|object| (object.location.to_string(), object.size)).collect();
    let wanted = there.into_iter().map(|(path, number)| (path, content(number).len() as u64)).collect();
    if listed != wanted {
        told.borrow_mut()
            .wrong
            .get_or_insert_with(|| format!("{listed:?} are listed, and there are {wanted:?}"));
    }
}

/// Runs a program, and cuts the power, three times on one disk. Returns what happened, and the traces.
fn try_seed(seed: u64, left_out: Option<Step>, strictness: Strictness, faults: &Faults) -> (Told, Vec<u64>) {
    let told = History::default();
    let mut simulation = Simulation::new(seed).strictness(strictness);
    let mut traces = Vec::new();
    for _ in 0..3 {
        let history = Rc::clone(&told);
        let cut = simulation.faults(faults.clone()).power_cut_within(3000);
        let outcome = cut.run(|disk| session(left_out, strictness, disk, history, seed));
        assert!(outcome.result().is_none());
        let checked = outcome.disk().run(|_| check(Rc::clone(&told)));
        traces.extend([outcome.fingerprint(), checked.fingerprint()]);
        simulation = checked.disk();
    }
    (told.take(), traces)
}

const STRICTNESSES: [Strictness; 2] = [Strictness::Journal, Strictness::Posix];

fn all_faults() -> Faults {
    Faults::everything().stuck(0.01, Duration::from_millis(20)).sync_errors(0.01)
}

#[test]
fn acknowledged_objects_are_there_and_whole_whenever_the_power_is_cut() {
    let (acknowledged, hits) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for faults in [Faults::none(), all_faults()] {
        for strictness in STRICTNESSES {
            for_each_seed(seeds(), |seed| {
                let (told, _) = try_seed(seed, None, strictness, &faults);
                assert_eq!(told.wrong, None, "{strictness:?}");
                acknowledged.fetch_add(told.acknowledged, Ordering::Relaxed);
                hits.fetch_add(told.hits as usize, Ordering::Relaxed);
            });
        }
    }
    let (acknowledged, hits) = (acknowledged.into_inner(), hits.into_inner());
    println!("{acknowledged} changes were acknowledged, {hits} reads came from a cache");
    assert!(hits * 2 > seeds().count(), "the cache was hardly used");
    assert!(acknowledged > seeds().count() * 20, "few changes were acknowledged");
}

#[test]
fn each_sync_that_is_left_out_is_found_within_a_thousand_seeds() {
    use Step::{
        BothNames, FoldersAbove, NewFolders, NewName, OldContent, OldName, PutContent, PutName, Removal,
    };
    for step in
        [PutContent, PutName, FoldersAbove, OldContent, NewFolders, BothNames, NewName, OldName, Removal]
    {
        // The journal of `Strictness::Journal` has most names, whichever folder is synced.
        let is_found =
            |seed: &u64| try_seed(*seed, Some(step), Strictness::Posix, &Faults::none()).0.wrong.is_some();
        let found = (0..1000).find(is_found);
        println!("{step:?}: seed {found:?}");
        assert!(found.is_some(), "{step:?}");
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let run = |seed| try_seed(seed, None, Strictness::Posix, &all_faults()).1;
    // Every third has a cache.
    let (first, again): (Vec<_>, Vec<_>) = ((0..60).map(run).collect(), (0..60).map(run).collect());
    assert_eq!(first, again);
}

#[test]
fn a_store_that_has_outlived_its_simulation_touches_no_real_file() {
    let store = Simulation::new(1).run(|_| async {
        prepare().await;
        store(None, false, false, 0)
    });
    let store = store.into_result().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    std::fs::write(&real, "content").unwrap();
    let path = Path::from_absolute_path(&real).unwrap();
    ringfile::block_on(async {
        assert!(store.delete(&path).await.is_err() && store.get(&path).await.is_err());
        assert!(store.put(&path, "other".into()).await.is_err());
        let folder = Path::from_absolute_path(folder.path()).unwrap();
        assert!(store.list(Some(&folder)).try_collect::<Vec<_>>().await.is_err());
        assert!(store.list_with_offset(Some(&folder), &folder).try_collect::<Vec<_>>().await.is_err());
        assert!(store.list_with_delimiter(Some(&folder)).await.is_err());
    });
    assert_eq!(std::fs::read(&real).unwrap(), b"content");
}
