//! Findings about the devices below PATH.

use super::{Finding, time};
use crate::doctor::Report;
use crate::doctor::device::{Device, DeviceKind};
use crate::doctor::features::is_usable;
use crate::doctor::process::IoLimit;
use crate::values::Bytes;

/// A direct read that takes less time, in µs, does not come from a spinning disk.
const SPINS_US: f64 = 2000.0;

/// A queue of fewer requests is short: programs have more in flight.
const FEW_REQUESTS: u64 = 64;

/// More KiB than this, read ahead, are wasted unless reads are sequential.
const MUCH_READ_AHEAD: u64 = 1024;

pub fn of(report: &Report) -> Vec<Finding> {
    let Some(top) = &report.device else { return Vec::new() };
    let mut devices: Vec<&Device> = Vec::new();
    for device in top.stack() {
        // Two volumes of one disk share it.
        if !devices.iter().any(|known| known.number == device.number) {
            devices.push(device);
        }
    }
    let mut found: Vec<Finding> = devices.iter().flat_map(|device| of_device(device, report)).collect();
    // The kernel reads ahead on the topmost device.
    let mut whole = devices.iter().filter(|device| device.kind != DeviceKind::Partition);
    found.extend(whole.next().and_then(|device| read_ahead(device)));
    let is_below = |limit: &&IoLimit| devices.iter().any(|device| device.number == limit.device);
    found.extend(report.process.cgroup.io.iter().filter(is_below).map(limited));
    found
}

fn of_device(device: &Device, report: &Report) -> Vec<Finding> {
    let mut found: Vec<Finding> = layer(device).into_iter().collect();
    // A partition has its disk's queue, and the disk is in the list too.
    if matches!(device.kind, DeviceKind::Disk | DeviceKind::Network) {
        let more = [
            rotational(device, report),
            scheduler(device, report),
            requests(device),
            queues(device, report),
            polling(device),
            passthrough(device, report),
            write_cache(device),
            blocks(device),
            largest(device),
            slow_bus(device),
        ];
        found.extend(more.into_iter().flatten());
    }
    found
}

/// Returns a finding about the kind of the device.
fn layer(device: &Device) -> Option<Finding> {
    let name = &device.name;
    let model = device.model.as_deref().unwrap_or("unknown");
    let copies = "I/O copies memory, without a queue";
    let compresses =
        "I/O compresses and decompresses on this CPU, without a queue, so depth and polling gain nothing";
    let leave = "leave OpenOptions::route on auto, depth 1";
    Some(match device.kind {
        DeviceKind::Loop => return looped(device),
        DeviceKind::Crypt => {
            let detail = "dm-crypt: every block costs CPU time, and by default passes through two more queues of \
                kernel threads";
            let flags = "--perf-no_read_workqueue --perf-no_write_workqueue";
            let fix = format!("as root: `cryptsetup refresh {flags} {model}`");
            Finding::costly(30, format!("{name} encrypts"), detail, fix)
        }
        DeviceKind::Md if ["raid4", "raid5", "raid6"].contains(&model) => {
            let detail = format!(
                "{model}: a write smaller than a stripe reads two blocks and writes two; by default one thread \
                 does this for all writes"
            );
            let echo = format!("`echo 4 > /sys/block/{name}/md/group_thread_cnt`");
            let fix = format!("write whole stripes; as root: {echo}; or use raid10");
            Finding::costly(55, format!("{name} computes parity"), detail, fix)
        }
        DeviceKind::Md => {
            let detail = format!("{model} of {} devices", device.below.len());
            Finding::fine(format!("{name} is software RAID"), detail)
        }
        DeviceKind::Lvm => Finding::fine(format!("{name} is a logical volume"), model),
        DeviceKind::Dm => {
            let title = format!("{name} is a layer of the device mapper");
            let detail =
                format!("{model}: snapshots and thin pools look up, and copy, blocks on their first write");
            Finding::notable(10, title, detail, format!("see what it does: `dmsetup table {model}`"))
        }
        DeviceKind::Zram => Finding::notable(19, format!("{name} is compressed memory"), compresses, leave),
        DeviceKind::Ram => Finding::notable(1, format!("{name} is memory"), copies, leave),
        DeviceKind::Network => {
            let fix = "use many operations at once (iodepth 32 or more), or a local disk";
            let title = format!("{name} is on another machine");
            Finding::costly(250, title, "every request crosses the network", fix)
        }
        DeviceKind::Disk | DeviceKind::Partition => return None,
    })
}

fn looped(device: &Device) -> Option<Finding> {
    let backing = device.backing.as_ref()?;
    let (name, path) = (&device.name, &backing.path);
    let on = backing.filesystem.as_deref().map(|filesystem| format!(" on {filesystem}")).unwrap_or_default();
    if matches!(backing.filesystem.as_deref(), Some("tmpfs" | "ramfs")) {
        let detail = format!(
            "{path}{on}: a kernel thread copies each block; measurements here say nothing about a disk"
        );
        let fix = "name a device or folder on a disk";
        return Some(Finding::notable(21, format!("{name} is a file in memory"), detail, fix));
    }
    if backing.direct == Some(false) {
        let detail = format!(
            "a loop device over {path}{on}, without direct I/O: data is in the page cache once for the \
             device and once for the file, and a kernel thread blocks for each request"
        );
        let fix = format!("as root: `losetup --direct-io=on /dev/{name}`");
        return Some(Finding::costly(70, format!("{name} caches everything twice"), detail, fix));
    }
    let title = format!("{name} is a file shown as a device");
    let detail =
        format!("a loop device over {path}{on}, with direct I/O: each request passes two file systems");
    Some(Finding::notable(12, title, detail, "use a partition or a logical volume if that matters"))
}

/// Returns the time of a direct read, if no cache or other machine lies between it and the disk.
fn direct_read(report: &Report) -> Option<f64> {
    let plain = |device: &Device| {
        !matches!(device.kind, DeviceKind::Loop | DeviceKind::Zram | DeviceKind::Ram | DeviceKind::Network)
    };
    let stack = report.device.as_ref().map(Device::stack).unwrap_or_default();
    report.file.direct.as_ref()?.read_us.filter(|_| stack.into_iter().all(plain))
}

fn rotational(device: &Device, report: &Report) -> Option<Finding> {
    device.queue.rotational.filter(|&spins| spins)?;
    let name = &device.name;
    let virtual_disk = matches!(device.bus.as_deref(), Some("virtio" | "xen"))
        || report.process.virtual_machine == Some(true);
    let claims = |why: String| {
        let detail = format!("the kernel orders requests for a moving head, but {why}");
        let fix = format!("as root: `echo 0 > /sys/block/{name}/queue/rotational`");
        Some(Finding::notable(11, format!("{name} claims to be a spinning disk"), detail, fix))
    };
    match direct_read(report) {
        Some(us) if us < SPINS_US && virtual_disk => claims(format!("a direct read takes {}", time(us))),
        None if virtual_disk => claims("most virtual disks report this, whatever they are".into()),
        _ => Some(Finding::costly(
            500,
            format!("{name} is a spinning disk"),
            "a random read takes about 10 ms, a hundred times as long as on an SSD; sequential reads are fast",
            "use an SSD; otherwise large sequential blocks, and many at once (iodepth 32), which the disk can reorder",
        )),
    }
}

fn scheduler(device: &Device, report: &Report) -> Option<Finding> {
    let name = &device.name;
    let scheduler = device.queue.scheduler.as_deref()?;
    if scheduler == "none" {
        return Some(Finding::fine(format!("{name} has no I/O scheduler"), "scheduler none"));
    }
    let quick = device.queue.rotational == Some(false) || direct_read(report).is_some_and(|us| us < SPINS_US);
    quick.then(|| {
        let title = format!("{name} has an I/O scheduler");
        let detail = format!(
            "{scheduler} sorts requests for a disk that is fast anyway: CPU time and a lock for each \
             request, and fewer IOPS at high depths"
        );
        let fix = format!("as root: `echo none > /sys/block/{name}/queue/scheduler`");
        Finding::notable(if scheduler == "bfq" { 23 } else { 13 }, title, detail, fix)
    })
}

fn requests(device: &Device) -> Option<Finding> {
    let name = &device.name;
    if let Some(depth) = device.queue.depth.filter(|&depth| depth < 16) {
        let title = format!("{name} takes few requests at once");
        let detail = format!("queue_depth is {depth}: more operations in flight only wait");
        let fix =
            format!("as root: `echo 31 > /sys/block/{name}/device/queue_depth` (SATA: AHCI in the firmware)");
        return Some(Finding::notable(15, title, detail, fix));
    }
    let requests = device.queue.requests.filter(|&requests| requests < FEW_REQUESTS)?;
    let title = format!("{name} has a short queue");
    let detail = format!("nr_requests is {requests}: a greater iodepth blocks the submitting thread");
    let fix = format!("as root: `echo 256 > /sys/block/{name}/queue/nr_requests`");
    Some(Finding::notable(14, title, detail, fix))
}

fn queues(device: &Device, report: &Report) -> Option<Finding> {
    let queues = device.queue.hardware_queues?;
    let cpus = report.process.cpus as u64;
    let fix = match device.bus.as_deref()? {
        "virtio" => format!("in the hypervisor: num-queues={cpus} for this disk"),
        "xen" => format!("in the hypervisor: more rings for this disk (xen_blkfront.max_queues={cpus})"),
        _ => return None,
    };
    (queues < cpus && cpus > 1).then(|| {
        let title = format!("{} has fewer queues than there are cores", device.name);
        let detail = format!(
            "{queues} for {cpus} cores, so threads contend for locks, and completions arrive at few cores"
        );
        Finding::notable(6, title, detail, fix)
    })
}

fn polling(device: &Device) -> Option<Finding> {
    let (module, polling) = match device.bus.as_deref()? {
        "nvme" => ("nvme", device.queue.polling?),
        "virtio" => ("virtio_blk", device.queue.polling?),
        _ => return None,
    };
    let name = &device.name;
    if polling {
        let title = format!("{name} has poll queues");
        let detail = "OpenOptions::iopoll(true) saves the interrupt";
        return Some(Finding::fine(title, detail));
    }
    let title = format!("{name} has no poll queues");
    let detail = "io_poll is 0: OpenOptions::iopoll(true) fails with EOPNOTSUPP, or on older kernels gains \
        nothing; completions arrive by interrupt (a few µs for each operation)";
    let fix = format!("only for latency below 20 µs: {module}.poll_queues=2 on the kernel's command line");
    Some(Finding::notable(2, title, detail, fix))
}

/// Returns a finding if programs can send NVMe commands to the drive, past the block layer.
fn passthrough(device: &Device, report: &Report) -> Option<Finding> {
    let path = device.passthrough.as_ref()?;
    let usable = |name| is_usable(&report.features, name);
    (usable("large_entries") && usable("op_uring_cmd")).then(|| {
        let title = format!("{} takes NVMe commands", device.name);
        let detail = format!(
            "a program that uses the whole drive, without a file system, can open {path} and bypass the \
             block layer (to write, with OpenOptions::allow_raw_nvme_writes(true))"
        );
        Finding::fine(title, detail)
    })
}

fn write_cache(device: &Device) -> Option<Finding> {
    let name = &device.name;
    // The time of a durable write shows what a volatile cache costs.
    let is_durable = device.queue.write_cache.as_deref()? == "write through";
    let detail = "write through: completed writes survive a power cut";
    is_durable.then(|| Finding::fine(format!("{name} needs no flush"), detail))
}

fn read_ahead(device: &Device) -> Option<Finding> {
    let ahead = device.queue.read_ahead_kb.filter(|&ahead| ahead > MUCH_READ_AHEAD)?;
    let name = &device.name;
    let title = format!("{name} reads far ahead");
    let detail = format!(
        "{} for sequential buffered reads: good for streams, wasted on other reads, up to that much for one page",
        Bytes(ahead << 10)
    );
    let fix = format!(
        "as root: `echo 128 > /sys/block/{name}/queue/read_ahead_kb`; or File::advise with Advice::Random, \
         or direct I/O"
    );
    Some(Finding::notable(10, title, detail, fix))
}

fn blocks(device: &Device) -> Option<Finding> {
    let (logical, physical) = (device.queue.logical_block?, device.queue.physical_block?);
    (logical < physical).then(|| {
        let title = format!("{} writes blocks of {}", device.name, Bytes(physical));
        let detail = format!(
            "it accepts {logical} bytes, but first reads the rest of the block for a write that is not a \
             multiple of {physical}"
        );
        let fix = format!("write in multiples of {physical} bytes, at offsets that are multiples too");
        Finding::notable(3, title, detail, fix)
    })
}

fn largest(device: &Device) -> Option<Finding> {
    let largest = device.queue.max_sectors_kb.filter(|&kib| kib < 128)?;
    let name = &device.name;
    let title = format!("{name} accepts only small requests");
    let detail = format!("{largest} KiB at most: larger I/O is split");
    let fix =
        format!("as root: `echo 1280 > /sys/block/{name}/queue/max_sectors_kb` (up to max_hw_sectors_kb)");
    Some(Finding::notable(7, title, detail, fix))
}

fn slow_bus(device: &Device) -> Option<Finding> {
    let bus = device.bus.as_deref().filter(|bus| ["usb", "mmc", "iscsi"].contains(bus))?;
    let title = format!("{} is attached by {bus}", device.name);
    let detail = match bus {
        "iscsi" => "every request crosses the network",
        "usb" => "few requests at once (one, without UAS), and flushes that can't be trusted",
        _ => "one request at a time, and small random writes take milliseconds",
    };
    let fix = "keep frequently used data on an NVMe or SATA disk";
    Some(Finding::costly(80, title, detail, fix))
}

fn limited(limit: &IoLimit) -> Finding {
    let (what, unit) = match limit.what.as_str() {
        "rbps" => ("reads", "a second"),
        "wbps" => ("writes", "a second"),
        "riops" => ("reads", "operations a second"),
        "wiops" => ("writes", "operations a second"),
        other => (other, "a second"),
    };
    let rate =
        if limit.what.ends_with("iops") { limit.limit.to_string() } else { Bytes(limit.limit).to_string() };
    let title = format!("A control group limits {what}");
    let detail = format!("io.max of device {}: {rate} {unit}; I/O beyond that waits", limit.device);
    let fix = format!(
        "raise it: echo '{} {}=max' > /sys/fs/cgroup/GROUP/io.max (docker run --device-{}-{} unset)",
        limit.device,
        limit.what,
        if limit.what.starts_with('r') { "read" } else { "write" },
        &limit.what[1..]
    );
    Finding::costly(600, title, detail, fix)
}
