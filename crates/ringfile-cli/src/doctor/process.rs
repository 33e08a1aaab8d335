//! What this process may do: limits, bans, memory, containers and control groups.
//!
//! Everything is read from /proc and /sys; missing facts are `null`, never an error.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::features::{Found, REGISTERED_AT_MOST};
use crate::machine::{self, number, text};
use crate::sys;
use crate::testfile::mounts;

/// The facts about the process and the machine around it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Effective user id.
    pub user: Option<u32>,
    /// Cores that it may use.
    pub cpus: usize,
    /// Whether a hypervisor announces itself by a CPU flag (x86).
    pub virtual_machine: Option<bool>,
    /// Memory that may be locked: rings and registered buffers count against it.
    pub memlock: Memlock,
    /// `kernel.io_uring_disabled`: 0 anybody may, 1 only members of `io_uring_group`, 2 nobody.
    pub io_uring_disabled: Option<i64>,
    /// `kernel.io_uring_group`; -1: none.
    pub io_uring_group: Option<i64>,
    /// The errno of `io_uring_setup`, where it was refused.
    pub io_uring_errno: Option<i32>,
    /// Whether a seccomp filter ends processes that make a ring.
    pub io_uring_kills: bool,
    /// Linux AIO, which carries direct I/O where io_uring can't be used; `null` if that was not tried.
    pub aio: Option<Aio>,
    /// `off`, `strict` or `filter`.
    pub seccomp: Option<String>,
    /// Whether it can't gain rights by executing programs, as in most containers.
    pub no_new_privs: Option<bool>,
    /// The evidence that this is a container.
    pub container: Option<String>,
    /// RLIMIT_NOFILE.
    pub open_files: Limit,
    /// RLIMIT_NPROC, against which the kernel's workers count too.
    pub processes: Limit,
    /// The most kernel threads for one thread's rings: for files and block devices, and for all else.
    pub io_workers: Option<[u32; 2]>,
    /// Limits of its control groups.
    pub cgroup: Cgroup,
    /// Memory of the machine.
    pub memory: MachineMemory,
    /// What `RINGFILE_DISABLE` in the environment says.
    pub backend: Option<String>,
    /// What is wrong with other `RINGFILE_…` variables of the environment.
    pub wrong_variables: Vec<String>,
}

/// The result of a trial of Linux AIO, and the limit of the whole system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aio {
    /// The errno of `io_setup` or `io_submit`, where it was refused.
    pub errno: Option<i32>,
    /// `fs.aio-nr`: operations that all contexts of the system were made for.
    pub used: Option<i64>,
    /// `fs.aio-max-nr`: how many these may be.
    pub limit: Option<i64>,
}

/// RLIMIT_MEMLOCK, and its effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memlock {
    /// The limit.
    pub limit: Limit,
    /// Whether it applies to this process: not with CAP_IPC_LOCK.
    pub applies: Option<bool>,
    /// Bytes that could be registered at once in a trial.
    pub registered: Option<u64>,
    /// Bytes that the trial asked for.
    pub tried: u64,
}

/// A limit; `null`: unlimited, or unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The current limit.
    pub soft: Option<u64>,
    /// What the process may raise it to.
    pub hard: Option<u64>,
}

/// The tightest limits of the control groups above this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Cores' worth of CPU time.
    pub cpus: Option<f64>,
    /// Bytes of memory, page cache included.
    pub memory: Option<u64>,
    /// I/O limits of devices.
    pub io: Vec<IoLimit>,
}

/// An I/O limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLimit {
    /// The device's number, `8:0`.
    pub device: String,
    /// What is limited: `rbps`, `wbps` (bytes a second), `riops`, `wiops` (operations a second).
    pub what: String,
    /// To how much.
    pub limit: u64,
}

/// Memory of the machine, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineMemory {
    /// All of it.
    pub total: Option<u64>,
    /// Memory that is available without swapping.
    pub available: Option<u64>,
    /// Swap.
    pub swap_total: Option<u64>,
    /// Swap that is not in use.
    pub swap_free: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
}

/// Reads the facts.
pub fn look(found: &Found) -> Process {
    let status = text("/proc/self/status").unwrap_or_default();
    let cpuinfo = text("/proc/cpuinfo").unwrap_or_default();
    let flags = machine::field(&cpuinfo, "flags");
    let unlocked = capability(&status, CAP_IPC_LOCK);
    Process {
        user: machine::field(&status, "Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()),
        cpus: machine::cpus(),
        virtual_machine: flags.map(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        memlock: Memlock {
            limit: limit(Resource::Memlock),
            applies: unlocked.map(|unlocked| !unlocked),
            registered: found.registered,
            tried: REGISTERED_AT_MOST,
        },
        io_uring_disabled: number("/proc/sys/kernel/io_uring_disabled"),
        io_uring_group: number("/proc/sys/kernel/io_uring_group"),
        io_uring_errno: found.refused,
        io_uring_kills: found.kills,
        aio: (!found.kills).then(|| Aio {
            errno: sys::try_aio().err().and_then(|error| error.raw_os_error()),
            used: number("/proc/sys/fs/aio-nr"),
            limit: number("/proc/sys/fs/aio-max-nr"),
        }),
        seccomp: machine::field(&status, "Seccomp").map(|mode| seccomp(mode).to_string()),
        no_new_privs: machine::field(&status, "NoNewPrivs").map(|value| value == "1"),
        container: container(),
        open_files: limit(Resource::Nofile),
        processes: limit(Resource::Nproc),
        io_workers: found.workers,
        cgroup: cgroup(),
        memory: memory(&text("/proc/meminfo").unwrap_or_default()),
        backend: std::env::var("RINGFILE_DISABLE").ok().filter(|backend| !backend.is_empty()),
        wrong_variables: ringfile::Config::wrong_variables(),
    }
}

const CAP_IPC_LOCK: u32 = 14;

/// Returns whether system calls of this process are filtered.
pub fn is_filtered() -> bool {
    let status = text("/proc/self/status").unwrap_or_default();
    machine::field(&status, "Seccomp").map(seccomp) == Some("filter")
}

/// Returns whether /proc/self/status shows a capability as effective.
fn capability(status: &str, number: u32) -> Option<bool> {
    let effective = u64::from_str_radix(machine::field(status, "CapEff")?, 16).ok()?;
    Some(effective >> number & 1 == 1)
}

fn seccomp(mode: &str) -> &str {
    match mode {
        "0" => "off",
        "1" => "strict",
        "2" => "filter",
        other => other,
    }
}

fn limit(resource: Resource) -> Limit {
    let limits = getrlimit(resource);
    Limit { soft: limits.current, hard: limits.maximum }
}

fn container() -> Option<String> {
    for sign in ["/.dockerenv", "/run/.containerenv"] {
        if Path::new(sign).exists() {
            return Some(format!("{sign} exists"));
        }
    }
    if let Some(kind) = std::env::var("container").ok().filter(|kind| !kind.is_empty()) {
        return Some(format!("the environment says container={kind}"));
    }
    container_of_groups(&text("/proc/self/cgroup")?)
}

/// Returns the evidence of a container in the names of control groups.
fn container_of_groups(groups: &str) -> Option<String> {
    let known = ["docker", "kubepods", "libpod", "containerd", "/lxc"];
    known
        .into_iter()
        .find(|word| groups.contains(word))
        .map(|word| format!("its control group is one of {}", word.trim_start_matches('/')))
}

fn memory(meminfo: &str) -> MachineMemory {
    let bytes = |name| machine::bytes(meminfo, name);
    MachineMemory {
        total: bytes("MemTotal"),
        available: bytes("MemAvailable"),
        swap_total: bytes("SwapTotal"),
        swap_free: bytes("SwapFree"),
        huge_pages: text("/sys/kernel/mm/transparent_hugepage/enabled").and_then(|text| chosen(&text)),
    }
}

/// Returns the word in brackets: `always [madvise] never`.
pub fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_string())
}

fn cgroup() -> Cgroup {
    let mounts = mounts::all();
    let mut all = Cgroup::default();
    for line in text("/proc/self/cgroup").unwrap_or_default().lines() {
        let Some((controllers, path)) = group(line) else { continue };
        let mount = mounts.iter().rev().find(|mount| match controllers {
            "" => mount.filesystem == "cgroup2",
            list => {
                mount.filesystem == "cgroup"
                    && list.split(',').all(|one| mount.options.iter().any(|option| option == one))
            }
        });
        let Some(mount) = mount else { continue };
        let folder = mount.point.join(path.trim_start_matches('/'));
        let up = folder.ancestors().take_while(|folder| folder.starts_with(&mount.point));
        up.for_each(|folder| all.tighten(folder));
    }
    all
}

/// Controllers and path of a line of /proc/self/cgroup: `0::/user.slice`, `1:cpu,cpuacct:/`.
fn group(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(':')?;
    rest.split_once(':')
}

impl Cgroup {
    /// Adds the limits of one group, of either version.
    fn tighten(&mut self, folder: &Path) {
        let least = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::min);
        let quota = || -> Option<(i64, i64)> {
            Some((number(folder.join("cpu.cfs_quota_us"))?, number(folder.join("cpu.cfs_period_us"))?))
        };
        let cpus = text(folder.join("cpu.max")).and_then(|text| cpus(&text));
        let old = quota().filter(|&(quota, period)| quota > 0 && period > 0);
        self.cpus = least(self.cpus, cpus.or(old.map(|(quota, period)| quota as f64 / period as f64)));
        // Version 1 has a number near 2^63 if there is no limit.
        let memory =
            number(folder.join("memory.max")).or_else(|| number(folder.join("memory.limit_in_bytes")));
        let memory = memory.filter(|&bytes| bytes < 1 << 60);
        self.memory = self.memory.into_iter().chain(memory).min();
        self.io.extend(io_limits(&text(folder.join("io.max")).unwrap_or_default()));
        for (file, what) in [
            ("read_bps_device", "rbps"),
            ("write_bps_device", "wbps"),
            ("read_iops_device", "riops"),
            ("write_iops_device", "wiops"),
        ] {
            let lines = text(folder.join(format!("blkio.throttle.{file}"))).unwrap_or_default();
            self.io.extend(lines.lines().filter_map(|line| {
                let (device, limit) = line.split_once(' ')?;
                Some(IoLimit { device: device.into(), what: what.into(), limit: limit.parse().ok()? })
            }));
        }
    }
}

/// `max 100000` or `50000 100000`: microseconds of CPU time in each period of the second number.
fn cpus(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok().filter(|&period| period > 0.0)?)
}

/// `8:0 rbps=1048576 wbps=max riops=max wiops=120`, a line for each device.
fn io_limits(text: &str) -> Vec<IoLimit> {
    let limits = |line: &str| -> Vec<IoLimit> {
        let mut fields = line.split_whitespace();
        let device = fields.next().unwrap_or_default().to_string();
        let limit = |field: &str| {
            let (what, limit) = field.split_once('=')?;
            Some(IoLimit { device: device.clone(), what: what.into(), limit: limit.parse().ok()? })
        };
        fields.filter_map(limit).collect()
    };
    text.lines().flat_map(limits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_seccomp_are_read_from_status() {
        let status = "Uid:\t0\t65534\t0\t0\nCapEff:\t000001fffeffffff\nSeccomp:\t2\n";
        assert_eq!(capability(status, CAP_IPC_LOCK), Some(true));
        assert_eq!(capability(status, 24), Some(false));
        assert_eq!(capability("CapEff:\t0000000000000000\n", CAP_IPC_LOCK), Some(false));
        assert_eq!(capability("", CAP_IPC_LOCK), None);
        assert_eq!(["0", "1", "2", "9"].map(seccomp), ["off", "strict", "filter", "9"]);
    }

    #[test]
    fn limits_of_control_groups() {
        assert_eq!(cpus("max 100000"), None);
        assert_eq!(cpus("150000 100000"), Some(1.5));
        assert_eq!(cpus("nonsense"), None);
        let limits = io_limits("8:0 rbps=1048576 wbps=max riops=max wiops=120\n254:0 rbps=max\n");
        let all: Vec<_> = limits.iter().map(|io| (io.device.as_str(), io.what.as_str(), io.limit)).collect();
        assert_eq!(all, [("8:0", "rbps", 1_048_576), ("8:0", "wiops", 120)]);
        assert_eq!(group("0::/user.slice/x"), Some(("", "/user.slice/x")));
        assert_eq!(group("4:cpu,cpuacct:/"), Some(("cpu,cpuacct", "/")));
    }

    #[test]
    fn groups_of_both_versions_are_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("write");
        write("cpu.cfs_quota_us", "50000\n");
        write("cpu.cfs_period_us", "100000\n");
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("blkio.throttle.read_iops_device", "254:0 100\n");
        let mut cgroup = Cgroup::default();
        cgroup.tighten(folder.path());
        assert_eq!((cgroup.cpus, cgroup.memory), (Some(0.5), None));
        assert_eq!(cgroup.io, [IoLimit { device: "254:0".into(), what: "riops".into(), limit: 100 }]);
        write("memory.max", "1048576\n");
        write("cpu.max", "200000 100000\n");
        cgroup.tighten(folder.path());
        assert_eq!((cgroup.cpus, cgroup.memory), (Some(0.5), Some(1 << 20)), "the tightest holds");
    }

    #[test]
    fn containers_are_known_by_their_group() {
        assert_eq!(container_of_groups("0::/user.slice"), None);
        let found = container_of_groups("12:cpu:/docker/0123\n").expect("a container");
        assert!(found.contains("docker"), "{found}");
    }

    #[test]
    fn the_chosen_word_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
        assert_eq!(chosen("none [mq-deadline] kyber bfq ").as_deref(), Some("mq-deadline"));
        assert_eq!(chosen("none"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let memory = memory("MemTotal:  100 kB\nMemAvailable: 12 kB\nSwapTotal: 0 kB\n");
        assert_eq!((memory.total, memory.available), (Some(102_400), Some(12_288)));
        assert_eq!((memory.swap_total, memory.swap_free), (Some(0), None));
    }
}
