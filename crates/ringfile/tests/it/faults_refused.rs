//! System calls that a filter refuses, each in turn (F71). docs/architecture/calls.md is the table: what it names as failing
//! must fail with the errno of the refusal, and everything else must work.

use crate::support::handles::one_of;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::documents::root;
use crate::support::filters::{allow_only, deny};
use crate::support::forms::{Form, READING, WRITING};
use crate::support::{Folder, assert_content, content, fork, in_child_for, is_without_ring, patience, pipe};
use ringfile::fs::{self, Advice, AllocateMode, RangeSync};
use ringfile::{
    Appender, Durability, File, OpenOptions, Pool, Queue, Result, Route, Runtime, SharedQueue, block_on,
};

const PAGE: usize = 4096;
const PAGES: usize = 16;

/// The numbers of the calls that the table names.
const CALLS: &[(&str, libc::c_long)] = &[
    ("capget", libc::SYS_capget),
    ("getgroups", libc::SYS_getgroups),
    ("get_mempolicy", libc::SYS_get_mempolicy),
    ("set_mempolicy", libc::SYS_set_mempolicy),
    ("ioprio_set", libc::SYS_ioprio_set),
    ("ioprio_get", libc::SYS_ioprio_get),
    ("setpriority", libc::SYS_setpriority),
    ("getpriority", libc::SYS_getpriority),
    ("sched_setscheduler", libc::SYS_sched_setscheduler),
    ("sched_getscheduler", libc::SYS_sched_getscheduler),
    ("brk", libc::SYS_brk),
    ("cachestat", linux_raw_sys::general::__NR_cachestat as libc::c_long),
    ("clock_gettime", libc::SYS_clock_gettime),
    ("clock_nanosleep", libc::SYS_clock_nanosleep),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("close", libc::SYS_close),
    ("copy_file_range", libc::SYS_copy_file_range),
    ("epoll_create1", libc::SYS_epoll_create1),
    ("epoll_ctl", libc::SYS_epoll_ctl),
    ("eventfd2", libc::SYS_eventfd2),
    ("exit", libc::SYS_exit),
    ("exit_group", libc::SYS_exit_group),
    ("faccessat", libc::SYS_faccessat),
    ("fadvise64", libc::SYS_fadvise64),
    ("fallocate", libc::SYS_fallocate),
    ("fchmodat", libc::SYS_fchmodat),
    ("fcntl", libc::SYS_fcntl),
    ("fdatasync", libc::SYS_fdatasync),
    ("fstat", libc::SYS_fstat),
    ("fstatfs", libc::SYS_fstatfs),
    ("fsync", libc::SYS_fsync),
    ("ftruncate", libc::SYS_ftruncate),
    ("futex", libc::SYS_futex),
    ("getdents64", libc::SYS_getdents64),
    ("getpid", libc::SYS_getpid),
    ("getrandom", libc::SYS_getrandom),
    ("getrusage", libc::SYS_getrusage),
    ("gettid", libc::SYS_gettid),
    ("io_cancel", libc::SYS_io_cancel),
    ("io_destroy", libc::SYS_io_destroy),
    ("io_getevents", libc::SYS_io_getevents),
    ("io_setup", libc::SYS_io_setup),
    ("io_submit", libc::SYS_io_submit),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("linkat", libc::SYS_linkat),
    ("lseek", libc::SYS_lseek),
    ("madvise", libc::SYS_madvise),
    ("memfd_create", libc::SYS_memfd_create),
    ("mkdirat", libc::SYS_mkdirat),
    ("mmap", libc::SYS_mmap),
    ("mprotect", libc::SYS_mprotect),
    ("mremap", libc::SYS_mremap),
    ("munmap", libc::SYS_munmap),
    ("newfstatat", libc::SYS_newfstatat),
    ("openat", libc::SYS_openat),
    ("pipe2", libc::SYS_pipe2),
    ("ppoll", libc::SYS_ppoll),
    ("prctl", libc::SYS_prctl),
    ("pread64", libc::SYS_pread64),
    ("preadv", libc::SYS_preadv),
    ("preadv2", libc::SYS_preadv2),
    ("prlimit64", libc::SYS_prlimit64),
    ("pwrite64", libc::SYS_pwrite64),
    ("pwritev", libc::SYS_pwritev),
    ("pwritev2", libc::SYS_pwritev2),
    ("read", libc::SYS_read),
    ("readlinkat", libc::SYS_readlinkat),
    ("readv", libc::SYS_readv),
    ("renameat", libc::SYS_renameat),
    ("renameat2", libc::SYS_renameat2),
    ("rseq", libc::SYS_rseq),
    ("rt_sigaction", libc::SYS_rt_sigaction),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("rt_sigreturn", libc::SYS_rt_sigreturn),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("sched_yield", libc::SYS_sched_yield),
    ("set_robust_list", libc::SYS_set_robust_list),
    ("sigaltstack", libc::SYS_sigaltstack),
    ("statx", libc::SYS_statx),
    ("symlinkat", libc::SYS_symlinkat),
    ("sync_file_range", libc::SYS_sync_file_range),
    ("unlinkat", libc::SYS_unlinkat),
    ("write", libc::SYS_write),
    ("writev", libc::SYS_writev),
];

/// Those that only x86-64 has, whose C library prefers them.
#[cfg(target_arch = "x86_64")]
const OLDER_CALLS: &[(&str, libc::c_long)] = &[
    ("access", libc::SYS_access),
    ("alarm", libc::SYS_alarm),
    ("arch_prctl", libc::SYS_arch_prctl),
    ("chmod", libc::SYS_chmod),
    ("link", libc::SYS_link),
    ("mkdir", libc::SYS_mkdir),
    ("open", libc::SYS_open),
    ("poll", libc::SYS_poll),
    ("readlink", libc::SYS_readlink),
    ("rename", libc::SYS_rename),
    ("rmdir", libc::SYS_rmdir),
    ("symlink", libc::SYS_symlink),
    ("unlink", libc::SYS_unlink),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_CALLS: &[(&str, libc::c_long)] = &[];

/// A row of the table.
struct Row {
    calls: Vec<(String, libc::c_long)>,
    fails: BTreeSet<String>,
}

/// Returns the names between backticks.
fn names(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn number(name: &str) -> Option<libc::c_long> {
    let found = CALLS.iter().chain(OLDER_CALLS).find(|(known, _)| *known == name).map(|(_, number)| *number);
    assert!(
        found.is_some() || cfg!(not(target_arch = "x86_64")),
        "this test does not know the number of {name}"
    );
    found
}

/// Returns the table, and the calls that are never refused.
fn table(root: &Path) -> (Vec<Row>, Vec<libc::c_long>) {
    let text = std::fs::read_to_string(root.join("docs/architecture/calls.md")).unwrap();
    let (_, text) = text.split_once("|---|---|---|\n").unwrap();
    let (rows, rest) = text.split_once("\n\n").unwrap();
    let rows = rows.lines().map(|line| {
        let cells: Vec<&str> = line.split('|').collect();
        assert_eq!(cells.len(), 5, "three columns: {line}");
        let calls = names(cells[1]).into_iter().filter_map(|name| Some((name.clone(), number(&name)?)));
        Row { calls: calls.collect(), fails: names(cells[3]).into_iter().collect() }
    });
    (rows.collect(), names(rest).iter().filter_map(|name| number(name)).collect())
}

/// What there is before anything is refused: what the steps open, change and remove.
struct Place {
    folder: PathBuf,
    pool: Pool,
    /// Open in every way, all with [`content`].
    files: Vec<File>,
    /// The same file, to see what was written.
    written: std::fs::File,
    /// For [`File::from`].
    adopted: RefCell<Option<std::fs::File>>,
    durable: Vec<File>,
    /// A file of holes, and where copies go.
    sparse: File,
    copied: (File, std::fs::File),
    logs: [File; 2],
    /// The metadata of a file that does not change.
    known: fs::Metadata,
}

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

fn direct() -> OpenOptions {
    let mut options = both();
    options.direct(true).buffered_fallback(true);
    options
}

const ROUTES: [Route; 3] = [Route::Auto, Route::Inline, Route::Workers];

impl Place {
    fn new(folder: &Path) -> io::Result<Self> {
        let join = |name: &str| folder.join(name);
        std::fs::write(join("data"), content(0, PAGES * PAGE))?;
        for name in
            ["still", "from", "new", "taken", "one", "other", "linked", "gone", "copied", "log", "direct log"]
        {
            std::fs::write(join(name), "content")?;
        }
        std::fs::File::create(join("sparse"))?.set_len(1 << 20)?;
        std::fs::create_dir(join("gone folder"))?;
        symlink("nowhere", join("link"))?;
        let open = |options: &OpenOptions, name| options.open_blocking(join(name));
        let mut files = vec![open(&direct(), "data")?];
        let mut durable = Vec::new();
        for route in ROUTES {
            files.push(open(both().route(route), "data")?);
            for durability in [Durability::Dsync, Durability::Fsync] {
                durable.push(open(both().route(route).durability(durability), "data")?);
            }
        }
        Ok(Self {
            pool: Pool::new(4 << 20),
            files,
            written: std::fs::File::open(join("data"))?,
            adopted: RefCell::new(Some(std::fs::File::open(join("data"))?)),
            durable,
            sparse: open(&both(), "sparse")?,
            copied: (open(&both(), "copied")?, std::fs::File::open(join("copied"))?),
            logs: [open(&both(), "log")?, open(&direct(), "direct log")?],
            known: (&std::fs::metadata(join("still"))?).into(),
            folder: folder.to_owned(),
        })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns whether there is something at a path, by a call that is never refused.
    fn has(&self, name: &str) -> bool {
        rustix::fs::access(self.at(name), rustix::fs::Access::EXISTS).is_ok()
    }

    /// Asserts that the file still has its content.
    fn check(&self) {
        assert_content(&read_all(&self.written), 0);
    }

    fn reads(&self) -> Vec<(ringfile::Buffer, u64)> {
        (0..PAGES).map(|page| (self.pool.get(PAGE).unwrap(), (page * PAGE) as u64)).collect()
    }

    /// Reads a file in every form. Tokio's own threads and descriptors are not the library's.
    fn read(&self, file: &File) -> Result<()> {
        for form in READING.into_iter().filter(|form| *form != Form::Tokio) {
            for ((buffer, error), page) in form.read(file, self.reads()).into_iter().zip(0..) {
                error.map_or(Ok(()), Err)?;
                assert_eq!(buffer.len(), PAGE);
                assert_content(&buffer, page * PAGE as u64);
            }
        }
        Ok(())
    }

    fn write(&self, file: &File) -> Result<()> {
        for form in WRITING.into_iter().filter(|form| *form != Form::Tokio) {
            let mut writes = self.reads();
            writes.iter_mut().for_each(|(buffer, at)| buffer.extend_from_slice(&content(*at, PAGE)));
            form.write(file, writes).into_iter().try_for_each(|(_, error)| error.map_or(Ok(()), Err))?;
        }
        Ok(())
    }
}

fn read_all(mut file: &std::fs::File) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    // If one of the calls is refused, the other is not.
    let read = file.read_at(&mut bytes, 0);
    let read = read.or_else(|_| file.rewind().and_then(|()| file.read(&mut bytes))).unwrap();
    bytes.truncate(read);
    bytes
}

/// A part of a program, by the name that the table uses.
type Step = (&'static str, fn(&Place) -> Result<()>);

const STEPS: &[Step] = &[
    ("OpenOptions::open_blocking", |place| place.read(&both().open_blocking(place.at("data"))?)),
    ("OpenOptions::direct", |place| place.read(&direct().open_blocking(place.at("data"))?)),
    ("OpenOptions::adaptive", |place| place.read(&both().adaptive(true).open_blocking(place.at("data"))?)),
    ("File::from", |place| place.read(&place.adopted.take().unwrap().into())),
    ("OpenOptions::open", |place| place.read(&block_on(both().open(place.at("data")))?)),
    ("File::read_at", |place| place.files.iter().try_for_each(|file| place.read(file))),
    ("File::read_vectored_at", |place| {
        place.files.iter().try_for_each(|file| {
            let parts = block_on(file.read_vectored_at(vec![vec![0; 100], vec![0; 9000]], 77))?;
            assert_content(&parts.concat(), 77);
            Ok(())
        })
    }),
    ("File::write_at", |place| {
        place.files.iter().try_for_each(|file| place.write(file))?;
        place.check();
        Ok(())
    }),
    ("File::write_vectored_at", |place| {
        for file in &place.files {
            let mut parts = place.reads();
            parts.iter_mut().for_each(|(buffer, at)| buffer.extend_from_slice(&content(*at, PAGE)));
            block_on(file.write_vectored_at(parts.into_iter().map(|(buffer, _)| buffer).collect(), 0))?;
        }
        place.check();
        Ok(())
    }),
    ("File::write_durable_at", |place| {
        for file in &place.durable {
            block_on(file.write_durable_at(content(0, 5000), 0))?;
            futures::executor::block_on(file.write_durable_at(content(100, 5000), 100))?;
            assert!(file.failed_sync().is_none());
        }
        place.check();
        Ok(())
    }),
    ("File::sync_data", |place| place.files.iter().try_for_each(|file| block_on(file.sync_data()))),
    ("File::sync_range", |place| {
        place.files.iter().try_for_each(|file| {
            block_on(file.sync_range(0, PAGE as u64, RangeSync::Start))?;
            block_on(file.sync_range(0, PAGE as u64, RangeSync::Finish))
        })
    }),
    // Behind those that would fail after it.
    ("File::sync_all", |place| place.files.iter().try_for_each(|file| block_on(file.sync_all()))),
    ("File::allocate", |place| {
        let all = (PAGES * PAGE) as u64;
        place.files.iter().try_for_each(|file| block_on(file.allocate(AllocateMode::KeepSize, 0, all)))
    }),
    ("File::set_len", |place| {
        let all = (PAGES * PAGE) as u64;
        place.files.iter().try_for_each(|file| block_on(file.set_len(all)))?;
        place.check();
        Ok(())
    }),
    ("File::advise", |place| {
        place.files.iter().try_for_each(|file| block_on(file.advise(0, PAGE as u64, Advice::WillNeed)))
    }),
    ("File::size", |place| {
        place.files.iter().try_for_each(|file| {
            assert_eq!(file.size()?, (PAGES * PAGE) as u64);
            Ok(())
        })
    }),
    ("File::copy_range", |place| {
        let (to, copied) = &place.copied;
        assert_eq!(block_on(place.sparse.copy_range(0, to, 0, 1 << 20))?, 1 << 20);
        assert!(read_all(copied).iter().all(|&byte| byte == 0));
        place.files.iter().try_for_each(|file| {
            assert_eq!(block_on(file.copy_range(0, to, 0, 2 * PAGE as u64))?, 2 * PAGE as u64);
            assert_content(&read_all(copied)[..2 * PAGE], 0);
            Ok(())
        })
    }),
    ("File::reader", |place| {
        place.files.iter().try_for_each(|file| {
            let mut reader = file.reader(&place.pool).block(PAGE);
            let mut seen = 0;
            while let Some(piece) = block_on(reader.next()) {
                let piece = piece?;
                assert_content(&piece, seen);
                seen += piece.len() as u64;
            }
            assert_eq!(seen, (PAGES * PAGE) as u64);
            Ok(())
        })
    }),
    ("Appender", |place| {
        place.logs.iter().try_for_each(|file| {
            block_on(async {
                let log = Appender::open(file, &place.pool, 0).fill_ahead(1 << 20);
                let log = log.sync_interval(Duration::from_millis(1)).await?;
                for record in 0..8 {
                    log.append(&content(record * 1000, 1000)).await?;
                    log.sync().await?;
                }
                log.close().await?;
                Appender::open(file, &place.pool, 4000).await?.close().await
            })?;
            assert_content(&block_on(file.read_exact_at(Vec::with_capacity(4000), 0))?, 0);
            Ok(())
        })
    }),
    ("a pipe", |_| {
        let (file, mut writer) = pipe();
        writer.write_all(b"some").unwrap();
        assert_eq!(block_on(file.read_at(vec![0; 2], 0))?, b"so");
        assert_eq!(futures::executor::block_on(file.read_at(vec![0; 2], 0))?, b"me");
        Ok(())
    }),
    ("Runtime", |place| {
        let runtime = Runtime::builder().threads(2).build()?;
        let tasks: Vec<_> = (0..PAGES as u64)
            .map(|page| {
                let file = place.files[0].clone();
                runtime.spawn(async move {
                    let offset = page * PAGE as u64;
                    assert_content(&file.read_exact_at(vec![0; PAGE], offset).await?, offset);
                    Ok(())
                })
            })
            .collect();
        let ended: Vec<Result<()>> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
        runtime.shutdown();
        ended.into_iter().collect()
    }),
    ("Queue::wait", |place| {
        place.files.iter().try_for_each(|file| {
            let mut queue = Queue::new();
            let token = queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 1);
            let mut ended = Vec::new();
            assert_eq!(queue.wait(1..=9, Some(patience()), &mut ended), 1);
            assert_eq!(ended[0].token, token);
            ended.remove(0).result.map(drop)
        })
    }),
    ("Queue::descriptor", |place| {
        place.files.iter().try_for_each(|file| {
            let mut queue = Queue::new();
            let descriptor = queue.descriptor()?;
            let token = queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 1);
            queue.submit();
            let readable = rustix::event::PollFlags::IN;
            let _ = rustix::event::poll(&mut [rustix::event::PollFd::new(&descriptor, readable)], None);
            queue.wait_for(token)?.result.map(drop)
        })
    }),
    ("SharedQueue", |place| {
        place.files.iter().try_for_each(|file| {
            let queue = SharedQueue::new();
            queue.add(file.read_at(Vec::with_capacity(PAGE), 0), 1);
            one_of(&queue, Some(patience())).unwrap().result.map(drop)
        })
    }),
    ("PoolBuilder::dont_fork", |_| {
        let pool = Pool::builder().capacity(1 << 20).dont_fork(true).build()?;
        Ok(pool.get(PAGE).map(drop)?)
    }),
    ("fs::metadata", |place| {
        block_on(async {
            let mut seen = fs::metadata(place.at("still")).await?;
            (seen.created, seen.direct) = (seen.created.or(place.known.created), None);
            assert_eq!(seen, place.known);
            assert_eq!(fs::metadata_of(&place.files[0]).await?.size, (PAGES * PAGE) as u64);
            assert_eq!(fs::symlink_metadata(place.at("link")).await?.file_type, fs::FileType::Symlink);
            Ok(())
        })
    }),
    ("fs::rename", |place| {
        block_on(fs::rename(place.at("from"), place.at("to")))?;
        assert!(!place.has("from") && place.has("to"));
        Ok(())
    }),
    ("fs::rename_no_replace", |place| {
        let refused = block_on(fs::rename_no_replace(place.at("new"), place.at("taken"))).unwrap_err();
        if refused.kind() != ErrorKind::AlreadyExists {
            return Err(refused);
        }
        block_on(fs::rename_no_replace(place.at("new"), place.at("free")))?;
        assert!(!place.has("new") && place.has("free"));
        Ok(())
    }),
    ("fs::rename_exchange", |place| block_on(fs::rename_exchange(place.at("one"), place.at("other")))),
    ("fs::hard_link", |place| {
        block_on(fs::hard_link(place.at("linked"), place.at("linked too")))?;
        assert!(place.has("linked too"));
        Ok(())
    }),
    ("fs::symlink", |place| block_on(fs::symlink("nowhere", place.at("symlink")))),
    ("fs::read_link", |place| {
        assert_eq!(block_on(fs::read_link(place.at("link")))?, Path::new("nowhere"));
        Ok(())
    }),
    ("fs::set_permissions", |place| {
        block_on(fs::set_permissions(place.at("one"), std::fs::Permissions::from_mode(0o600)))
    }),
    ("fs::create_dir", |place| block_on(fs::create_dir(place.at("folder")))),
    ("fs::create_dir_all", |place| block_on(fs::create_dir_all(place.at("folders/below")))),
    ("fs::read_dir", |place| {
        block_on(async {
            let (mut entries, mut found) = (fs::read_dir(&place.folder), false);
            while let Some(entry) = entries.next().await {
                found |= entry?.name == "data";
            }
            assert!(found);
            Ok(())
        })
    }),
    ("fs::remove_file", |place| {
        block_on(fs::remove_file(place.at("gone")))?;
        assert!(!place.has("gone"));
        Ok(())
    }),
    ("fs::remove_dir", |place| block_on(fs::remove_dir(place.at("gone folder")))),
    ("fs::sync_dir", |place| block_on(fs::sync_dir(&place.folder))),
];

/// Carries out all steps, and returns the wrong results. Those in `fails` may fail with this errno, or must.
fn wrong(place: &Place, fails: &BTreeSet<String>, errno: i32, must_fail: bool) -> Vec<String> {
    let mut wrong: Vec<String> = fails
        .iter()
        .filter(|name| !STEPS.iter().any(|(known, _)| *known == **name))
        .map(|name| format!("there is no step {name}"))
        .collect();
    let of_refusal = format!("(os error {errno})");
    for (name, step) in STEPS {
        let is_wrong = match step(place) {
            Ok(()) if must_fail && fails.contains(*name) => Some("it has not failed".to_owned()),
            Ok(()) => None,
            Err(error) if fails.contains(*name) && error.to_string().contains(&of_refusal) => None,
            Err(error) => Some(error.to_string()),
        };
        wrong.extend(is_wrong.map(|why| format!("{name}: {why}")));
    }
    wrong
}

/// A forked child that carries out all steps with some calls refused.
struct Case {
    name: String,
    child: libc::pid_t,
    _folder: Folder,
}

/// Waits for a forked child, and returns how it ended, if not well.
fn ended(case: Case) -> Option<String> {
    let mut status = 0;
    // SAFETY: one valid number to write to.
    assert_eq!(unsafe { libc::waitpid(case.child, &mut status, 0) }, case.child);
    let how = (status != 0).then(|| match libc::WIFSIGNALED(status) {
        true => format!("it was ended by signal {}", libc::WTERMSIG(status)),
        false => "it failed".to_owned(),
    });
    how.map(|how| format!("{}: {how}", case.name))
}

/// Starts to check a case in a forked child, with this set-up.
fn check(name: String, row: &Row, errno: i32, must_fail: bool, refuse: impl FnOnce()) -> Case {
    let folder = Folder::new();
    let child = fork(|| {
        let place = Place::new(folder.path()).unwrap();
        refuse();
        let wrong = wrong(&place, &row.fails, errno, must_fail);
        assert!(wrong.is_empty(), "{name}:\n  {}", wrong.join("\n  "));
        std::mem::forget(place);
    });
    Case { name, child, _folder: folder }
}

#[test]
fn f71_each_call_that_is_refused_has_a_stand_in_or_a_clear_error() {
    let name = "f71_each_call_that_is_refused_has_a_stand_in_or_a_clear_error";
    let Some(root) = root() else { return };
    if !in_child_for(name, 60 * patience()) {
        return;
    }
    let (rows, never_refused) = table(root);
    let only = std::env::var("RINGFILE_TEST_CALL").ok();
    let mut problems = Vec::new();
    let nothing = Row { calls: Vec::new(), fails: BTreeSet::new() };
    let named = || rows.iter().flat_map(|row| row.calls.iter().map(|(_, number)| *number));
    problems.extend(ended(check("a call that no row names".to_owned(), &nothing, 0, false, || {
        allow_only(named().chain(never_refused.iter().copied()));
    })));
    for row in &rows {
        let names: Vec<&str> = row.calls.iter().map(|(name, _)| &**name).collect();
        if only.as_ref().is_some_and(|only| !names.contains(&&**only)) {
            continue;
        }
        let cases = [libc::EPERM, libc::ENOSYS].map(|errno| [(errno, true), (errno, false)]);
        let cases = cases.into_iter().flatten().filter(|(_, ring)| !ring || !is_without_ring());
        // Side by side, since they mostly wait.
        let started = cases.map(|(errno, has_ring)| {
            let name = format!("{} with errno {errno}, ring: {has_ring}", names.join(", "));
            check(name, row, errno, !has_ring, || {
                if !has_ring {
                    deny(libc::SYS_io_uring_setup, libc::ENOSYS);
                    if !names.contains(&"io_setup") {
                        deny(libc::SYS_io_setup, libc::ENOSYS);
                    }
                }
                row.calls.iter().for_each(|(_, number)| deny(*number, errno));
            })
        });
        problems.extend(started.collect::<Vec<_>>().into_iter().filter_map(ended));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
