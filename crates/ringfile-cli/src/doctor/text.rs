//! The findings and facts as text for a terminal.
//!
//! Invariants: no line is longer than the requested width, except for a single word or command that is: commands are
//! never broken, so that they can be copied. Text from files and devices cannot move the cursor.

use console::{Style, style};

use super::Report;
use super::device::{Device, DeviceKind};
use super::features::Feature;
use super::process::{Limit, Process};
use super::report::{Finding, Severity};
use crate::error::one_line;
use crate::model::by;
use crate::numbers::counted;
use crate::terminal;
use crate::values::Bytes;

/// Columns if standard output is no terminal.
pub const WIDTH: usize = 100;

/// Wider lines are hard to read; narrower ones have no room for words.
const WIDEST: usize = 100;
const NARROWEST: usize = 20;

/// Returns the text for a terminal of so many columns.
pub fn of(report: &Report, columns: usize) -> String {
    let width = columns.clamp(NARROWEST, WIDEST);
    let mut page = Page { text: String::new(), width };
    page.indented("", &format!("ringfile doctor {}", report.file.path));
    page.indented("", &summary(report));
    page.findings(&report.findings);
    page.fine(&report.findings);
    page.section("Process", &process(&report.process));
    page.section("File", &file(report));
    page.section("Device", &devices(report));
    page.section("io_uring here", &features(report));
    page.text
}

struct Page {
    text: String,
    width: usize,
}

impl Page {
    /// Adds a text whose lines all begin with `indent`.
    fn indented(&mut self, indent: &str, text: &str) {
        self.entry(indent, indent, text);
    }

    /// Adds a text after `head`, whose other lines begin with `indent`.
    fn entry(&mut self, head: &str, indent: &str, text: &str) {
        // Breaking would drop blanks at the start of a line.
        let head = head.replace(' ', "\u{a0}");
        let wrapped = terminal::wrap(&format!("{head}{}", unbroken(&one_line(text))), self.width, indent);
        self.text += &wrapped.replace('\u{a0}', " ");
        self.text.push('\n');
    }

    fn title(&mut self, title: &str) {
        self.text.push('\n');
        for line in terminal::wrap(title, self.width, "").lines() {
            self.text += &format!("{}\n", style(line).bold());
        }
    }

    fn findings(&mut self, all: &[Finding]) {
        let matter = || all.iter().filter(|finding| finding.severity != Severity::Fine);
        if matter().next().is_none() {
            self.title("Nothing found that makes I/O slow here");
            return;
        }
        self.title("What makes I/O slow here, most costly first");
        for (index, finding) in matter().enumerate() {
            self.text.push('\n');
            let (word, look) = match finding.severity {
                Severity::Costly => ("costly", Style::new().red().bold()),
                _ => ("notable", Style::new().yellow()),
            };
            let start = self.text.len();
            self.indented("", &format!("{}. {word}: {}", index + 1, finding.title));
            // Colours come after breaking, because they would count as characters.
            let coloured = self.text.split_off(start).replacen(word, &look.apply_to(word).to_string(), 1);
            self.text += &coloured;
            self.indented("   ", &sentence(&finding.detail));
            self.indented("   ", &format!("Do: {}", finding.fix));
        }
    }

    fn fine(&mut self, all: &[Finding]) {
        let fine: Vec<&Finding> = all.iter().filter(|finding| finding.severity == Severity::Fine).collect();
        if fine.is_empty() {
            return;
        }
        self.title("What is fine");
        for finding in fine {
            self.entry("- ", "  ", &format!("{}: {}", finding.title, finding.detail));
        }
    }

    fn section(&mut self, title: &str, facts: &[(&str, String)]) {
        if facts.is_empty() {
            return;
        }
        self.title(title);
        let widest = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        // Beside the names if there is room for words, else below.
        let beside = self.width >= 2 * widest + 24;
        for (name, text) in facts {
            if beside {
                self.entry(&format!("  {name:<widest$}  "), &" ".repeat(widest + 4), text);
            } else {
                self.entry("- ", "  ", &format!("{name}: {text}"));
            }
        }
    }
}

/// Makes one word of each text between backticks.
fn unbroken(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts =
        parts.map(|(index, part)| if index % 2 == 1 { part.replace(' ', "\u{a0}") } else { part.into() });
    parts.collect::<Vec<String>>().join("`")
}

/// Returns a text with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    // Names of commands, files and devices stay as they are.
    let word = text.split(' ').next().unwrap_or_default();
    let plain = !word.is_empty() && word.chars().all(|character| character.is_ascii_lowercase());
    let known = ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "mq-deadline", "bfq", "kyber"];
    let rest = text.get(1..).unwrap_or_default();
    if plain && !known.contains(&word) {
        format!("{}{rest}.", text[..1].to_uppercase())
    } else {
        format!("{text}.")
    }
}

fn summary(report: &Report) -> String {
    let process = &report.process;
    let mut parts = vec![format!("Linux {}", report.kernel.as_deref().unwrap_or("unknown"))];
    parts.push(counted(process.cpus, "core"));
    if process.virtual_machine == Some(true) {
        parts.push("a virtual machine".into());
    }
    parts.extend(
        process.user.map(|user| if user == 0 { "as root".into() } else { format!("as user {user}") }),
    );
    let filesystem = report.file.filesystem.clone();
    let device = report.device.as_ref().map(|device| format!("on {}", device.name));
    let place = [filesystem, device].into_iter().flatten().collect::<Vec<_>>().join(" ");
    parts.extend((!place.is_empty()).then_some(place));
    parts.join(", ")
}

/// Returns the facts of the process that no finding states.
fn process(process: &Process) -> Vec<(&'static str, String)> {
    let seccomp = process.seccomp.as_deref().unwrap_or("unknown");
    let rights = if process.no_new_privs == Some(true) { ", no new privileges" } else { "" };
    let (files, processes) = (limit(&process.open_files), limit(&process.processes));
    let mut facts = vec![("seccomp", format!("{seccomp}{rights}"))];
    facts.extend(process.container.as_ref().map(|container| ("container", format!("yes: {container}"))));
    facts.push(("limits", format!("{files} open files, {processes} processes")));
    facts.push(("memory", memory(process)));
    facts
}

fn memory(process: &Process) -> String {
    let memory = &process.memory;
    let size = |bytes: Option<u64>| bytes.map_or("unknown".into(), |bytes| Bytes(bytes).to_string());
    let swap = match (memory.swap_total, memory.swap_free) {
        (Some(0), _) => "no swap".into(),
        (Some(total), Some(free)) => {
            format!("{} of {} swap used", Bytes(total.saturating_sub(free)), Bytes(total))
        }
        _ => "swap unknown".into(),
    };
    let huge = memory.huge_pages.as_deref().unwrap_or("unknown");
    format!("{} of {} available, {swap}, huge pages: {huge}", size(memory.available), size(memory.total))
}

fn limit(limit: &Limit) -> String {
    match (limit.soft, limit.hard) {
        (None, _) => "unlimited".into(),
        (Some(soft), Some(hard)) if hard > soft => format!("{soft} (may be raised to {hard})"),
        (Some(soft), None) => format!("{soft} (may be raised)"),
        (Some(soft), _) => soft.to_string(),
    }
}

/// Returns the facts of PATH that no finding states.
fn file(report: &Report) -> Vec<(&'static str, String)> {
    let file = &report.file;
    let mut facts = Vec::new();
    if let Some(filesystem) = &file.filesystem {
        let known = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".into());
        let (source, point) = (known(&file.source), known(&file.mount_point));
        facts.push(("file system", format!("{filesystem} from {source} on {point}")));
        facts.push(("mount options", file.options.join(", ")));
    }
    if let (Some(total), Some(available)) = (file.space_total, file.space_available) {
        facts.push(("space", format!("{} of {} free", Bytes(available), Bytes(total))));
    }
    if let Some(size) = file.size {
        facts.push(("size", Bytes(size).to_string()));
    }
    if !file.attributes.is_empty() {
        facts.push(("attributes", file.attributes.join(", ")));
    }
    if file.reads_tried == file.writes_tried {
        facts.push(("tried on", file.writes_tried.clone()));
    } else {
        facts.push(("reads", file.reads_tried.clone()));
        facts.push(("writes", file.writes_tried.clone()));
    }
    // Facts are empty if PATH did not answer.
    facts.retain(|(_, fact)| !fact.is_empty());
    if let Some(direct) = &file.direct {
        let atomic = match direct.atomic_writes {
            Some([min, max]) => format!(
                "a power of two from {} to {}, at a multiple of it (`File::write_atomic_at`)",
                Bytes(min.into()),
                Bytes(max.into())
            ),
            None => "none: the file system, the device or the kernel does not support them".into(),
        };
        facts.push(("atomic writes", atomic));
    }
    if let Some(adaptive) = file.adaptive {
        let text = match adaptive {
            true => "yes: cached data from the page cache, other data past it (`OpenOptions::adaptive`)",
            false => {
                "no, only buffered: no O_DIRECT, or the kernel does not report what the page cache holds"
            }
        };
        facts.push(("adaptive reads", text.into()));
    }
    let routes: Vec<String> =
        file.routes.iter().map(|taken| format!("{} by {}", taken.what, taken.most())).collect();
    if !routes.is_empty() {
        facts.push(("ringfile's routes", routes.join(", ")));
    }
    facts
}

fn devices(report: &Report) -> Vec<(&'static str, String)> {
    let Some(top) = &report.device else { return Vec::new() };
    let mut facts: Vec<(&'static str, String)> = Vec::new();
    for (index, device) in top.stack().into_iter().enumerate() {
        facts.push((if index == 0 { "below the file" } else { "below that" }, layer(device)));
        if device.kind != DeviceKind::Partition {
            facts.push(("queue", queue(device)));
        }
    }
    facts
}

fn layer(device: &Device) -> String {
    let kind = match device.kind {
        DeviceKind::Disk => "a disk".into(),
        DeviceKind::Partition => "a partition".into(),
        DeviceKind::Loop => {
            let path = device.backing.as_ref().map_or("nothing", |backing| backing.path.as_str());
            format!("a loop device over {path}")
        }
        DeviceKind::Md => "software RAID".into(),
        DeviceKind::Dm => "device mapper".into(),
        DeviceKind::Crypt => "encrypted (dm-crypt)".into(),
        DeviceKind::Lvm => "a logical volume".into(),
        DeviceKind::Zram => "compressed memory".into(),
        DeviceKind::Ram => "memory".into(),
        DeviceKind::Network => "on another machine".into(),
    };
    let size = device.size.map(|size| Bytes(size).to_string());
    let all = [Some(kind), device.bus.clone(), device.model.clone(), size];
    format!("{}: {}", device.name, all.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn queue(device: &Device) -> String {
    let queue = &device.queue;
    let count = |name: &str, value: Option<u64>| value.map(|value| format!("{name} {value}"));
    let yes = |name: &str, value: Option<bool>| {
        value.map(|value| format!("{name} {}", if value { "yes" } else { "no" }))
    };
    let all = [
        queue.scheduler.as_ref().map(|scheduler| format!("scheduler {scheduler}")),
        count("requests", queue.requests),
        count("depth", queue.depth),
        count("hardware queues", queue.hardware_queues),
        yes("polling", queue.polling),
        queue.write_cache.as_ref().map(|cache| format!("cache {cache}")),
        yes("FUA", queue.fua),
        yes("spinning", queue.rotational),
        queue
            .logical_block
            .zip(queue.physical_block)
            .map(|(logical, physical)| format!("blocks {logical}/{physical}")),
        queue.max_sectors_kb.map(|kib| format!("requests up to {}", Bytes(kib << 10))),
        queue.read_ahead_kb.map(|kib| format!("read-ahead {}", Bytes(kib << 10))),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn features(report: &Report) -> Vec<(&'static str, String)> {
    let named = |usable: Option<bool>| report.features.iter().filter(move |feature| feature.usable == usable);
    let mut facts = Vec::new();
    let works: Vec<&str> = named(Some(true)).map(|feature| feature.name.as_str()).collect();
    if !works.is_empty() {
        facts.push(("works", works.join(", ")));
    }
    for (word, usable) in [("does not", Some(false)), ("not known", None)] {
        // One reason often holds for several.
        let features: Vec<&Feature> = named(usable).collect();
        for (index, (why, features)) in by(&features, |feature| &feature.why).into_iter().enumerate() {
            let names: Vec<&str> = features.iter().map(|feature| feature.name.as_str()).collect();
            facts.push((if index == 0 { word } else { "" }, format!("{}: {why}", names.join(", "))));
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lines_but_commands_fit() {
        let finding = |fix: &str| Page { text: String::new(), width: 30 }.with("   ", fix);
        let text = finding(
            "as root: `echo none > /sys/block/vda/queue/scheduler` or leave it as it is, for it is little",
        );
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 30).collect();
        assert_eq!(long, ["   `echo none > /sys/block/vda/queue/scheduler`"]);
        assert!(text.lines().all(|line| line.starts_with("   ")), "{text}");
    }

    impl Page {
        fn with(mut self, indent: &str, text: &str) -> String {
            self.indented(indent, text);
            self.text
        }
    }

    #[test]
    fn sentences_begin_and_end() {
        assert_eq!(sentence("the kernel does"), "The kernel does.");
        assert_eq!(sentence("mq-deadline sorts"), "mq-deadline sorts.");
        assert_eq!(sentence("ext4 refuses"), "ext4 refuses.");
        assert_eq!(sentence("8 MiB"), "8 MiB.");
        assert_eq!(sentence(""), ".");
    }

    #[test]
    fn a_limit_is_shown_with_what_it_may_be_raised_to() {
        let shown = |soft, hard| limit(&Limit { soft, hard });
        assert_eq!(shown(None, None), "unlimited");
        assert_eq!(shown(Some(5), Some(5)), "5");
        assert_eq!(shown(Some(5), Some(9)), "5 (may be raised to 9)");
        assert_eq!(shown(Some(5), None), "5 (may be raised)");
    }

    #[test]
    fn control_characters_in_names_are_escaped() {
        let text = Page { text: String::new(), width: 80 }.with("", "a\nb\u{1b}[2J");
        assert_eq!(text, "a\\nb\\u{1b}[2J\n");
    }
}
