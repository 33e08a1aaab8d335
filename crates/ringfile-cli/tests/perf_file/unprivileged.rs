//! A user other than root, with little memory that may be locked: everything works, with at most one warning.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{
    Finished, folder, installed, is_root, json, ring_is_forbidden, run, runs, skip, unprivileged,
};

fn run_as_nobody(memlock: &str, program: &Path, folder: &Path, out: &Path) -> Finished {
    let mut command = unprivileged(memlock, program);
    command.args("perf file --size 4m --duration 50ms --warmup 5ms --route ring".split(' '));
    command.args("--numjobs 1,2 --iodepth 1,16 --json".split(' ')).arg(out).arg("--file");
    run(command.arg(folder.join(format!("{memlock}.bin"))))
}

#[test]
fn small_memlock_limits_one_after_the_other() {
    if ring_is_forbidden() {
        skip("small_memlock_limits_one_after_the_other", "RINGFILE_BACKEND=workers forbids rings");
        return;
    }
    if !is_root() || !installed("setpriv") || !installed("prlimit") {
        skip("small_memlock_limits_one_after_the_other", "needs root, setpriv and prlimit");
        return;
    }
    let folder = folder();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("permissions");
    // The build folder may be closed to other users.
    let program = folder.path().join("ringfile");
    std::fs::copy(env!("CARGO_BIN_EXE_ringfile"), &program).expect("copy");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    for (memlock, registers) in [("8388608", true), ("65536", false)] {
        let out = folder.path().join(format!("{memlock}.json"));
        let finished = run_as_nobody(memlock, &program, folder.path(), &out).ok();
        assert!(finished.stderr.lines().count() <= 1, "{memlock}: {}", finished.stderr);
        let results = json(&out);
        assert_eq!(runs(&results).len(), 2 * 2 * 2 * 3);
        for run in runs(&results) {
            assert_eq!(run["errors"], 0, "{memlock}: {run}");
            assert!(run["ops"].as_u64() > Some(0), "{memlock}: {run}");
            if registers && run["buffers"] == "fixed" {
                assert_eq!(run["fixed_ops"], run["ops"], "{memlock}: {run}");
            }
        }
        if !registers {
            assert!(
                finished.stdout.contains("RLIMIT_MEMLOCK"),
                "the notes say that memory was not registered: {}",
                finished.stdout
            );
        }
    }
}
