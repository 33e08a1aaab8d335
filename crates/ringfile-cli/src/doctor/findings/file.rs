//! Findings about PATH and its file system.

use super::{Finding, time};
use crate::doctor::Report;
use crate::doctor::device::{Device, Kind};
use crate::doctor::durable::{Durable, Way};
use crate::doctor::file::FileFacts;
use crate::doctor::look::ANSWER;
use crate::doctor::place::Medium;
use crate::values::Bytes;

/// More pieces than this, smaller than a MiB on average, and reads in order are not in order.
const MANY_EXTENTS: u64 = 1000;

/// A durable write that takes longer is what a program spends its time with.
const SLOW_DURABLE_US: f64 = 5000.0;
const SLUGGISH_DURABLE_US: f64 = 1000.0;

/// No disk makes a write durable in less.
const INCREDIBLE_US: f64 = 10.0;

pub fn of(report: &Report) -> Vec<Finding> {
    let file = &report.file;
    if file.kind.is_none() {
        return vec![silent(file)];
    }
    let mut found = options(file);
    if !file.answered {
        found.push(silent(file));
    }
    let one = [medium(file), direct(file), durable(report), space(file), pieces(file), tail(file)];
    found.extend(one.into_iter().flatten());
    found.extend(attributes(file));
    // Layers, memory and devices that are memory have a finding that says as much.
    let memory = |device: &&Device| matches!(device.kind, Kind::Zram | Kind::Ram);
    let in_memory = report.device.as_ref().is_some_and(|device| device.stack().iter().any(memory));
    if file.medium == Medium::Disk && !in_memory {
        let handed = [buffered_writes(file), buffered_reads(file), direct_reads(file)];
        found.extend(handed.into_iter().flatten());
    }
    found
}

fn silent(file: &FileFacts) -> Finding {
    Finding::costly(
        5000,
        format!("{} did not answer within {} ms", file.path, ANSWER.as_millis()),
        format!("it was still at: {}; what comes after that is not known", file.stage),
        "see whether its server, its network or its disk is alive: `dmesg | tail`, then try again",
    )
}

fn medium(file: &FileFacts) -> Option<Finding> {
    let filesystem = file.filesystem.as_deref().unwrap_or("unknown");
    match file.medium {
        Medium::Overlay => {
            let upper =
                file.upper_filesystem.as_deref().map(|upper| format!(" over {upper}")).unwrap_or_default();
            Some(Finding::costly(
                400,
                "The file lies in a container's layer",
                format!(
                    "{filesystem}{upper} has no non-blocking I/O: io_uring hands each operation to a \
                     kernel thread. At depth 1 that gave 15,000 to 30,000 cached reads a second on a \
                     virtual machine with 2 cores, plain calls 970,000, so ringfile makes those. The \
                     first write to a file copies all of it"
                ),
                "keep data on a volume: `docker run -v /srv/data:/data`, a PersistentVolume in Kubernetes",
            ))
        }
        Medium::Memory => Some(Finding::notable(
            30,
            "The files are memory",
            format!(
                "{filesystem} has no queue: I/O is copying. io_uring would hand each copy to a kernel \
                 thread (29,000 to 55,000 \
                 reads a second at depth 1, against 620,000 as plain calls), so ringfile makes plain calls"
            ),
            "leave OpenOptions::route on auto, depth 1; to measure or use a disk, name a folder on one",
        )),
        Medium::Network => Some(Finding::costly(
            300,
            "The files are on another machine",
            format!(
                "{filesystem} from {}: every operation that is not cached takes a trip over the network",
                file.source.as_deref().unwrap_or("an unknown server")
            ),
            "keep data on a local disk; else large blocks (1 MiB) and many at once (iodepth 16 and more)",
        )),
        Medium::Fuse => Some(Finding::costly(
            200,
            "A program or a host answers for the file system",
            format!(
                "{filesystem}: every operation that is not cached wakes another process, 10 to 100 µs each"
            ),
            "keep data on a file system of the kernel's own; else large blocks (128 KiB and more)",
        )),
        Medium::Kernel => Some(Finding::notable(
            1,
            "There is no data here",
            format!("{filesystem} shows the kernel's own state as files"),
            "name the folder that your program keeps its data in",
        )),
        Medium::Disk | Medium::Unknown => None,
    }
}

fn direct(file: &FileFacts) -> Option<Finding> {
    let direct = file.direct.as_ref()?;
    if file.medium == Medium::Memory {
        return None;
    }
    if !direct.usable {
        return Some(Finding::notable(
            25,
            "No direct I/O",
            format!("{}; all data goes through the page cache and is copied once more", direct.why),
            "open with OpenOptions::buffered_fallback(true), or use ext4 or xfs on a disk",
        ));
    }
    if direct.past_cache == Some(false) {
        return Some(Finding::costly(
            40,
            "O_DIRECT is taken and not done",
            "what was written directly was in the page cache afterwards, so direct I/O costs more here \
             than buffered",
            "open without direct; on btrfs: `chattr +C` on the empty folder, which also ends \
             compression and checksums",
        ));
    }
    let multiple = match direct.offset_alignment {
        Some(bytes) => format!("in multiples of {}", Bytes(bytes.into())),
        None => "4 KiB is taken for its alignment, since statx tells none".into(),
    };
    let took = direct.read_us.map(|us| format!("; a read takes {}", time(us))).unwrap_or_default();
    Some(Finding::fine("Direct I/O works", format!("{multiple}{took}")))
}

fn buffered_writes(file: &FileFacts) -> Option<Finding> {
    let usable = file.nonblocking.buffered_writes?;
    let filesystem = file.filesystem.as_deref().unwrap_or("this file system");
    (!usable).then(|| {
        let went = file.routes.iter().find(|taken| taken.what == "buffered writes");
        let went = went.map(|taken| {
            format!(
                ", which ringfile makes (here {} of {} writes)",
                taken.inline,
                taken.ring + taken.inline + taken.workers + taken.aio
            )
        });
        Finding::notable(
            8,
            "Buffered writes are no good through io_uring",
            format!(
                "{filesystem} refuses RWF_NOWAIT for them, so io_uring hands each to a kernel thread: \
                 at depth 1 \
                 that gave 17,000 a second on a virtual machine with 2 cores, plain calls 480,000{}",
                went.unwrap_or_default()
            ),
            "leave OpenOptions::route on auto; for writes that must not hold the thread: \
             OpenOptions::direct(true)",
        )
    })
}

fn buffered_reads(file: &FileFacts) -> Option<Finding> {
    let usable = file.nonblocking.buffered_reads?;
    (!usable).then(|| {
        Finding::notable(
            28,
            "Buffered reads are no good through io_uring",
            format!(
                "{} refuses RWF_NOWAIT for them: what is cached can't be told from what must wait, and \
                 io_uring hands \
                 each read to a kernel thread",
                file.filesystem.as_deref().unwrap_or("it")
            ),
            "leave OpenOptions::route on auto; for reads that wait: OpenOptions::direct(true)",
        )
    })
}

fn direct_reads(file: &FileFacts) -> Option<Finding> {
    let usable = file.nonblocking.direct_reads? || !file.direct.as_ref()?.usable;
    (!usable).then(|| {
        Finding::notable(
            27,
            "Direct I/O is handed to kernel threads",
            format!(
                "{} refuses RWF_NOWAIT for direct reads, so io_uring can't hand them to the device itself",
                file.filesystem.as_deref().unwrap_or("it")
            ),
            "leave OpenOptions::route on auto; an ext4 or xfs on the same disk does better",
        )
    })
}

fn durable(report: &Report) -> Option<Finding> {
    let file = &report.file;
    let best = file.durable.first().filter(|_| file.medium != Medium::Memory)?;
    let flushes = report.device.as_ref().is_some_and(|device| {
        device.queue.write_cache.as_deref() == Some("write back") && device.queue.fua != Some(true)
    });
    let why = if flushes {
        "; the disk has a volatile cache and no FUA, so each one flushes all of it"
    } else {
        ""
    };
    let times: Vec<String> = file
        .durable
        .iter()
        .map(|durable| format!("{} {}", durable.way.text(), time(durable.median_us)))
        .collect();
    let clear = is_clear(&file.durable);
    let noise = if clear || file.durable.len() < 2 {
        ""
    } else {
        "; rounds of one way differ as much as the ways do"
    };
    let detail = format!("4 KiB, median of {} rounds: {}{noise}{why}", best.rounds, times.join("; "));
    let title = format!("A durable write takes {}", time(best.median_us));
    let group = "write many records, then sync once (group commit)";
    match best.median_us {
        us if us >= SLOW_DURABLE_US => Some(Finding::costly(
            100,
            title,
            detail,
            format!("{group}, or use a disk with power-loss protection"),
        )),
        us if us >= SLUGGISH_DURABLE_US => Some(Finding::notable(26, title, detail, group)),
        us if us < INCREDIBLE_US && file.medium == Medium::Disk => Some(Finding::notable(
            24,
            format!("{title}: too quick for a disk"),
            format!("{detail}; a cache below says that it is done before it is"),
            "check the hypervisor's cache mode (not cache=unsafe) and the controller's battery before \
             you trust it",
        )),
        _ if clear => Some(Finding::notable(9, format!("{title}, in the right way"), detail, advice(best))),
        _ => Some(Finding::fine(title, detail)),
    }
}

/// Returns whether the quickest way was quicker in every round than any other in any.
fn is_clear(durable: &[Durable]) -> bool {
    let Some((best, others)) = durable.split_first() else { return false };
    !others.is_empty() && others.iter().all(|other| other.least_us > best.most_us)
}

fn advice(best: &Durable) -> String {
    match best.way {
        Way::Dsync => "OpenOptions::durability(Durability::Dsync); auto finds that out by itself",
        Way::DirectDsync => "OpenOptions::direct(true) with durability(Durability::Dsync)",
        Way::RingLinked => "OpenOptions::durability(Durability::Fsync); auto finds that out by itself",
        Way::WriteFdatasync => "File::write_at, then File::sync_data",
    }
    .into()
}

fn space(file: &FileFacts) -> Option<Finding> {
    let (total, available) = (file.space_total?, file.space_available?);
    let per_cent = available as f64 * 100.0 / total as f64;
    let detail = format!("{} of {} can be written ({per_cent:.0} %)", Bytes(available), Bytes(total));
    let fix = format!("make room: `du -xh {} | sort -h | tail`", file.mount_point.as_deref().unwrap_or("/"));
    let read_only = file.options.iter().any(|option| option == "ro");
    match per_cent {
        _ if read_only => None,
        part if part < 3.0 => Some(Finding::costly(
            50,
            "The file system is full",
            format!("{detail}: new blocks are scattered, and writes will fail soon"),
            fix,
        )),
        part if part < 10.0 => Some(Finding::notable(
            7,
            "The file system is nearly full",
            format!("{detail}: new blocks are scattered"),
            fix,
        )),
        _ => None,
    }
}

fn pieces(file: &FileFacts) -> Option<Finding> {
    let (extents, size) = (file.extents.filter(|&extents| extents > MANY_EXTENTS)?, file.size?);
    // Compressed data lies in pieces of 128 KiB at most, however well it lies.
    if is_compressed(file) {
        return None;
    }
    let mean = size / extents;
    let path = &file.path;
    let fix = match file.filesystem.as_deref() {
        Some("ext4") => format!("`e4defrag {path}`"),
        Some("xfs") => format!("`xfs_fsr -v {path}`"),
        Some("btrfs") => format!("`btrfs filesystem defragment {path}`"),
        _ => format!("copy it and rename the copy: `cp {path} {path}.new && mv {path}.new {path}`"),
    };
    (mean < 1 << 20).then(|| {
        Finding::notable(
            14,
            "The file lies in many pieces",
            format!("{extents} of them, {} on average: reading in order is reading at random", Bytes(mean)),
            format!("{fix}; allocate files before writing them (File::allocate)"),
        )
    })
}

fn tail(file: &FileFacts) -> Option<Finding> {
    let alignment = u64::from(file.direct.as_ref().filter(|direct| direct.usable)?.offset_alignment?);
    let size = file.size.filter(|&size| alignment > 1 && !size.is_multiple_of(alignment))?;
    Some(Finding::notable(
        1,
        "The file's end is not aligned",
        format!(
            "{size} bytes is no multiple of {alignment}: the last block can be read directly, not written"
        ),
        "pad the file to whole blocks, or write its end through the page cache",
    ))
}

fn is_compressed(file: &FileFacts) -> bool {
    let has = |name: &str| file.attributes.iter().any(|attribute| attribute == name);
    let mounted = || file.options.iter().any(|option| option.starts_with("compress"));
    has("compressed") || file.filesystem.as_deref() == Some("btrfs") && mounted() && !has("nocow")
}

fn attributes(file: &FileFacts) -> Vec<Finding> {
    let has = |name: &str| file.attributes.iter().any(|attribute| attribute == name);
    let option = |name: &str| file.options.iter().any(|option| option.starts_with(name));
    let mut found = Vec::new();
    let path = &file.path;
    let btrfs = file.filesystem.as_deref() == Some("btrfs");
    if is_compressed(file) {
        found.push(Finding::costly(
            45,
            "Data is compressed",
            "every read unpacks 128 KiB, every write packs it; direct I/O goes through the page cache",
            format!(
                "for random I/O: `chattr +C {path}` while it is an empty folder, or mount without compress"
            ),
        ));
    }
    if btrfs && !has("nocow") && !option("nodatacow") {
        found.push(Finding::notable(
            16,
            "Every overwrite moves the data",
            "btrfs copies on write: random writes scatter a file, and each updates metadata and checksums",
            format!("for databases: `chattr +C {path}` while it is an empty folder (ends checksums there)"),
        ));
    }
    if has("encrypted") {
        found.push(Finding::notable(
            17,
            "The file system encrypts",
            "fscrypt: without inline encryption hardware, direct I/O falls back to the page cache",
            "mount with inlinecrypt where the disk can, or encrypt the device below (dm-crypt) instead",
        ));
    }
    if has("dax") {
        found.push(Finding::fine(
            "The file is mapped memory (DAX)",
            "there is no page cache between, and no queue",
        ));
    }
    found
}

/// Mount options that cost something.
fn options(file: &FileFacts) -> Vec<Finding> {
    let has = |name: &str| file.options.iter().any(|option| option == name);
    let point = file.mount_point.as_deref().unwrap_or("/");
    let remount =
        |option: &str| format!("as root: `mount -o remount,{option} {point}`, and the same in /etc/fstab");
    let mut found = Vec::new();
    if has("sync") {
        found.push(Finding::costly(
            150,
            "Mounted with sync",
            "every write waits until it is on the disk",
            remount("async"),
        ));
    }
    if has("dirsync") {
        found.push(Finding::notable(
            13,
            "Mounted with dirsync",
            "making, renaming and removing files waits for the disk",
            remount("nodirsync"),
        ));
    }
    if has("data=journal") {
        found.push(Finding::costly(
            35,
            "Data goes through the journal",
            "data=journal: everything is written twice, and there is no direct I/O",
            format!(
                "mount {point} with data=ordered (not by remount; and `tune2fs -o ^journal_data DEVICE`)"
            ),
        ));
    }
    if has("nobarrier") || has("barrier=0") {
        found.push(Finding::notable(
            11,
            "Syncs do not reach the disk",
            "mounted without barriers: quick, and a power cut loses what was synced",
            remount("barrier=1"),
        ));
    }
    if has("discard") && file.filesystem.as_deref() != Some("btrfs") {
        found.push(Finding::notable(
            4,
            "Freed blocks are discarded at once",
            "mounted with discard: after files are removed, the journal, and syncs with it, wait for \
             the disk to discard",
            format!("`systemctl enable --now fstrim.timer`, then {}", remount("nodiscard")),
        ));
    }
    if has("strictatime") {
        found.push(Finding::notable(
            5,
            "Every read writes",
            "mounted with strictatime: each read updates the file's access time",
            remount("relatime"),
        ));
    }
    if has("ro") {
        found.push(Finding::fine("Mounted read-only", "writes were not tried"));
    }
    found
}
