//! What is free again once the last handle of a file is gone, while the threads that have used it idle or sleep: leases, mounts,
//! claims of devices, and space (F61).

use std::os::fd::AsRawFd;
use std::path::Path;

use crate::faults_close::{
    Idle, PAGE, PAGES, assert_closes_once, read_in_a_started_batch, read_in_queue, read_in_tasks,
};
use crate::support::mounts::{Loop, Mount};
use crate::support::{Folder, content, in_child, ring_options, skip};
use ringfile::{File, OpenOptions, Route, block_on};

const MIB: u64 = 1 << 20;

/// Opens a file on each route and uses it on threads of each kind, which idle or sleep when they have dropped it. Asserts that
/// it is free then, and was not before.
#[track_caller]
fn assert_frees(what: &str, open: impl Fn(&OpenOptions) -> File, is_free: impl Fn() -> bool) {
    type Use = fn(File, Idle);
    let uses: [(&str, Use); 4] = [
        ("a queue", |file, idle| {
            let mut queue = ringfile::Queue::new();
            read_in_queue(&mut queue, &file, 40);
            drop(file);
            idle.stop_here();
        }),
        ("a loop that sleeps", |file, idle| {
            block_on(async move {
                read_in_tasks(&file, 40).await;
                drop(file);
                idle.go_on().await;
            });
        }),
        ("another executor", |file, idle| {
            futures::executor::block_on(read_in_tasks(&file, 40));
            drop(file);
            idle.stop_here();
        }),
        ("a started batch", |file, idle| {
            let _started = read_in_a_started_batch(file);
            idle.stop_here();
        }),
    ];
    let workers = OpenOptions::new().route(Route::Workers).clone();
    // Linux AIO has direct I/O only.
    let direct = ring_options().route(Route::Auto).direct(true).buffered_fallback(true).clone();
    for options in [ring_options(), workers, direct] {
        for (how, act) in uses {
            let mut options = options.clone();
            options.read(true).write(true);
            assert_closes_once(&format!("{what}, {how}, {options:?}"), open(&options), act, &is_free);
        }
    }
}

fn data() -> Vec<u8> {
    content(0, PAGES as usize * PAGE)
}

fn lease(file: &std::fs::File) -> bool {
    // SAFETY: the call takes no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

#[test]
fn f61_the_last_handle_gives_up_leases() {
    let name = "f61_the_last_handle_gives_up_leases";
    // A child of another test would have the descriptors too.
    if !in_child(name) {
        return;
    }
    // SAFETY: the signal, which says that another wants to open the file, is ignored.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let folder = Folder::new();
    let path = folder.file("data", &data());
    let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
    if !lease(&open()) {
        return skip(name, "this file system has no leases");
    }
    let others = |options: &OpenOptions| options.open_blocking(&path).unwrap();
    assert_frees("a lease that others get", others, || lease(&open()));
    let own = |options: &OpenOptions| {
        let file = open();
        assert!(lease(&file));
        options.from_std(file).unwrap()
    };
    let is_free = || {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).is_ok()
    };
    assert_frees("a lease of the program's own", own, is_free);
}

#[test]
fn f61_a_file_system_can_be_unmounted_after_the_last_handle() {
    let name = "f61_a_file_system_can_be_unmounted_after_the_last_handle";
    if !in_child(name) {
        return;
    }
    for kind in ["tmpfs", "ext4"] {
        let mount = std::cell::RefCell::new(None);
        let make = || match kind {
            "tmpfs" => Mount::tmpfs(name, 4 * MIB),
            kind => Mount::on_loop(name, kind, 16 * MIB),
        };
        if make().is_none() {
            continue;
        }
        let open = |options: &OpenOptions| {
            let made = make().unwrap();
            let path = made.path().join("data");
            std::fs::write(&path, data()).unwrap();
            *mount.borrow_mut() = Some(made);
            options.clone().buffered_fallback(true).open_blocking(path).unwrap()
        };
        assert_frees(kind, open, || mount.borrow().as_ref().is_some_and(Mount::unmounts));
    }
}

#[test]
fn f61_a_device_can_be_claimed_after_the_last_handle() {
    let name = "f61_a_device_can_be_claimed_after_the_last_handle";
    if !in_child(name) {
        return;
    }
    let Some(device) = Loop::over(name, &data()) else { return };
    let claim = || {
        let mut options = std::fs::File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_EXCL);
        options.read(true).write(true).open(device.device())
    };
    assert_frees("a claim", |options| options.from_std(claim().unwrap()).unwrap(), || claim().is_ok());
}

#[test]
fn f61_the_space_of_a_deleted_file_is_free_after_the_last_handle() {
    let name = "f61_the_space_of_a_deleted_file_is_free_after_the_last_handle";
    if !in_child(name) {
        return;
    }
    for (kind, mount) in [("tmpfs", Mount::tmpfs(name, 16 * MIB)), ("ext4", Mount::ext4(name, 48 * MIB))] {
        let Some(mount) = mount else { continue };
        let open = |options: &OpenOptions| {
            let path = mount.path().join("data");
            std::fs::write(&path, [data(), vec![7; 8 * MIB as usize]].concat()).unwrap();
            let file = options.clone().buffered_fallback(true).open_blocking(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            file
        };
        let most = free_space(mount.path());
        assert_frees(kind, open, || free_space(mount.path()) + MIB > most);
    }
}

fn free_space(folder: &Path) -> u64 {
    // Blocks of ext4 are free once the journal says so.
    let folder = std::fs::File::open(folder).unwrap();
    folder.sync_all().unwrap();
    let free = rustix::fs::fstatvfs(&folder).unwrap();
    free.f_bfree * free.f_frsize
}
