//! Input that cannot be carried out: one line that says what to do, exit code 2, and no change to any file.

use super::{brief, direct, perf_pool, short};
use crate::support::{disk_folder, files_in, folder, ringfile, run};

#[test]
fn values_that_make_no_sense() {
    let folder = disk_folder();
    for (arguments, advice) in [
        ("--rate-limit 0", "500MB"),
        ("--rate-limit 9t", "at most 1t"),
        ("--rate-limit 99999999999999999999", "500MB"),
        ("--rate-limit fast", "500MB"),
        ("--rate-limit 1", "raise it"),
        ("--producers 0", "1 to 256"),
        ("--consumers 999", "0 to 256"),
        ("--producers 2000", "1 to 256"),
        ("--message-size 8", "from 32 bytes"),
        ("--message-size 2m", "from 32 bytes"),
        ("--message-size 1000 --bs 4k", "cannot be used with"),
        ("--message-size 1000 --memory malloc", "pool,pool-buffered,vec"),
        ("--batch 0", "1 to 4096"),
        ("--batch 5000", "1 to 4096"),
        ("--bs 0", "at least 1"),
        ("--bs 1000", "multiples of 512"),
        ("--bs 15e", "smaller blocks"),
        ("--bs 1g --batch 4096", "smaller blocks"),
        ("--size 100k", "use --size"),
        ("--size 8e --memory vec", "smaller --size"),
        ("--memory tape", "choose from pool, pool-buffered, malloc, vec, vec-uncached"),
        ("--memory pool,", "missing"),
        ("--duration 0s", "1ms"),
        ("--rounds 0", "1 to 1000"),
    ] {
        run(&mut perf_pool(folder.path(), arguments)).fails_with(2, &[advice]);
    }
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn folders_that_can_not_be_used() {
    let folder = folder();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").expect("write");
    for (path, advice) in [
        (folder.path().join("missing").as_path(), "name another --folder"),
        (file.as_path(), "is no folder"),
        (std::path::Path::new("/proc"), "name another --folder"),
    ] {
        for memory in ["pool", "vec"] {
            run(&mut short(path, &format!("--memory {memory}")))
                .fails_with(2, &[advice, &*path.to_string_lossy()]);
        }
    }
    assert_eq!(std::fs::read(&file).expect("still there"), b"mine");
}

#[test]
fn memory_has_no_direct_io() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("temporary folder");
    run(&mut short(folder.path(), "")).fails_with(2, &["--memory vec", "--folder"]);
    run(&mut short(folder.path(), "--memory vec,vec-uncached"))
        .fails_with(2, &["RWF_DONTCACHE", "leave vec-uncached out"]);
    run(&mut short(folder.path(), "--memory vec")).ok();
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn blocks_that_direct_io_does_not_take() {
    let folder = disk_folder();
    // Only devices with blocks of 4 KiB refuse these.
    let finished = run(&mut brief(folder.path(), "--bs 512 --size 8m --memory malloc"));
    match finished.code {
        Some(2) => assert!(direct(folder.path()).is_err() || finished.stderr.contains("multiples of")),
        _ => drop(finished.ok()),
    }
}

#[test]
fn the_folder_for_temporary_files_is_the_default_one() {
    run(ringfile("perf pool").env("TMPDIR", "/no/such/folder"))
        .fails_with(2, &["/no/such/folder", "--folder"]);
}

#[test]
fn results_that_exist_stay() {
    let (folder, results) = (folder(), folder());
    let out = results.path().join("out.json");
    std::fs::write(&out, "mine").expect("write");
    run(short(folder.path(), "--memory vec").arg("--json").arg(&out)).fails_with(2, &["--force"]);
    assert_eq!(std::fs::read(&out).expect("still there"), b"mine");
}
