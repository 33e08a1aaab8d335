//! Facts about the machine, for the results. An unknown fact is `None`, never an error.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Returns the content of a file of /proc or /sys, trimmed; `None` if it is empty or cannot be read.
pub fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty())
}

/// Returns the number in such a file.
pub fn number<T: FromStr>(path: impl AsRef<Path>) -> Option<T> {
    text(path)?.parse().ok()
}

/// Returns the release of the running kernel.
pub fn kernel() -> Option<String> {
    text("/proc/sys/kernel/osrelease")
}

/// Returns the processor's model name.
pub fn cpu_model() -> Option<String> {
    let text = text("/proc/cpuinfo")?;
    field(&text, "model name").or_else(|| field(&text, "Processor")).map(str::to_string)
}

/// Returns the number of cores that this process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the bytes of memory available without swapping.
pub fn memory_available() -> Option<u64> {
    bytes(&text("/proc/meminfo")?, "MemAvailable")
}

/// Returns the bytes that a field of /proc/meminfo states.
pub fn bytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.strip_suffix(" kB")?.parse::<u64>().ok().map(|kibibytes| kibibytes * 1024)
}

/// Returns whether buffers of this many bytes would take more than half of the available memory.
pub fn is_too_much(buffers: u64) -> bool {
    memory_available().is_some_and(|available| buffers > available / 2)
}

/// Returns the value of a field in a text of `name: value` lines, such as /proc/meminfo.
pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find_map(|(key, value)| (key.trim() == name).then_some(value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nMemAvailable:   12 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "MemAvailable"), Some("12 kB"));
        assert_eq!(field(text, "absent"), None);
    }

    #[test]
    fn this_machine_is_described() {
        assert!(kernel().is_some_and(|kernel| kernel.starts_with(|first: char| first.is_ascii_digit())));
        assert!(cpus() >= 1);
        assert!(memory_available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
