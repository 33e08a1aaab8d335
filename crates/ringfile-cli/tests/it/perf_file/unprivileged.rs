//! A user other than root, with little memory that may be locked: everything works, with at most one warning.

use crate::support::{
    for_other_users, has_the_machine, json, ring_is_forbidden, run, runs, skip, unprivileged,
};

#[test]
fn small_memlock_limits_one_after_the_other() {
    if ring_is_forbidden() {
        return skip("RINGFILE_DISABLE=io_uring,aio forbids rings");
    }
    let Some((folder, program)) = for_other_users() else { return };
    let arguments = "perf file --tables --size 4m --duration 50ms --warmup 5ms --route ring --numjobs 1,2 --iodepth 1,16 --file";
    for (memlock, registers) in [("8388608", true), ("65536", false)] {
        if !registers && !has_the_machine() {
            return;
        }
        let file = folder.path().join(format!("{memlock}.bin"));
        let out = folder.path().join(format!("{memlock}.json"));
        let mut command = unprivileged(memlock, &program, arguments);
        let finished = run(command.arg(file).arg("--json").arg(&out)).ok();
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
            // The notes say that memory was not registered.
            finished.says(&["RLIMIT_MEMLOCK"]);
        }
    }
}

#[test]
fn mixed_reads_without_a_control_group_have_a_note() {
    let Some((folder, program)) = for_other_users() else { return };
    let arguments =
        "perf file --cache mixed --quiet --size 256m --bs 64k --duration 30ms --warmup 1ms --file";
    let mut command = unprivileged("8388608", &program, arguments);
    let out = folder.path().join("out.json");
    let finished = run(command.arg(folder.path().join("mixed.bin")).arg("--json").arg(&out));
    if finished.stderr.contains("can't be read adaptively") {
        return skip(finished.stderr);
    }
    finished.ok();
    let notes = json(&out)["notes"].to_string();
    assert!(notes.contains("memory was not limited") && !notes.contains("a quarter"), "{notes}");
}
