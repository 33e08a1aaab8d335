//! `--verify`: correct content passes, and a changed byte is found.

use std::os::unix::fs::FileExt;

use crate::support::{
    disk_folder, end, folder, json, ringfile, runs, saved, skip_part, start, wait_for_thread,
};

#[test]
fn every_mode_passes() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    let arguments = "perf file --size 2m --duration 50ms --warmup 10ms --numjobs 2 --verify --iodepth 1,16 \
                     --rw randwrite,randread,randrw,write,read --against pread";
    for extra in ["", " --direct"] {
        let (finished, results) = saved(ringfile(&format!("{arguments}{extra} --file")).arg(&path));
        if finished.lacks_direct_io() {
            skip_part(" with --direct", format!("{} has none", path.display()));
            continue;
        }
        finished.ok();
        for run in runs(&results) {
            assert!(run["ops"].as_u64() > Some(0), "{run}");
            assert_eq!(run["errors"], 0, "{run}");
            if run["engine"] == "ringfile" && run["buffers"] == "fixed" {
                assert_eq!(run["fixed_ops"], run["route_ops"]["ring"], "{run}");
            }
        }
    }
}

#[test]
fn a_changed_byte_is_found() {
    for (engine, against) in [("ringfile", ""), ("pread", "--against pread ")] {
        let folder = folder();
        let (path, out) = (folder.path().join("data.bin"), folder.path().join("out.json"));
        let arguments =
            "--size 256k --duration 2s --warmup 0s --numjobs 1 --iodepth 1 --rw randread --buffers normal";
        std::fs::write(&path, vec![0; 256 << 10]).expect("write");
        let mut command = ringfile(&format!("perf file {arguments} --verify --overwrite {against}--file"));
        let child = start(command.arg(&path).arg("--json").arg(&out));
        // The file is complete and the run has started: bytes that are changed from here on stay changed.
        wait_for_thread(child.id(), &format!("{engine}-0"));
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        for block in 0..64 {
            file.write_all_at(b"x", block * 4096 + 2000).expect("write");
        }
        end(child).fails_with(1, &[&*path.to_string_lossy(), "offset", "checksum"]);
        let results = json(&out);
        let last = runs(&results).last().expect("the run that failed");
        assert_eq!(last["engine"], engine);
        assert!(last["errors"].as_u64() > Some(0), "{last}");
    }
}
