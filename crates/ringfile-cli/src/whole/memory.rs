//! Bytes moved to and from the machine's memory, counted by its memory controllers or by resctrl.
//!
//! Few machines offer either, and hardly any virtual machine. Without them the command only prints a note.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use perf_event::events::Dynamic;
use perf_event::{Builder, Counter};

use crate::error::errno_text;

/// perf's names for the bytes that a controller has read and written: on servers, on desktops, on desktops since 2019.
/// Each has a scale that converts it to MiB.
const EVENTS: [&str; 6] =
    ["cas_count_read", "cas_count_write", "data_reads", "data_writes", "data_read", "data_write"];

const DEVICES: &str = "/sys/bus/event_source/devices";
const RESCTRL: &str = "/sys/fs/resctrl/mon_data";

static SOURCE: OnceLock<Result<Mutex<BandwidthSource>, String>> = OnceLock::new();

enum BandwidthSource {
    /// Counters of the controllers, each with the number of bytes for one count.
    Controllers(Vec<(Counter, f64)>),
    /// For each last-level cache, the file that shows the bytes transferred.
    Resctrl(Vec<PathBuf>),
}

/// Returns the bytes moved since a fixed moment; `None` if nothing counts them.
pub fn bytes_so_far() -> Option<u64> {
    let source = SOURCE.get_or_init(|| open().map(Mutex::new)).as_ref().ok()?;
    match &mut *source.lock().unwrap_or_else(PoisonError::into_inner) {
        BandwidthSource::Controllers(counters) => {
            let bytes =
                counters.iter_mut().map(|(counter, scale)| Some(counter.read().ok()? as f64 * *scale));
            Some(bytes.sum::<Option<f64>>()? as u64)
        }
        BandwidthSource::Resctrl(files) => {
            files.iter().map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()).sum()
        }
    }
}

/// Returns why nothing counts them; `None` if something does.
pub fn why_not() -> Option<String> {
    SOURCE.get_or_init(|| open().map(Mutex::new)).as_ref().err().cloned()
}

fn open() -> Result<BandwidthSource, String> {
    let files = resctrl_files(Path::new(RESCTRL));
    match controllers(&events(Path::new(DEVICES))) {
        Ok(counters) if !counters.is_empty() => Ok(BandwidthSource::Controllers(counters)),
        _ if !files.is_empty() => Ok(BandwidthSource::Resctrl(files)),
        Ok(_) => Err(format!(
            "perf shows no memory controller (uncore_imc_* in {DEVICES}), and resctrl is not mounted or does not count \
             (mon_L3_*/mbm_total_bytes in {RESCTRL}): a virtual machine hardly ever has either"
        )),
        Err(why) => Err(why),
    }
}

/// Returns each event of each memory controller: the controller's folder, and the event's name.
fn events(devices: &Path) -> Vec<(PathBuf, &'static str)> {
    let names = fs::read_dir(devices).into_iter().flatten().flatten();
    let mut controllers: Vec<PathBuf> = names
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("uncore_imc"))
        .map(|entry| entry.path())
        .collect();
    controllers.sort();
    let has = |controller: &PathBuf, event: &str| controller.join("events").join(event).exists();
    let of = |controller: PathBuf| {
        let there = EVENTS.into_iter().filter(|event| has(&controller, event)).collect::<Vec<_>>();
        there.into_iter().map(move |event| (controller.clone(), event))
    };
    controllers.into_iter().flat_map(of).collect()
}

fn controllers(events: &[(PathBuf, &'static str)]) -> Result<Vec<(Counter, f64)>, String> {
    let mut counters = Vec::new();
    for (controller, name) in events {
        let opened = counters_of(controller, name).map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => {
                "this user may not count memory traffic: run as root, or set the sysctl kernel.perf_event_paranoid to 0"
                    .to_string()
            }
            _ => format!("{}: its counter can't be opened: {}", controller.display(), errno_text(&error)),
        })?;
        counters.extend(opened);
    }
    Ok(counters)
}

/// Opens a counter for each processor package: the controllers of a package are counted on one of its cores.
fn counters_of(controller: &Path, name: &str) -> std::io::Result<Vec<(Counter, f64)>> {
    let other = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
    let mut builder = Dynamic::builder(controller)?;
    builder.event(name)?;
    let event = builder.build().map_err(|error| other(&error))?;
    // perf's scale converts to MiB; without a scale, each count is 64 bytes.
    let scale = builder.scale()?.map_or(64.0, |scale| scale * f64::from(1 << 20));
    let cores = fs::read_to_string(controller.join("cpumask"))?;
    let mut counters = Vec::new();
    for core in cores.trim().split(',').filter_map(|core| core.split('-').next()?.parse::<usize>().ok()) {
        let mut counter =
            Builder::new(event).any_pid().one_cpu(core).include_kernel().include_hv().build()?;
        counter.enable()?;
        counters.push((counter, scale));
    }
    Ok(counters)
}

/// Returns the files that count: a processor without monitoring has none, or they contain `Unavailable`.
fn resctrl_files(folder: &Path) -> Vec<PathBuf> {
    let caches = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = caches.map(|cache| cache.path().join("mbm_total_bytes"));
    let counts =
        |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| text.trim().parse::<u64>().is_ok());
    let mut files: Vec<PathBuf> = files.filter(counts).collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counters_are_found_and_other_events_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, text).expect("write");
        };
        file("devices/uncore_imc_1/events/cas_count_read", "event=0x04,umask=0x03");
        file("devices/uncore_imc_0/events/cas_count_write", "event=0x04,umask=0x0c");
        file("devices/uncore_imc_0/events/cas_count_read.scale", "6.1e-5");
        file("devices/uncore_cha_0/events/cas_count_read", "event=0x04");
        file("devices/cpu/events/data_reads", "event=0x04");
        let found = events(&folder.path().join("devices"));
        let names: Vec<String> = found
            .iter()
            .map(|(path, event)| format!("{} {event}", path.file_name().expect("a name").to_string_lossy()))
            .collect();
        assert_eq!(names, ["uncore_imc_0 cas_count_write", "uncore_imc_1 cas_count_read"]);
        file("mon_data/mon_L3_00/mbm_total_bytes", "4096\n");
        file("mon_data/mon_L3_01/mbm_total_bytes", "Unavailable\n");
        file("mon_data/mon_L3_02/llc_occupancy", "1\n");
        let files = resctrl_files(&folder.path().join("mon_data"));
        assert_eq!(files, [folder.path().join("mon_data/mon_L3_00/mbm_total_bytes")]);
        assert!(
            events(Path::new("/nonexistent")).is_empty()
                && resctrl_files(Path::new("/nonexistent")).is_empty()
        );
    }

    #[test]
    fn memory_traffic_is_counted_or_the_reason_is_given() {
        match why_not() {
            Some(why) => assert!(bytes_so_far().is_none() && why.len() > 20 && !why.contains('\n'), "{why}"),
            None => assert!(bytes_so_far().is_some()),
        }
    }
}
