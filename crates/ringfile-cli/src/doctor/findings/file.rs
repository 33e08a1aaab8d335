//! Findings about PATH and its file system.

use super::{Finding, time};
use crate::doctor::Report;
use crate::doctor::device::{Device, DeviceKind};
use crate::doctor::durable::{Durable, DurableWay};
use crate::doctor::file::FileFacts;
use crate::doctor::look::ANSWER;
use crate::doctor::place::Medium;
use crate::values::Bytes;

/// A program with slower durable writes spends most of its time on them.
const SLOW_DURABLE_US: f64 = 5000.0;
const SLUGGISH_DURABLE_US: f64 = 1000.0;

/// No disk makes a write durable in less time.
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
    let one = [medium(file), direct(file), durable(report), space(file), tail(file)];
    found.extend(one.into_iter().flatten());
    found.extend(attributes(file));
    // Layers, memory and devices in memory have a finding of their own about this.
    let memory = |device: &&Device| matches!(device.kind, DeviceKind::Zram | DeviceKind::Ram);
    let in_memory = report.device.as_ref().is_some_and(|device| device.stack().iter().any(memory));
    if file.medium == Medium::Disk && !in_memory {
        let handed = [buffered_writes(file), buffered_reads(file), direct_reads(file)];
        found.extend(handed.into_iter().flatten());
    }
    found
}

fn silent(file: &FileFacts) -> Finding {
    let title = format!("{} did not answer within {} ms", file.path, ANSWER.as_millis());
    let detail = format!("its last step was: {}; the later ones are not known", file.stage);
    let fix =
        "try again: it may just be busy; if it stays so, check its server, network or disk (`dmesg | tail`)";
    Finding::costly(5000, title, detail, fix)
}

fn medium(file: &FileFacts) -> Option<Finding> {
    let filesystem = file.filesystem.as_deref().unwrap_or("unknown");
    match file.medium {
        Medium::Overlay => {
            let upper =
                file.upper_filesystem.as_deref().map(|upper| format!(" over {upper}")).unwrap_or_default();
            let detail = format!(
                "{filesystem}{upper} has no non-blocking I/O: io_uring hands each operation to a kernel \
                 thread. At depth 1 that gave 15,000 to 30,000 cached reads a second on a virtual machine \
                 with 2 cores, plain calls 970,000, so ringfile uses those. The first write to a file copies \
                 all of it"
            );
            let fix =
                "keep data on a volume: `docker run -v /srv/data:/data`, a PersistentVolume in Kubernetes";
            Some(Finding::costly(400, "The file is in a container's layer", detail, fix))
        }
        Medium::Memory => {
            let detail = format!(
                "{filesystem} has no queue: I/O copies memory. io_uring would hand each copy to a kernel thread \
                 (29,000 to 55,000 reads a second at depth 1, plain calls 620,000), so ringfile makes plain calls"
            );
            let fix =
                "leave OpenOptions::route on auto, depth 1; to measure or use a disk, name a folder on one";
            Some(Finding::notable(30, "The files are in memory", detail, fix))
        }
        Medium::Network => {
            let server = file.source.as_deref().unwrap_or("an unknown server");
            let detail =
                format!("{filesystem} from {server}: every operation that is not cached crosses the network");
            let fix = "keep data on a local disk; otherwise use large blocks (1 MiB), and many at once (iodepth 16 or more)";
            Some(Finding::costly(300, "The files are on another machine", detail, fix))
        }
        Medium::Fuse => {
            let detail = format!(
                "{filesystem}: every operation that is not cached wakes another process, 10 to 100 µs each"
            );
            let fix =
                "keep data on a file system of the kernel; otherwise use large blocks (128 KiB or more)";
            Some(Finding::costly(200, "A program or a host serves the file system", detail, fix))
        }
        Medium::Kernel => {
            let detail = format!("{filesystem} shows the kernel's own state as files");
            let fix = "name the folder with your program's data";
            Some(Finding::notable(1, "There is no data here", detail, fix))
        }
        Medium::Disk | Medium::Unknown => None,
    }
}

fn direct(file: &FileFacts) -> Option<Finding> {
    let direct = file.direct.as_ref()?;
    if file.medium == Medium::Memory {
        return None;
    }
    if !direct.usable {
        let detail = format!("{}; all data goes through the page cache and is copied once more", direct.why);
        let fix = "open with OpenOptions::buffered_fallback(true), or use ext4 or xfs on a disk";
        return Some(Finding::notable(25, "No direct I/O", detail, fix));
    }
    if direct.past_cache == Some(false) {
        let detail = "data that was written directly was in the page cache afterwards, so direct I/O costs \
            more here than buffered I/O";
        let fix = "open without direct; on btrfs: `chattr +C` on the empty folder, which also ends \
            compression and checksums";
        return Some(Finding::costly(40, "O_DIRECT is accepted, but not done", detail, fix));
    }
    let multiple = match direct.offset_alignment {
        Some(bytes) => format!("in multiples of {}", Bytes(bytes.into())),
        None => "4 KiB is assumed as the alignment, because statx reports none".into(),
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
            format!(", which ringfile uses (here for {} of {} writes)", taken.ops.inline, taken.ops.total())
        });
        let title = "Buffered writes are slow through io_uring";
        let detail = format!(
            "{filesystem} refuses RWF_NOWAIT for them, so io_uring hands each to a kernel thread: at depth 1 \
             that gave 17,000 a second on a virtual machine with 2 cores, plain calls 480,000{}",
            went.unwrap_or_default()
        );
        let fix = "leave OpenOptions::route on auto; for writes that must not block the thread: \
            OpenOptions::direct(true)";
        Finding::notable(8, title, detail, fix)
    })
}

fn buffered_reads(file: &FileFacts) -> Option<Finding> {
    let usable = file.nonblocking.buffered_reads?;
    (!usable).then(|| {
        let detail = format!(
            "{} refuses RWF_NOWAIT for them, so cached data can't be distinguished from data that must be \
             waited for, and io_uring hands each read to a kernel thread",
            file.filesystem.as_deref().unwrap_or("it")
        );
        let fix = "leave OpenOptions::route on auto; for reads that wait: OpenOptions::direct(true)";
        Finding::notable(28, "Buffered reads are slow through io_uring", detail, fix)
    })
}

fn direct_reads(file: &FileFacts) -> Option<Finding> {
    let usable = file.nonblocking.direct_reads? || !file.direct.as_ref()?.usable;
    (!usable).then(|| {
        let detail = format!(
            "{} refuses RWF_NOWAIT for direct reads, so io_uring can't hand them to the device itself",
            file.filesystem.as_deref().unwrap_or("it")
        );
        let fix = "leave OpenOptions::route on auto; ext4 or xfs on the same disk is faster";
        Finding::notable(27, "Direct I/O is handed to kernel threads", detail, fix)
    })
}

fn durable(report: &Report) -> Option<Finding> {
    let file = &report.file;
    let best = file.durable.first().filter(|_| file.medium != Medium::Memory)?;
    let flushes = report.device.as_ref().is_some_and(|device| {
        device.queue.write_cache.as_deref() == Some("write back") && device.queue.fua != Some(true)
    });
    let flush = "; the disk has a volatile cache and no FUA, so each one flushes all of it";
    let why = if flushes { flush } else { "" };
    let times: Vec<String> = file
        .durable
        .iter()
        .map(|durable| format!("{} {}", durable.way.text(), time(durable.median_us)))
        .collect();
    // Every round of the fastest way was faster than all rounds of the others.
    let others = &file.durable[1..];
    let clear = !others.is_empty() && others.iter().all(|other| other.least_us > best.most_us);
    let overlap = "; the rounds of one way differ as much as the ways do";
    let noise = if clear || others.is_empty() { "" } else { overlap };
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
            format!("{detail}; a cache below reports writes as durable too early"),
            "check the hypervisor's cache mode (not cache=unsafe) and the controller's battery before \
             you trust it",
        )),
        _ if clear => Some(Finding::notable(9, format!("{title} in the best way"), detail, advice(best))),
        _ => Some(Finding::fine(title, detail)),
    }
}

fn advice(best: &Durable) -> String {
    match best.way {
        DurableWay::Dsync => "OpenOptions::durability(Durability::Dsync); auto chooses that by itself",
        DurableWay::DirectDsync => "OpenOptions::direct(true) with durability(Durability::Dsync)",
        DurableWay::RingLinked => "OpenOptions::durability(Durability::Fsync); auto chooses that by itself",
        DurableWay::WriteFdatasync => "File::write_at, then File::sync_data",
    }
    .into()
}

fn space(file: &FileFacts) -> Option<Finding> {
    let (total, available) = (file.space_total?, file.space_available?);
    let per_cent = available as f64 * 100.0 / total as f64;
    let detail = format!("{} of {} are free ({per_cent:.0} %)", Bytes(available), Bytes(total));
    let fix = format!("make room: `du -xh {} | sort -h | tail`", file.mount_point.as_deref().unwrap_or("/"));
    if per_cent >= 10.0 || file.options.iter().any(|option| option == "ro") {
        return None;
    }
    let detail = format!("{detail}: new blocks are scattered");
    if per_cent < 3.0 {
        let detail = format!("{detail}, and writes will fail soon");
        return Some(Finding::costly(50, "The file system is full", detail, fix));
    }
    Some(Finding::notable(7, "The file system is nearly full", detail, fix))
}

fn tail(file: &FileFacts) -> Option<Finding> {
    let alignment = u64::from(file.direct.as_ref().filter(|direct| direct.usable)?.offset_alignment?);
    let size = file.size.filter(|&size| alignment > 1 && !size.is_multiple_of(alignment))?;
    let detail = format!(
        "{size} bytes is no multiple of {alignment}: the last block can be read directly, but not written"
    );
    let fix = "pad the file to whole blocks, or write its end through the page cache";
    Some(Finding::notable(1, "The file's end is not aligned", detail, fix))
}

fn is_compressed(file: &FileFacts) -> bool {
    let has = |name: &str| file.attributes.iter().any(|attribute| attribute == name);
    let mounted = || file.options.iter().any(|option| option.starts_with("compress"));
    has("compressed") || file.filesystem.as_deref() == Some("btrfs") && mounted() && !has("nocow")
}

fn attributes(file: &FileFacts) -> Vec<Finding> {
    let has = |name: &str| file.attributes.iter().any(|attribute| attribute == name);
    let is_mounted_nocow = file.options.iter().any(|option| option.starts_with("nodatacow"));
    let path = &file.path;
    let copies_on_write = file.filesystem.as_deref() == Some("btrfs") && !has("nocow") && !is_mounted_nocow;
    let all = [
        is_compressed(file).then(|| {
            let detail = "every read decompresses 128 KiB, every write compresses it; direct I/O goes through the page cache";
            let fix = format!("for random I/O: `chattr +C {path}` while it is an empty folder, or mount without compress");
            Finding::costly(45, "Data is compressed", detail, fix)
        }),
        copies_on_write.then(|| {
            let detail = "btrfs copies on write: random writes scatter a file, and each updates metadata and checksums";
            let fix = format!("for databases: `chattr +C {path}` while it is an empty folder (ends checksums there)");
            Finding::notable(16, "Every overwrite moves the data", detail, fix)
        }),
        has("encrypted").then(|| {
            let detail = "fscrypt: without inline encryption hardware, direct I/O falls back to the page cache";
            let fix = "mount with inlinecrypt if the disk supports it, or encrypt the device below (dm-crypt) instead";
            Finding::notable(17, "The file system encrypts", detail, fix)
        }),
        has("dax").then(|| {
            Finding::fine("The file is mapped memory (DAX)", "I/O passes neither a page cache nor a queue")
        }),
    ];
    all.into_iter().flatten().collect()
}

/// Returns findings about mount options that cost something.
fn options(file: &FileFacts) -> Vec<Finding> {
    let has = |name: &str| file.options.iter().any(|option| option == name);
    let point = file.mount_point.as_deref().unwrap_or("/");
    let remount =
        |option: &str| format!("as root: `mount -o remount,{option} {point}`, and the same in /etc/fstab");
    let ordered =
        format!("mount {point} with data=ordered (not by remount; and `tune2fs -o ^journal_data DEVICE`)");
    let trim = format!("`systemctl enable --now fstrim.timer`, then {}", remount("nodiscard"));
    let fast_but_lossy = "mounted without barriers: fast, but a power cut loses synced data";
    let waits_for_discards = "mounted with discard: after files are removed, the journal, and syncs with it, wait for \
                              the disk to discard";
    let updates_times = "mounted with strictatime: each read updates the file's access time";
    let written_twice = "data=journal: everything is written twice, and there is no direct I/O";
    let waits = "every write waits until it is on the disk";
    let names_wait = "creating, renaming and removing files waits for the disk";
    let discards = has("discard") && file.filesystem.as_deref() != Some("btrfs");
    let has_no_barriers = has("nobarrier") || has("barrier=0");
    let all = [
        (has("sync"), Finding::costly(150, "Mounted with sync", waits, remount("async"))),
        (has("dirsync"), Finding::notable(13, "Mounted with dirsync", names_wait, remount("nodirsync"))),
        (has("data=journal"), Finding::costly(35, "Data goes through the journal", written_twice, ordered)),
        (
            has_no_barriers,
            Finding::notable(11, "Syncs do not reach the disk", fast_but_lossy, remount("barrier=1")),
        ),
        (discards, Finding::notable(4, "Freed blocks are discarded at once", waits_for_discards, trim)),
        (has("strictatime"), Finding::notable(5, "Every read writes", updates_times, remount("relatime"))),
        (has("ro"), Finding::fine("Mounted read-only", "writes were not tried")),
    ];
    all.into_iter().filter_map(|(is_set, finding)| is_set.then_some(finding)).collect()
}
