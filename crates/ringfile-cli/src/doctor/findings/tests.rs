//! The judgement on facts as machines have them.

use super::super::report::Severity;
use super::*;
use crate::doctor::device::{Backing, Device, DeviceKind, Queue};
use crate::doctor::direct::Direct;
use crate::doctor::durable::{Durable, DurableWay};
use crate::doctor::features::Feature;
use crate::doctor::file::{self, FileFacts};
use crate::doctor::flags::NonBlocking;
use crate::doctor::place::Medium;
use crate::doctor::process::{Aio, Cgroup, IoLimit, Limit, MachineMemory, Memlock, Process};

const MIB: u64 = 1 << 20;

fn durable(way: DurableWay, median: f64) -> Durable {
    Durable { way, median_us: median, least_us: median * 0.9, most_us: median * 1.1, rounds: 9 }
}

/// Returns a machine that nothing is wrong with: xfs on an NVMe drive.
fn healthy() -> Report {
    let queue = Queue {
        scheduler: Some("none".into()),
        requests: Some(1023),
        hardware_queues: Some(8),
        polling: Some(true),
        write_cache: Some("write through".into()),
        fua: Some(false),
        rotational: Some(false),
        logical_block: Some(512),
        physical_block: Some(512),
        max_sectors_kb: Some(1280),
        read_ahead_kb: Some(128),
        ..Queue::default()
    };
    Report {
        schema: 1,
        kernel: Some("6.18.0".into()),
        features: vec![Feature { name: "defer_taskrun".into(), usable: Some(true), why: "tried".into() }],
        process: Process {
            user: Some(1000),
            cpus: 8,
            memlock: Memlock {
                limit: Limit::default(),
                applies: Some(true),
                registered: Some(16 * MIB),
                tried: 16 * MIB,
            },
            io_uring_disabled: Some(0),
            seccomp: Some("off".into()),
            open_files: Limit { soft: Some(65536), hard: Some(65536) },
            memory: MachineMemory {
                total: Some(1000 * MIB),
                available: Some(900 * MIB),
                ..MachineMemory::default()
            },
            ..Process::default()
        },
        file: FileFacts {
            path: "/data".into(),
            kind: Some(file::PathKind::Folder),
            answered: true,
            filesystem: Some("xfs".into()),
            medium: Medium::Disk,
            mount_point: Some("/data".into()),
            options: vec!["rw".into(), "relatime".into()],
            space_total: Some(1000 * MIB),
            space_available: Some(500 * MIB),
            direct: Some(Direct {
                usable: true,
                offset_alignment: Some(512),
                past_cache: Some(true),
                read_us: Some(60.0),
                ..Direct::default()
            }),
            nonblocking: NonBlocking {
                buffered_reads: Some(true),
                buffered_writes: Some(true),
                direct_reads: Some(true),
                direct_writes: Some(true),
            },
            durable: vec![durable(DurableWay::Dsync, 30.0), durable(DurableWay::WriteFdatasync, 31.0)],
            ..FileFacts::default()
        },
        device: Some(Device {
            number: "259:0".into(),
            name: "nvme0n1".into(),
            bus: Some("nvme".into()),
            queue,
            ..Device::default()
        }),
        findings: Vec::new(),
    }
}

/// What is found beyond the healthy machine.
fn found(change: impl FnOnce(&mut Report)) -> Vec<Finding> {
    let mut report = healthy();
    change(&mut report);
    of(&report).into_iter().filter(|finding| finding.severity != Severity::Fine).collect()
}

/// Returns the one finding there is.
#[track_caller]
fn only(change: impl FnOnce(&mut Report)) -> Finding {
    let mut all = found(change);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

fn disk(report: &mut Report) -> &mut Device {
    report.device.as_mut().expect("there is one")
}

#[test]
fn a_healthy_machine_has_nothing_to_do() {
    assert_eq!(found(|_| {}), []);
    let fine = of(&healthy());
    assert!(!fine.is_empty() && fine.iter().all(|finding| finding.fix == "nothing to do"), "{fine:#?}");
}

#[test]
fn unknown_facts_give_no_finding() {
    let nothing = Report {
        file: FileFacts { kind: Some(file::PathKind::Folder), answered: true, ..FileFacts::default() },
        device: Some(Device::default()),
        ..Report::default()
    };
    assert_eq!(of(&nothing), []);
}

#[test]
fn the_most_costly_finding_comes_first() {
    let all = found(|report| {
        disk(report).queue.scheduler = Some("bfq".into());
        report.process.io_uring_errno = Some(libc::EPERM);
        report.process.io_uring_disabled = Some(2);
        report.file.options.push("sync".into());
    });
    let titles: Vec<&str> = all.iter().map(|finding| finding.title.as_str()).collect();
    assert_eq!(titles, ["io_uring can't be used", "Mounted with sync", "nvme0n1 has an I/O scheduler"]);
    assert!(all.is_sorted_by_key(|finding| finding.severity));
}

#[test]
fn the_cause_that_forbids_io_uring_is_named() {
    let of = |errno, disabled, seccomp: &str| {
        only(|report| {
            report.process.io_uring_errno = Some(errno);
            report.process.io_uring_disabled = disabled;
            report.process.seccomp = Some(seccomp.into());
        })
    };
    let finding = of(libc::EPERM, Some(2), "filter");
    assert!(
        finding.severity == Severity::Costly && finding.fix.contains("sysctl -w kernel.io_uring_disabled=0")
    );
    assert!(of(libc::EPERM, Some(1), "off").detail.contains("io_uring_group"));
    assert!(of(libc::EPERM, Some(0), "filter").fix.contains("seccomp"));
    assert!(of(libc::ENOSYS, None, "filter").fix.contains("seccomp"));
    assert!(of(libc::ENOSYS, None, "off").fix.contains("Linux 5.6"));
    assert!(of(libc::ENOMEM, Some(0), "off").fix.contains("ulimit -l"));
}

#[test]
fn the_way_of_direct_io() {
    let of = |ring: Option<i32>, aio: Option<i32>, backend: Option<&str>| {
        let mut report = healthy();
        report.process.io_uring_errno = ring;
        report.process.aio = Some(Aio { errno: aio, used: Some(512), limit: Some(65536) });
        report.process.backend = backend.map(Into::into);
        let direct = |finding: &Finding| finding.title.starts_with("Direct I/O goes");
        super::of(&report).into_iter().find(direct).expect("it is said")
    };
    let ring = of(None, None, None);
    assert!(ring.title.ends_with("io_uring") && ring.detail.contains("512 of 65536"), "{ring:?}");
    for (errno, backend) in [(Some(libc::EPERM), None), (None, Some("io_uring"))] {
        let aio = of(errno, None, backend);
        assert!(aio.title.ends_with("Linux AIO") && aio.severity == Severity::Fine, "{aio:?}");
    }
    let used_up = of(Some(libc::EPERM), Some(libc::EAGAIN), None);
    assert!(
        used_up.title.ends_with("worker threads") && used_up.fix.contains("fs.aio-max-nr"),
        "{used_up:?}"
    );
    assert!(of(Some(libc::EPERM), Some(libc::EPERM), None).fix.contains("seccomp"));
    assert!(
        of(Some(libc::EPERM), None, Some("io_uring,aio")).detail.contains("RINGFILE_DISABLE=io_uring,aio")
    );
}

#[test]
fn limits_of_the_process() {
    let memlock = |soft, hard, registered| {
        only(|report| {
            report.process.memlock.limit = Limit { soft: Some(soft), hard: Some(hard) };
            report.process.memlock.registered = Some(registered);
        })
    };
    let small = memlock(65536, 65536, 32768);
    assert!(small.detail.contains("64 KiB") && small.detail.contains("first region"), "{}", small.detail);
    assert!(small.fix.contains("LimitMEMLOCK"), "{}", small.fix);
    assert!(memlock(65536, 8 * MIB, 32768).fix.starts_with("`ulimit -l 8192`"));
    assert!(memlock(8 * MIB, 8 * MIB, 4 * MIB).detail.contains("4 MiB"));
    let files = only(|report| report.process.open_files = Limit { soft: Some(256), hard: Some(4096) });
    assert!(files.fix.contains("ulimit -n 4096"), "{}", files.fix);
    let workers = only(|report| report.process.processes.soft = Some(20));
    assert!(workers.detail.contains("RLIMIT_NPROC is 20"));
    let backend = only(|report| report.process.backend = Some("io_uring,aio".into()));
    assert!(backend.fix.contains("RINGFILE_DISABLE"));
    let backend = only(|report| report.process.backend = Some("io_uring".into()));
    assert!(backend.detail.contains("Linux AIO carries direct I/O"), "{}", backend.detail);
    let backend = only(|report| report.process.backend = Some("worker".into()));
    assert!(backend.detail.contains("RINGFILE_DISABLE=worker is ignored"), "{}", backend.detail);
    let missing = only(|report| report.features[0].usable = Some(false));
    assert!(missing.detail.contains("defer_taskrun"), "{}", missing.detail);
    let mut report = healthy();
    report.features.push(Feature { name: "rwf_dsync".into(), usable: None, why: "not tried".into() });
    let counted = |finding: &Finding| finding.detail.starts_with("1 features work, 1 are not known");
    assert!(of(&report).iter().any(counted), "{:#?}", of(&report));
}

#[test]
fn control_groups_and_memory() {
    let group = only(|report| report.process.cgroup = Cgroup { cpus: Some(0.5), ..Cgroup::default() });
    assert!(group.detail.contains("0.5 cores of 8"), "{}", group.detail);
    let io = |device: &str| {
        let limit = IoLimit { device: device.into(), what: "wiops".into(), limit: 120 };
        found(|report| report.process.cgroup.io.push(limit))
    };
    assert!(io("259:0")[0].detail.contains("120 operations a second"));
    assert_eq!(io("8:0"), [], "another disk's limit is nothing to this file");
    let short = only(|report| report.process.memory.available = Some(10 * MIB));
    assert!(short.severity == Severity::Costly && short.detail.contains("10 MiB"));
    let swapped = only(|report| {
        report.process.memory.swap_total = Some(500 * MIB);
        report.process.memory.swap_free = Some(100 * MIB);
    });
    assert!(swapped.detail.contains("400 MiB"), "{}", swapped.detail);
    assert!(only(|report| report.process.memory.huge_pages = Some("never".into())).fix.contains("madvise"));
}

#[test]
fn file_systems_that_are_no_disk() {
    let of = |name: &str, medium: Medium| {
        only(|report| {
            report.file.filesystem = Some(name.into());
            report.file.medium = medium;
            report.device = None;
            // One finding covers all of these.
            report.file.nonblocking.buffered_reads = Some(false);
            report.file.nonblocking.buffered_writes = Some(false);
        })
    };
    assert!(of("overlay", Medium::Overlay).fix.contains("volume"));
    assert!(of("tmpfs", Medium::Memory).severity == Severity::Notable);
    assert!(of("nfs4", Medium::Network).title.contains("another machine"));
    assert!(of("fuse.x", Medium::Fuse).detail.contains("fuse.x"));
    assert!(of("proc", Medium::Kernel).fix.contains("your program"));
}

#[test]
fn refusals_of_a_file_system() {
    let writes = only(|report| report.file.nonblocking.buffered_writes = Some(false));
    assert!(writes.severity == Severity::Notable && writes.detail.contains("RWF_NOWAIT"));
    assert!(only(|report| report.file.nonblocking.buffered_reads = Some(false)).title.contains("reads"));
    assert!(
        only(|report| report.file.nonblocking.direct_reads = Some(false)).title.contains("kernel threads")
    );
    let refused = only(|report| {
        report.file.direct = Some(Direct {
            why: "opening with O_DIRECT: Invalid argument (errno 22)".into(),
            ..Direct::default()
        });
    });
    assert!(refused.detail.contains("errno 22"), "{}", refused.detail);
    let cached = only(|report| report.file.direct.as_mut().expect("it is there").past_cache = Some(false));
    assert!(cached.severity == Severity::Costly && cached.title.contains("not done"));
    let silent = found(|report| {
        report.file.answered = false;
        report.file.stage = "durable writes".into();
    });
    assert!(silent[0].fix.starts_with("try again: it may just be busy"), "{silent:#?}");
    assert!(silent[0].title.contains("500 ms") && silent[0].detail.contains("durable writes"), "{silent:#?}");
}

#[test]
fn the_time_of_durable_writes() {
    let of = |all: Vec<Durable>| only(|report| report.file.durable = all);
    let slow = of(vec![durable(DurableWay::Dsync, 12_000.0)]);
    assert!(slow.severity == Severity::Costly && slow.title.contains("12 ms"), "{slow:#?}");
    assert!(of(vec![durable(DurableWay::Dsync, 2_000.0)]).title.contains("2.0 ms"));
    assert!(of(vec![durable(DurableWay::Dsync, 2.0)]).title.contains("too quick"));
    let clear = of(vec![durable(DurableWay::Dsync, 30.0), durable(DurableWay::WriteFdatasync, 90.0)]);
    assert!(clear.fix.contains("Durability::Dsync") && clear.detail.contains("90 µs"), "{clear:#?}");
    let noise = vec![
        Durable { most_us: 900.0, ..durable(DurableWay::Dsync, 30.0) },
        Durable { least_us: 29.0, ..durable(DurableWay::WriteFdatasync, 90.0) },
    ];
    assert_eq!(found(|report| report.file.durable = noise), [], "rounds that overlap claim nothing");
}

#[test]
fn the_state_of_file_and_mount() {
    let full = |available| only(|report| report.file.space_available = Some(available));
    assert!(full(10 * MIB).severity == Severity::Costly && full(50 * MIB).severity == Severity::Notable);
    assert!(only(|report| report.file.size = Some(1000)).detail.contains("512"));
    for (option, part) in [
        ("sync", "async"),
        ("dirsync", "nodirsync"),
        ("data=journal", "data=ordered"),
        ("nobarrier", "barrier=1"),
        ("discard", "fstrim"),
        ("strictatime", "relatime"),
    ] {
        let finding = only(|report| report.file.options.push(option.into()));
        assert!(finding.fix.contains(part), "{option}: {finding:#?}");
    }
    let btrfs = found(|report| report.file.filesystem = Some("btrfs".into()));
    assert!(btrfs.iter().any(|finding| finding.fix.contains("chattr +C /data")), "{btrfs:#?}");
    let compressed = only(|report| report.file.attributes = vec!["compressed".into()]);
    assert_eq!(compressed.severity, Severity::Costly);
    assert!(only(|report| report.file.attributes = vec!["encrypted".into()]).detail.contains("fscrypt"));
}

#[test]
fn a_drive_that_takes_commands() {
    let says = |features: &[(&str, bool)]| {
        let mut report = healthy();
        disk(&mut report).passthrough = Some("/dev/ng0n1".into());
        let feature = |&(name, usable): &(&str, bool)| Feature::new(name, Some(usable), "tried".into());
        report.features.extend(features.iter().map(feature));
        of(&report).into_iter().find(|finding| finding.title.contains("NVMe commands"))
    };
    let said = says(&[("large_entries", true), ("op_uring_cmd", true)]).expect("it says so");
    assert!(said.severity == Severity::Fine && said.detail.contains("/dev/ng0n1"), "{said:#?}");
    assert!(says(&[("large_entries", false), ("op_uring_cmd", true)]).is_none());
    assert!(says(&[]).is_none());
}

#[test]
fn disks() {
    let spinning = only(|report| {
        disk(report).queue.rotational = Some(true);
        report.file.direct.as_mut().expect("it is there").read_us = Some(9000.0);
    });
    assert!(spinning.severity == Severity::Costly && spinning.title.contains("spinning"));
    let claims = only(|report| {
        disk(report).queue.rotational = Some(true);
        report.process.virtual_machine = Some(true);
    });
    assert!(claims.severity == Severity::Notable && claims.detail.contains("60 µs"), "{claims:#?}");
    let scheduler = only(|report| disk(report).queue.scheduler = Some("mq-deadline".into()));
    assert!(scheduler.fix.contains("echo none > /sys/block/nvme0n1/queue/scheduler"));
    assert!(only(|report| disk(report).queue.requests = Some(32)).fix.contains("nr_requests"));
    assert!(only(|report| disk(report).queue.depth = Some(1)).detail.contains("queue_depth is 1"));
    assert!(only(|report| disk(report).queue.polling = Some(false)).fix.contains("nvme.poll_queues"));
    assert!(only(|report| disk(report).queue.read_ahead_kb = Some(8192)).detail.starts_with("8 MiB"));
    assert!(only(|report| disk(report).queue.physical_block = Some(4096)).fix.contains("4096"));
    assert!(only(|report| disk(report).queue.max_sectors_kb = Some(64)).detail.contains("64 KiB"));
    assert!(only(|report| disk(report).bus = Some("usb".into())).severity == Severity::Costly);
    let queues = only(|report| {
        disk(report).bus = Some("virtio".into());
        disk(report).queue.hardware_queues = Some(1);
    });
    assert!(queues.detail.contains("1 for 8 cores"), "{queues:#?}");
}

#[test]
fn layers_over_disks() {
    let over = |device: Device| {
        only(|report| {
            let below = report.device.take().into_iter().collect();
            report.device = Some(Device { below, ..device });
        })
    };
    let layer = |kind, model: &str| {
        let (name, number, model) = ("x0".into(), "7:0".into(), Some(model.into()));
        over(Device { name, number, kind, model, ..Device::default() })
    };
    assert!(layer(DeviceKind::Crypt, "root").fix.contains("cryptsetup refresh"));
    assert!(layer(DeviceKind::Md, "raid6").title.contains("parity"));
    assert!(layer(DeviceKind::Zram, "x").severity == Severity::Notable);
    let memory = only(|report| {
        disk(report).kind = DeviceKind::Zram;
        report.file.nonblocking.buffered_reads = Some(false);
        report.file.nonblocking.direct_reads = Some(false);
    });
    assert!(memory.title.contains("compressed memory"), "it says all that there is to say: {memory:#?}");
    assert!(layer(DeviceKind::Network, "x").severity == Severity::Costly);
    let looped = |direct, filesystem: &str| {
        let (path, filesystem) = ("/image".into(), Some(filesystem.into()));
        let backing = Some(Backing { path, filesystem, direct: Some(direct) });
        over(Device { name: "loop0".into(), kind: DeviceKind::Loop, backing, ..Device::default() })
    };
    assert!(looped(false, "ext4").fix.contains("losetup --direct-io=on /dev/loop0"));
    assert!(looped(true, "ext4").severity == Severity::Notable);
    assert!(looped(false, "tmpfs").title.contains("in memory"));
}

#[test]
fn times_are_short() {
    assert_eq!([1.24, 79.3, 1234.0, 12_345.0].map(time), ["1.2 µs", "79 µs", "1.2 ms", "12 ms"]);
}
