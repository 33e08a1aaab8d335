//! Threads of one process that differ in their credentials (F64).

use crate::support::handles::one_of;
use std::fmt::Debug;
use std::future::{Future, IntoFuture};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{Folder, in_child, in_child_with, is_root, needs_ring, skip, wait_for};
use ringfile::{
    Batch, Completion, Error, File, OpenOptions, Queue, Runtime, SharedQueue, block_on, fs, metrics,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const NOBODY: u32 = 65534;
const GROUP: u32 = 4242;

/// The ways to open a file by an operation on its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Loop,
    Executor,
    Blocking,
    Awaited,
    Started,
    Queue,
    SharedQueue,
    #[cfg(feature = "tokio")]
    Tokio,
}

const WAYS: &[Way] = &[
    Way::Loop,
    Way::Executor,
    Way::Blocking,
    Way::Awaited,
    Way::Started,
    Way::Queue,
    Way::SharedQueue,
    #[cfg(feature = "tokio")]
    Way::Tokio,
];

/// Returns a runtime of tokio that threads enter whatever their credentials.
#[cfg(feature = "tokio")]
fn tokio_of_all() -> &'static tokio::runtime::Runtime {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let inside = runtime.enter();
        let _ = ringfile::attach_to_tokio();
        drop(inside);
        runtime
    })
}

fn start(batch: Batch) -> Vec<Completion> {
    let (tell, told) = mpsc::channel();
    batch.start(move |done| tell.send(done).unwrap()).unwrap();
    told.recv().unwrap()
}

impl Way {
    fn open(self, path: &Path, options: &OpenOptions) -> Result<File, Error> {
        let open = || options.open(path);
        let batch = || {
            let mut batch = Batch::new();
            batch.add(open());
            batch
        };
        match self {
            Self::Loop => block_on(open()),
            Self::Executor => futures::executor::block_on(open()),
            Self::Blocking => batch().run().remove(0).take::<File>().map_err(Error::from),
            Self::Awaited => futures::executor::block_on(batch().into_future())
                .remove(0)
                .take::<File>()
                .map_err(Error::from),
            Self::Started => start(batch()).remove(0).take::<File>().map_err(Error::from),
            Self::Queue => {
                let mut queue = Queue::new();
                let token = queue.add(open(), 0);
                Ok(queue.wait_for(token)?.take::<File>()?)
            }
            Self::SharedQueue => {
                let queue = SharedQueue::new();
                let token = queue.add(open(), 0);
                Ok(queue.wait_for(token)?.take::<File>()?)
            }
            #[cfg(feature = "tokio")]
            Self::Tokio => tokio_of_all().block_on(open()),
        }
    }
}

fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

/// Calls that change the credentials of the calling thread alone. Those of the C library change all threads.
mod raw {
    use super::*;

    #[track_caller]
    pub fn set(call: libc::c_long, id: u32) {
        // SAFETY: the call takes numbers only.
        let answer = unsafe { libc::syscall(call, id, id, id) };
        let is_of_files = matches!(call, libc::SYS_setfsuid | libc::SYS_setfsgid);
        assert!(is_of_files || answer == 0, "{}", std::io::Error::last_os_error());
    }

    #[track_caller]
    pub fn set_groups(groups: &[u32]) {
        // SAFETY: the call reads the list.
        let answer = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    }

    pub fn give_up_capabilities() {
        let mut sets = capabilities(None).unwrap();
        sets.effective -=
            CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
        set_capabilities(None, sets).unwrap();
    }
}

/// A difference between two threads, of which the first may use a folder, and the second may not.
struct Case {
    name: &'static str,
    more: fn(),
    /// Called by the first thread, or by one like it.
    less: fn(),
    owner: (u32, u32),
    mode: u32,
}

const CASES: [Case; 4] = [
    Case {
        name: "fsuid",
        more: || (),
        less: || raw::set(libc::SYS_setfsuid, NOBODY),
        owner: (0, 0),
        mode: 0o700,
    },
    Case {
        name: "every uid",
        more: || (),
        less: || raw::set(libc::SYS_setresuid, NOBODY),
        owner: (0, 0),
        mode: 0o700,
    },
    Case {
        name: "groups",
        more: || {
            raw::set_groups(&[GROUP]);
            raw::set(libc::SYS_setfsuid, NOBODY);
        },
        less: || raw::set_groups(&[]),
        owner: (0, GROUP),
        mode: 0o770,
    },
    Case {
        name: "capabilities",
        more: || (),
        less: raw::give_up_capabilities,
        owner: (NOBODY, NOBODY),
        mode: 0o700,
    },
];

impl Case {
    /// Runs each case in a process of its own, whose workers and I/O threads no other case has started.
    fn each(test: &str, run: impl FnOnce(&Self)) {
        const CASE: &str = "RINGFILE_TEST_CASE";
        if !is_root() {
            return skip(test, "changing the credentials of a thread needs root");
        }
        for case in &CASES {
            if in_child_with(test, |command| _ = command.env(CASE, case.name)) {
                let name = std::env::var(CASE).unwrap();
                return run(CASES.iter().find(|case| case.name == name).unwrap());
            }
        }
    }

    fn less(&self) {
        (self.more)();
        (self.less)();
    }

    /// Makes a folder that every user may use, with a file, and with the folder that this is about.
    fn folders(&self) -> Tree {
        let all = Folder::inside(Path::new("/dev/shm"));
        let secret = all.path().join("secret");
        std::fs::create_dir(&secret).unwrap();
        for path in [all.file("public", b"content"), secret.join("data")] {
            std::fs::write(&path, b"content").unwrap();
            mode(&path, 0o644);
        }
        std::os::unix::fs::chown(&secret, Some(self.owner.0), Some(self.owner.1)).unwrap();
        mode(&secret, self.mode);
        mode(all.path(), 0o777);
        Tree { all, secret }
    }
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

struct Tree {
    all: Folder,
    secret: PathBuf,
}

impl Tree {
    fn assert_opens(&self, way: Way, who: &str, may: bool) {
        let opened = way.open(&self.secret.join("data"), &reading());
        match opened {
            Ok(file) => {
                assert!(may, "{who}: {way:?} opens a file of another user");
                let read = futures::executor::block_on(file.read_at(Vec::with_capacity(7), 0)).unwrap();
                assert_eq!(read, b"content");
            }
            Err(error) => {
                assert!(!may, "{who}: {way:?}: {error}");
                assert_eq!(error.errno(), Some(libc::EACCES), "{who}: {way:?}: {error}");
            }
        }
        let public = way.open(&self.all.path().join("public"), &reading());
        public.unwrap_or_else(|error| panic!("{who}: {way:?}: {error}"));
    }

    /// Asserts that every way to open, and every operation on a path, may use the folder, or not.
    fn assert_may(&self, who: &str, may: bool) {
        assert_eq!(std::fs::read_dir(&self.secret).is_ok(), may, "{who}");
        WAYS.iter().for_each(|&way| self.assert_opens(way, who, may));
        block_on(self.assert_all_may(who, may));
        futures::executor::block_on(self.assert_all_may(who, may));
    }

    async fn assert_all_may(&self, who: &str, may: bool) {
        let check = |what: &dyn Debug, error: Option<Error>| {
            let errno = error.as_ref().and_then(Error::errno);
            let errno = errno.filter(|&errno| errno != libc::EEXIST);
            assert_eq!(errno, if may { None } else { Some(libc::EACCES) }, "{who}: {what:?}: {error:?}");
        };
        let (secret, public) = (&self.secret, self.all.path().join("public"));
        let inside = |name: &str| secret.join(name);
        check(&"listing", fs::read_dir(secret).next().await.unwrap().err());
        check(&"metadata", fs::metadata(inside("data")).await.err());
        check(&"symlink", fs::symlink("anywhere", inside("link")).await.err());
        check(&"read_link", fs::read_link(inside("link")).await.err());
        check(&"create_dir", fs::create_dir(inside("new")).await.err());
        check(&"create_dir_all", fs::create_dir_all(inside("old/new")).await.err());
        check(&"rename", fs::rename(inside("new"), inside("newer")).await.err());
        check(&"remove_dir", fs::remove_dir(inside("newer")).await.err());
        check(&"remove_file", fs::remove_file(inside("link")).await.err());
        check(&"sync_dir", fs::sync_dir(secret).await.err());
        fs::metadata(&public).await.unwrap();
        // An open file is one for all threads.
        let file = File::open_blocking(&public).unwrap();
        assert_eq!(fs::metadata_of(&file).await.unwrap().size, 7);
    }
}

fn on_thread<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn f64_a_thread_with_fewer_rights_opens_nothing_by_the_threads_of_others() {
    Case::each("f64_a_thread_with_fewer_rights_opens_nothing_by_the_threads_of_others", |case| {
        let tree = case.folders();
        on_thread(|| {
            (case.more)();
            tree.assert_may("the first thread", true);
        });
        on_thread(|| {
            case.less();
            tree.assert_may("the other thread", false);
        });
        on_thread(|| {
            (case.more)();
            tree.assert_may("a thread like the first", true);
        });
    });
}

#[test]
fn f64_a_worker_that_such_a_thread_started_fails_no_other() {
    Case::each("f64_a_worker_that_such_a_thread_started_fails_no_other", |case| {
        let tree = case.folders();
        on_thread(|| {
            case.less();
            tree.assert_may("the first thread", false);
        });
        on_thread(|| {
            (case.more)();
            tree.assert_may("the other thread", true);
        });
    });
}

/// Its ring is older than the change.
#[test]
fn f64_a_thread_that_gives_up_rights_loses_them() {
    Case::each("f64_a_thread_that_gives_up_rights_loses_them", |case| {
        let tree = case.folders();
        on_thread(|| {
            (case.more)();
            let mut queue = Queue::new();
            let mut may = |may: bool| {
                tree.assert_may("the thread", may);
                let token = queue.add(fs::metadata(tree.secret.join("data")), 0);
                assert_eq!(queue.wait_for(token).unwrap().result.is_ok(), may);
            };
            may(true);
            (case.less)();
            may(false);
        });
    });
}

/// A kernel thread submits with the credentials of the thread that made the ring, when it made it.
#[test]
fn f64_a_kernel_thread_that_submits_keeps_no_rights() {
    let name = "f64_a_kernel_thread_that_submits_keeps_no_rights";
    if !needs_ring(name) {
        return;
    }
    Case::each(name, |case| {
        let tree = case.folders();
        let idle = Some(Duration::from_millis(10));
        let runtime = Runtime::builder().threads(1).sqpoll(idle).build().unwrap();
        let (more, less, secret) = (case.more, case.less, tree.secret.join("data"));
        let opened = runtime.spawn(async move {
            more();
            let before = reading().open(&secret).await;
            less();
            (before, reading().open(&secret).await)
        });
        let (before, after) = opened.join().unwrap();
        before.unwrap();
        assert_eq!(after.unwrap_err().errno(), Some(libc::EACCES));
    });
}

#[test]
fn f64_what_a_thread_makes_belongs_to_its_users_and_groups() {
    let name = "f64_what_a_thread_makes_belongs_to_its_users_and_groups";
    if !is_root() {
        return skip(name, "changing the credentials of a thread needs root");
    }
    if !in_child(name) {
        return;
    }
    let folder = Folder::inside(Path::new("/dev/shm"));
    mode(folder.path(), 0o777);
    let mut creating = OpenOptions::new();
    creating.write(true).create_new(true);
    let made_by = |who: &str, owner: (u32, u32)| {
        for way in WAYS {
            let path = folder.path().join(format!("{who} {way:?}"));
            way.open(&path, &creating).unwrap();
            let made = std::fs::metadata(&path).unwrap();
            assert_eq!((made.uid(), made.gid()), owner, "{who}: {way:?}");
        }
    };
    made_by("root", (0, 0));
    on_thread(|| {
        raw::set(libc::SYS_setfsgid, GROUP);
        made_by("a group", (0, GROUP));
        raw::set(libc::SYS_setfsuid, NOBODY);
        made_by("a user", (NOBODY, GROUP));
    });
    made_by("root again", (0, 0));
}

#[test]
fn f64_a_shared_queue_uses_the_rights_of_the_thread_that_adds() {
    Case::each("f64_a_shared_queue_uses_the_rights_of_the_thread_that_adds", |case| {
        let tree = case.folders();
        let queue = SharedQueue::new();
        let open = || queue.add(reading().open(tree.secret.join("data")), 0);
        let result = |token| queue.wait_for(token).unwrap().take::<File>().map_err(Error::from);
        for _ in 0..2 {
            let by_less = on_thread(|| {
                case.less();
                open()
            });
            let (refused, by_more) = on_thread(|| {
                (case.more)();
                (result(by_less), open())
            });
            assert_eq!(refused.unwrap_err().errno(), Some(libc::EACCES));
            on_thread(|| {
                case.less();
                result(by_more).unwrap();
            });
        }
    });
}

/// `setuid` of the C library changes the workers too.
#[test]
fn f64_a_process_that_gives_up_its_rights_still_opens_files() {
    let name = "f64_a_process_that_gives_up_its_rights_still_opens_files";
    if !is_root() {
        return skip(name, "giving up rights needs root");
    }
    if !in_child(name) {
        return;
    }
    let tree = CASES[0].folders();
    tree.assert_may("root", true);
    // SAFETY: the calls take numbers only.
    let set = |user| assert_eq!(unsafe { libc::setresuid(user, user, 0) }, 0);
    set(NOBODY);
    tree.assert_may("nobody", false);
    tree.assert_may("nobody, later", false);
    // So that the folder can be removed.
    set(0);
    tree.assert_may("root again", true);
}

/// Only operations on paths, not those on open files, become calls of a thread with other rights.
#[test]
fn f64_operations_on_open_files_are_handed_over_whatever_the_rights() {
    let name = "f64_operations_on_open_files_are_handed_over_whatever_the_rights";
    if !is_root() {
        return skip(name, "changing the credentials of a thread needs root");
    }
    if !in_child(name) {
        return;
    }
    let tree = CASES[0].folders();
    let public = tree.all.path().join("public");
    let file = reading().route(ringfile::Route::Workers).open_blocking(&public).unwrap();
    let one_of_each = || {
        let before = metrics();
        futures::executor::block_on(async {
            file.read_at(Vec::with_capacity(7), 0).await.unwrap();
            fs::read_link("/proc/self/exe").await.unwrap();
        });
        let after = metrics();
        (after.worker_ops - before.worker_ops, after.inline_ops - before.inline_ops)
    };
    assert_eq!(one_of_each(), (2, 0));
    on_thread(|| {
        raw::set(libc::SYS_setfsuid, NOBODY);
        assert_eq!(one_of_each(), (1, 1));
    });
    assert_eq!(one_of_each(), (2, 0));
}

/// A future that is polled again elsewhere has begun with the rights of the first thread.
#[test]
fn f64_the_first_poll_decides() {
    Case::each("f64_the_first_poll_decides", |case| {
        let tree = case.folders();
        let data = tree.secret.join("data");
        on_thread(|| {
            (case.more)();
            futures::executor::block_on(fs::metadata(&data)).unwrap();
            let mut opening = pin!(reading().open(&data));
            let mut ready = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            (case.less)();
            wait_for("the file", || {
                if ready.is_pending() {
                    ready = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                }
                ready.is_ready()
            });
            assert!(matches!(ready, std::task::Poll::Ready(Ok(_))));
            assert!(futures::executor::block_on(reading().open(&data)).is_err());
        });
    });
}

/// Sets the effective uid of all threads, as the C library does it.
fn set_all(uid: u32) {
    // SAFETY: the call takes a number only.
    assert_eq!(unsafe { libc::seteuid(uid) }, 0, "{}", std::io::Error::last_os_error());
}

/// Opens a file many times at once, so that several workers do it.
fn open_many(path: &Path) -> Vec<Result<File, Error>> {
    futures::executor::block_on(futures::future::join_all((0..64).map(|_| reading().open(path))))
}

/// Workers and I/O threads are started while all threads are nobody's, and are root's when a thread that is nobody's asks.
#[test]
fn f64_no_thread_uses_rights_that_all_have_got_meanwhile() {
    let name = "f64_no_thread_uses_rights_that_all_have_got_meanwhile";
    if !is_root() {
        return skip(name, "changing the credentials of a thread needs root");
    }
    if !in_child(name) {
        return;
    }
    let folder = Folder::new();
    let path = folder.file("file", b"content");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    set_all(NOBODY);
    assert!(open_many(Path::new("/proc/self/exe")).iter().all(Result::is_ok));
    for way in [Way::Executor, Way::Started] {
        way.open(Path::new("/proc/self/exe"), &reading()).unwrap();
    }
    set_all(0);
    std::thread::spawn(move || {
        // All of its uids, so that its capabilities are those that it had as nobody.
        raw::set(libc::SYS_setresuid, NOBODY);
        assert!(open_many(&path).iter().all(Result::is_err));
        for way in [Way::Executor, Way::Started, Way::SharedQueue] {
            assert!(way.open(&path, &reading()).is_err(), "{way:?}");
            // Once the threads have looked at their rights again.
            wait_for("the threads to be asked no more", || {
                way.open(Path::new("/proc/self/exe"), &reading()).is_ok()
            });
        }
    })
    .join()
    .unwrap();
}

/// A file that is created if it can be direct takes several steps.
#[test]
fn f64_a_file_is_created_with_the_rights_of_who_asked() {
    let name = "f64_a_file_is_created_with_the_rights_of_who_asked";
    if !is_root() {
        return skip(name, "changing the credentials of a thread needs root");
    }
    if !in_child(name) {
        return;
    }
    let folder = Folder::inside(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let path = folder.path().join("new");
    let queue = SharedQueue::new();
    let mut options = reading();
    options.write(true).create(true).direct(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            raw::set(libc::SYS_setfsuid, NOBODY);
            queue.add(options.open(&path), 0);
        });
    });
    let done = one_of(&queue, None).unwrap();
    assert_eq!(done.take::<File>().unwrap_err().result.unwrap_err().errno(), Some(libc::EACCES));
    assert!(!path.exists());
}
