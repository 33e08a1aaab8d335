//! A user other than root, with little memory that may be locked.

use std::os::unix::fs::PermissionsExt;

use crate::support::{installed, is_root, json, run, runs, skip, unprivileged};

#[test]
fn another_user_gets_results_and_advice() {
    if !is_root() || !installed("setpriv") || !installed("prlimit") {
        skip("another_user_gets_results_and_advice", "needs root, setpriv and prlimit");
        return;
    }
    // The path of the target folder may be closed to other users.
    let open = std::fs::Permissions::from_mode(0o777);
    let shared = tempfile::tempdir_in("/var/tmp").expect("a folder for everybody");
    std::fs::set_permissions(shared.path(), open).expect("permissions");
    let program = shared.path().join("ringfile");
    std::fs::copy(env!("CARGO_BIN_EXE_ringfile"), &program).expect("copy");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    for memlock in ["8388608", "65536"] {
        let out = shared.path().join(format!("{memlock}.json"));
        let config = shared.path().join(format!("{memlock}.toml"));
        let mut command = unprivileged(memlock, &program);
        command
            .args("perf buffers --size 16m --duration 30ms --warmup 5ms --rounds 3 --rw randread".split(' '));
        command.args("--bs 4k,32k --iodepth 1,16 --processes 1 --profile --json".split(' ')).arg(&out);
        command.arg("--emit-config").arg(&config).env("TMPDIR", shared.path());
        let finished = run(&mut command).ok();
        let results = json(&out);
        assert!(runs(&results).iter().all(|run| run["errors"] == 0 && run["ops"].as_u64() > Some(0)));
        assert!(ringfile::Config::load(&config).is_ok(), "{}", finished.stdout);
        assert!(finished.stdout.contains("Advice for"), "{}", finished.stdout);
    }
}
