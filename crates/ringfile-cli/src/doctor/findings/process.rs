//! Findings about the process: bans, limits, memory, missing features of the kernel.

use super::Finding;
use crate::doctor::Report;
use crate::doctor::process::{Limit, Process};
use crate::values::Bytes;

/// The first region of a pool, which is registered as a whole.
const FIRST_REGION: u64 = 2 << 20;

/// Below this limit, databases run out of descriptors.
const FEW_FILES: u64 = 1024;

pub fn of(report: &Report) -> Vec<Finding> {
    let process = &report.process;
    let found = [
        ring(report),
        backend(process),
        variables(process),
        direct(process),
        memlock(process),
        features(report),
        workers(process),
        open_files(&process.open_files),
        cpu(process),
        cgroup_memory(process),
        memory(process),
        huge_pages(process),
    ];
    found.into_iter().flatten().collect()
}

fn ring(report: &Report) -> Option<Finding> {
    let process = &report.process;
    if process.io_uring_kills {
        let detail =
            "a seccomp filter answers io_uring_setup with SIGSYS, so a program that uses ringfile is killed";
        let fix = "`export RINGFILE_DISABLE=io_uring,aio`, or allow it: SystemCallFilter=io_uring_setup \
            io_uring_enter io_uring_register in the systemd unit";
        return Some(Finding::costly(1000, "Programs that use io_uring are killed", detail, fix));
    }
    let errno = process.io_uring_errno?;
    let title = "io_uring can't be used";
    let cost = match &process.aio {
        Some(aio) if aio.errno.is_none() => {
            "Linux AIO carries direct I/O; worker threads do everything else with plain calls"
        }
        _ => "worker threads do everything with plain calls: one thread for each operation in flight",
    };
    let refused = std::io::Error::from_raw_os_error(errno);
    let detail = |why: &str| format!("io_uring_setup: {}; {why}; {cost}", crate::error::errno_text(&refused));
    let finding = |why: &str, fix: String| Some(Finding::costly(1000, title, detail(why), fix));
    let allow = "as root: `sysctl -w kernel.io_uring_disabled=0`";
    match (errno, process.io_uring_disabled) {
        (libc::EPERM, Some(2)) => finding("kernel.io_uring_disabled is 2: nobody may use it", allow.into()),
        (libc::EPERM, Some(1)) => {
            let fix = match process.io_uring_group.filter(|&group| group >= 0) {
                Some(group) => format!("add this user to the group {group}, or {allow}"),
                None => format!("{allow}, or `sysctl -w kernel.io_uring_group=GID` for a group"),
            };
            let who = "only root and the members of kernel.io_uring_group may use it";
            finding(&format!("kernel.io_uring_disabled is 1: {who}"), fix)
        }
        _ if process.seccomp.as_deref() == Some("filter") => finding(
            "this process has a seccomp filter, as container engines install",
            "allow io_uring_setup, io_uring_enter and io_uring_register in the profile (`docker run \
             --security-opt seccomp=PROFILE.json`)"
                .into(),
        ),
        (libc::ENOSYS, _) => {
            finding("this kernel does not have it", "use Linux 5.6 or newer, with CONFIG_IO_URING=y".into())
        }
        (libc::ENOMEM, _) => finding(
            "RLIMIT_MEMLOCK has no room for a ring",
            "`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the systemd unit".into(),
        ),
        (libc::EMFILE | libc::ENFILE, _) => finding("too many files are open", "`ulimit -n 65536`".into()),
        _ => finding("a security module may forbid it", "ask whoever set up this machine".into()),
    }
}

fn backend(process: &Process) -> Option<Finding> {
    let fix = "`unset RINGFILE_DISABLE`";
    let detail = match process.backend.as_deref()? {
        "io_uring,aio" => "RINGFILE_DISABLE=io_uring,aio: worker threads do everything with plain calls",
        "io_uring" => {
            "RINGFILE_DISABLE=io_uring: Linux AIO carries direct I/O, worker threads do everything else"
        }
        other => {
            let detail = format!(
                "RINGFILE_DISABLE={} is ignored: it can be io_uring, io_uring,aio or empty",
                other.escape_debug()
            );
            return Some(Finding::notable(90, "A setting of the environment has no effect", detail, fix));
        }
    };
    Some(Finding::costly(900, "The environment forbids ringfile to use io_uring", detail, fix))
}

fn variables(process: &Process) -> Option<Finding> {
    let title = "Settings of the environment are wrong";
    let fix = "correct or unset them; programs read them by `Config::load`, `Config::from_env` and `Config::with_env`";
    let wrong = &process.wrong_variables;
    (!wrong.is_empty()).then(|| Finding::notable(90, title, wrong.join("; "), fix))
}

/// Returns a finding that says which route direct I/O takes, and why.
fn direct(process: &Process) -> Option<Finding> {
    let aio = process.aio.as_ref()?;
    let known = |number: Option<i64>| number.map_or("?".into(), |number| number.to_string());
    let room = format!("fs.aio-nr is {} of {}", known(aio.used), known(aio.limit));
    let backend = process.backend.as_deref();
    let ring_is_out = process.io_uring_errno.is_some() || backend == Some("io_uring");
    let (title, detail) = match aio.errno {
        _ if backend == Some("io_uring,aio") => {
            ("to worker threads", "RINGFILE_DISABLE=io_uring,aio forbids io_uring and Linux AIO".into())
        }
        None if ring_is_out => {
            ("through Linux AIO", format!("io_uring can't be used, io_setup and io_submit can; {room}"))
        }
        Some(errno) if ring_is_out => {
            let fix = match errno {
                libc::EAGAIN => "as root: `sysctl -w fs.aio-max-nr=1048576`",
                libc::ENOSYS => "a kernel with CONFIG_AIO=y, or io_uring",
                _ => "allow io_setup, io_submit, io_getevents and io_destroy in the seccomp profile",
            };
            let refused = crate::error::errno_text(&std::io::Error::from_raw_os_error(errno));
            let detail = format!("io_uring can't be used, nor can Linux AIO: {refused}; {room}");
            return Some(Finding::notable(50, "Direct I/O goes to worker threads", detail, fix));
        }
        None => ("through io_uring", format!("Linux AIO could replace it; {room}")),
        Some(_) => ("through io_uring", "Linux AIO could not replace it, worker threads would".into()),
    };
    Some(Finding::fine(format!("Direct I/O goes {title}"), detail))
}

fn memlock(process: &Process) -> Option<Finding> {
    let memlock = &process.memlock;
    let registered = memlock.registered?;
    if registered >= memlock.tried {
        let held = match (memlock.applies, memlock.limit.soft) {
            (Some(false), _) => "this process has CAP_IPC_LOCK, so RLIMIT_MEMLOCK does not apply".to_string(),
            (_, Some(soft)) => format!("RLIMIT_MEMLOCK is {}", Bytes(soft)),
            (_, None) => "RLIMIT_MEMLOCK is unlimited".into(),
        };
        let detail = format!("{} at once in a trial; {held}", Bytes(registered));
        return Some(Finding::fine("Memory can be registered with the kernel", detail));
    }
    let soft = memlock.limit.soft.map_or("unknown".into(), |soft| Bytes(soft).to_string());
    let hard = memlock.limit.hard;
    let lost = if registered < FIRST_REGION {
        "a pool's first region is 2 MiB, so no I/O uses registered memory, and rings are smaller"
    } else {
        "regions of a pool beyond that are not registered"
    };
    let detail = format!(
        "RLIMIT_MEMLOCK is {soft} for this user; {} could be registered at once, of {} tried: {lost}",
        Bytes(registered),
        Bytes(memlock.tried)
    );
    let fix = match hard {
        Some(hard) if memlock.limit.soft < Some(hard) => {
            format!("`ulimit -l {}`; more: LimitMEMLOCK=infinity in the systemd unit", hard / 1024)
        }
        _ => "as root: `prlimit --memlock=unlimited --pid PID`, LimitMEMLOCK=infinity in the systemd \
              unit, or `docker run --ulimit memlock=-1`"
            .into(),
    };
    Some(Finding::notable(
        if registered < FIRST_REGION { 20 } else { 10 },
        "Little memory can be registered",
        detail,
        fix,
    ))
}

/// Returns a finding about the features that the kernel lacks.
fn features(report: &Report) -> Option<Finding> {
    if report.process.io_uring_errno.is_some() || report.process.io_uring_kills {
        return None;
    }
    // Features that depend on the file have findings of their own.
    let of_kernel = || {
        report.features.iter().filter(|feature| !feature.name.starts_with("rwf_") && feature.name != "iopoll")
    };
    let missing: Vec<&str> = of_kernel()
        .filter(|feature| feature.usable == Some(false))
        .map(|feature| feature.name.as_str())
        .collect();
    let kernel = report.kernel.as_deref().unwrap_or("unknown");
    if missing.is_empty() {
        let usable = of_kernel().filter(|feature| feature.usable == Some(true)).count();
        let unknown = report.features.iter().filter(|feature| feature.usable.is_none()).count();
        return (usable > 0).then(|| {
            let others = if unknown > 0 { format!(", {unknown} are not known") } else { String::new() };
            let title = "This kernel's io_uring has what ringfile uses";
            let detail = format!("{usable} features work{others}; Linux {kernel}");
            Finding::fine(title, detail)
        });
    }
    let dear =
        missing.iter().any(|name| ["defer_taskrun", "registered_buffers", "readv_fixed"].contains(name));
    let detail =
        format!("Linux {kernel} lacks {}; the end of this report says what each costs", missing.join(", "));
    Some(Finding::notable(
        if dear { 15 } else { 5 },
        "Parts of io_uring are missing",
        detail,
        "a newer kernel: 6.1 has most, 6.15 all",
    ))
}

fn workers(process: &Process) -> Option<Finding> {
    let room = process.processes.soft.filter(|_| process.user != Some(0))?;
    (room < 64).then(|| {
        let detail = format!(
            "RLIMIT_NPROC is {room}, and operations that io_uring can't do without blocking need threads \
             that count against it"
        );
        let fix = "`ulimit -u 4096`, or TasksMax= and LimitNPROC= in the systemd unit";
        Finding::notable(8, "This user may have few kernel threads", detail, fix)
    })
}

fn open_files(limit: &Limit) -> Option<Finding> {
    let soft = limit.soft.filter(|&soft| soft < FEW_FILES)?;
    let fix = match limit.hard {
        Some(hard) if hard <= soft => {
            "LimitNOFILE=65536 in the systemd unit, or docker run --ulimit nofile=65536".into()
        }
        Some(hard) => format!("`ulimit -n {}`", hard.min(65536)),
        None => "`ulimit -n 65536`".to_string(),
    };
    let detail = format!("RLIMIT_NOFILE is {soft}; each file takes two, each ring one");
    Some(Finding::notable(3, "Few files can be open", detail, fix))
}

fn cpu(process: &Process) -> Option<Finding> {
    let cpus = process.cgroup.cpus.filter(|&cpus| cpus < process.cpus as f64)?;
    let detail = format!(
        "to {cpus:.1} cores of {}; beyond that, threads stop for up to 100 ms at a time, which shows as latency",
        process.cpus
    );
    let fix = "raise cpu.max of the group (docker run --cpus, resources.limits.cpu in Kubernetes)";
    Some(Finding::notable(18, "A control group limits CPU time", detail, fix))
}

fn cgroup_memory(process: &Process) -> Option<Finding> {
    let memory =
        process.cgroup.memory.filter(|&memory| process.memory.total.is_none_or(|total| memory < total))?;
    let detail = format!("to {}, page cache included: cached files are evicted first", Bytes(memory));
    let fix = "raise memory.max of the group, or use direct I/O and a pool that fits";
    Some(Finding::notable(6, "A control group limits memory", detail, fix))
}

fn memory(process: &Process) -> Option<Finding> {
    let memory = &process.memory;
    let (total, available) = (memory.total?, memory.available?);
    let swapped =
        memory.swap_total.zip(memory.swap_free).map_or(0, |(total, free)| total.saturating_sub(free));
    if available < total / 20 {
        let detail = format!(
            "{} of {} are available; the page cache shrinks, and writes wait",
            Bytes(available),
            Bytes(total)
        );
        let fix = "stop a program (`ps aux --sort=-rss | head`), or give the machine more memory";
        return Some(Finding::costly(60, "Memory is short", detail, fix));
    }
    (swapped > total / 10).then(|| {
        let detail = format!("{} are in swap; accessing that memory causes I/O", Bytes(swapped));
        let fix = "as root: `swapoff -a && swapon -a` once there is room, or `sysctl -w vm.swappiness=1`";
        Finding::notable(12, "Memory was swapped out", detail, fix)
    })
}

fn huge_pages(process: &Process) -> Option<Finding> {
    let never = process.memory.huge_pages.as_deref()? == "never";
    never.then(|| {
        let detail =
            "transparent_hugepage/enabled is never: pools take pages of 4 KiB, which are slower to register";
        let fix = "as root: `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`";
        Finding::notable(2, "Huge pages are off", detail, fix)
    })
}
