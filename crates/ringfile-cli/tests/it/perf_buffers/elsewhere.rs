//! A user other than root, with little memory that may be locked.

use crate::support::{for_other_users, has_the_machine, json, run, runs, unprivileged};

#[test]
fn another_user_gets_results_and_advice() {
    let Some((shared, program)) = for_other_users() else { return };
    let arguments = "perf buffers --size 16m --duration 30ms --warmup 5ms --rounds 3 --rw randread --bs 4k,32k \
                     --iodepth 1,16 --numjobs 1";
    // Profiles take three times as long as all the rest.
    for (memlock, more) in [("8388608", "--profile --json"), ("65536", "--json")] {
        if memlock == "65536" && !has_the_machine() {
            return;
        }
        let out = shared.path().join(format!("{memlock}.json"));
        let config = shared.path().join(format!("{memlock}.toml"));
        let mut command = unprivileged(memlock, &program, &format!("{arguments} {more}"));
        command.arg(&out).arg("--emit-config").arg(&config).env("TMPDIR", shared.path());
        let finished = run(&mut command).ok();
        let results = json(&out);
        assert!(runs(&results).iter().all(|run| run["errors"] == 0 && run["ops"].as_u64() > Some(0)));
        assert!(ringfile::Config::load(&config).is_ok(), "{}", finished.stdout);
        finished.says(&["Advice for"]);
    }
}
