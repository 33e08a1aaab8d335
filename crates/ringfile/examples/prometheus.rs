//! Serves the library's counters and the latencies of a file's operations to Prometheus: `cargo run --example prometheus
//! [ADDRESS]`.
//!
//! With an address such as `127.0.0.1:9187` it reads a file and answers requests until it is stopped. Without one it makes a
//! request itself, and checks the answer.

use std::fmt::Write as _;
use std::io::{Error, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ringfile::metrics::{Latencies, Metrics, OperationKind};
use ringfile::{OpenOptions, Pool};

/// The files whose latencies are shown, by the name in the label `file`.
type Files = Vec<(String, Latencies)>;

/// The bounds of the buckets, in nanoseconds, as powers of two: from 1 µs to 17 s. There the library's counts are exact.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;

/// How long one client may keep the others waiting.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data \"1\".bin");
    std::fs::write(&path, vec![7; 1 << 20])?;
    let latencies = Latencies::new();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .latencies(&latencies)
        .slow_after(Duration::from_millis(50))
        .open_blocking(&path)?;
    let files = vec![(path.display().to_string(), latencies)];
    let pool = Pool::new(1 << 20);
    ringfile::block_on(async {
        for page in 0..256 {
            file.read_at(pool.get(4096)?, page * 4096).await?;
        }
        file.write_at(vec![8; 4096], 0).await?;
        file.sync_data().await?;
        Result::Ok(())
    })?;

    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0"))?;
    let local = listener.local_addr()?;
    if address.is_some() {
        println!("http://{local}/metrics");
        return serve(&listener, &pool, &files);
    }
    let server = std::thread::spawn(move || answer(listener.accept()?.0, &pool, &files));
    let mut request = TcpStream::connect(local)?;
    // The rest belongs to a next request, which is not answered.
    request.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /")?;
    let mut response = String::new();
    request.read_to_string(&mut response)?;
    server.join().map_err(|_| Error::other("the server panicked"))??;
    let samples = check::response(&response, &path).map_err(Error::other)?;
    println!("{samples} samples");
    Ok(())
}

/// Answers one request after another, which is enough for a program that asks every few seconds.
fn serve(listener: &TcpListener, pool: &Pool, files: &Files) -> Result<()> {
    loop {
        match listener.accept() {
            // A client that leaves early, or is too slow, is no reason to stop.
            Ok((stream, _)) => drop(answer(stream, pool, files)),
            // There may be no descriptor left for a while.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Reads a request as far as the empty line, and answers it. A client has [`PATIENCE`] for all of it.
fn answer(mut stream: TcpStream, pool: &Pool, files: &Files) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    // A timeout of 0 is an error, which ends the connection.
    let left = || Some(deadline.saturating_duration_since(Instant::now()));
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") && request.len() < 16 << 10 {
        stream.set_read_timeout(left())?;
        match stream.read(&mut piece)? {
            0 => break,
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", metrics(pool, files))
    } else {
        ("404 Not Found", String::new())
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let len = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(left())?;
        match stream.write(rest)? {
            0 => break,
            count => rest = &rest[count..],
        }
    }
    Ok(())
}

/// Returns all metrics in Prometheus's text format.
fn metrics(pool: &Pool, files: &Files) -> String {
    let mut text = String::new();
    counters(&mut text, &ringfile::metrics());
    let memory = pool.metrics();
    for (name, help, value) in [
        ("ringfile_pool_in_use_bytes", "Bytes of the pool's memory in use.", memory.in_use),
        ("ringfile_pool_reserved_bytes", "Bytes of memory that the pool has reserved.", memory.reserved),
    ] {
        family(&mut text, name, "gauge", help);
        let _ = writeln!(text, "{name} {value}");
    }
    histograms(&mut text, files);
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn counters(text: &mut String, counts: &Metrics) {
    // A thread that is counting may have published one of them and not yet the other.
    let elsewhere = counts.inline_ops + counts.worker_ops + counts.aio_ops;
    let on_rings = counts.ops.saturating_sub(elsewhere);
    family(text, "ringfile_operations_total", "counter", "Operations that finished, by route.");
    for (route, count) in [
        ("ring", on_rings),
        ("inline", counts.inline_ops),
        ("workers", counts.worker_ops),
        ("aio", counts.aio_ops),
    ] {
        let _ = writeln!(text, "ringfile_operations_total{{route=\"{route}\"}} {count}");
    }
    for (name, help, count) in [
        ("fixed_operations", "Operations on registered memory.", counts.fixed_ops),
        ("failed_operations", "Operations that ended with an errno.", counts.failed),
        (
            "cancelled_operations",
            "Operations whose future was dropped before they finished.",
            counts.cancelled,
        ),
        (
            "resubmissions",
            "Operations that were continued after a short count or an interruption.",
            counts.resubmitted,
        ),
        ("read_bytes", "Bytes read.", counts.bytes_read),
        ("written_bytes", "Bytes written.", counts.bytes_written),
        ("enters", "Calls of io_uring_enter.", counts.enters),
        ("refused_registrations", "Times that registering memory was refused.", counts.refused_registrations),
        ("cache_hits", "Reads of adaptive files that found their data in the page cache.", counts.cache_hits),
        ("cache_misses", "Reads of adaptive files that did not.", counts.cache_misses),
    ] {
        let name = format!("ringfile_{name}_total");
        family(text, &name, "counter", help);
        let _ = writeln!(text, "{name} {count}");
    }
}

fn histograms(text: &mut String, files: &Files) {
    let name = "ringfile_operation_seconds";
    family(text, name, "histogram", "How long operations took, by file and kind.");
    for (file, latencies) in files {
        // In a label's value, these characters are escaped.
        let file = file.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        for kind in OperationKind::ALL {
            let (histogram, kind) = (latencies.histogram(kind), kind.name());
            let labels = format!("file=\"{file}\",kind=\"{kind}\"");
            for bound in BOUNDS.map(|power| Duration::from_nanos(1 << power)) {
                let (le, count) = (bound.as_secs_f64(), histogram.count_below(bound));
                let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{le}\"}} {count}");
            }
            let (count, sum) = (histogram.count(), histogram.sum().as_secs_f64());
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}");
        }
    }
}

/// Parses an answer, and checks it against the rules of the text format, and against what the program did.
mod check {
    use std::collections::BTreeMap;
    use std::path::Path;

    type Outcome<T> = Result<T, String>;

    /// Returns the number of samples.
    pub fn response(response: &str, path: &Path) -> Outcome<usize> {
        let (head, body) = response.split_once("\r\n\r\n").ok_or("no body")?;
        is(head.starts_with("HTTP/1.1 200 OK\r\n"), head)?;
        is(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), head)?;
        let samples = samples(body)?;
        let value = |sample: &str| samples.get(sample).copied().ok_or_else(|| format!("no sample {sample}"));
        let file = path.display().to_string().replace('"', "\\\"");
        let mut operations = 0.0;
        for kind in ["read", "write", "sync", "other"] {
            let (name, labels) = ("ringfile_operation_seconds", format!("file=\"{file}\",kind=\"{kind}\""));
            let buckets = buckets(&samples, &format!("{name}_bucket{{{labels},le="))?;
            let rises = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
            is(rises && buckets.len() == 26, &format!("buckets of {kind}: {buckets:?}"))?;
            let count = value(&format!("{name}_count{{{labels}}}"))?;
            is(buckets.last() == Some(&(f64::INFINITY, count)), "the last bucket is not the count")?;
            let sum = value(&format!("{name}_sum{{{labels}}}"))?;
            is((sum > 0.0) == (count > 0.0), &format!("{count} {kind} in {sum} s"))?;
            is((count > 0.0) == (kind != "other"), &format!("{count} {kind}"))?;
            is(kind != "sync" || count == 1.0, "one sync")?;
        }
        for route in ["ring", "inline", "workers", "aio"] {
            operations += value(&format!("ringfile_operations_total{{route=\"{route}\"}}"))?;
        }
        is(operations == 258.0, &format!("{operations} operations"))?;
        is(value("ringfile_read_bytes_total")? == f64::from(1 << 20), "bytes read")?;
        Ok(samples.len())
    }

    /// Parses the lines: each sample follows the HELP and TYPE lines of its family, and there is only one of it.
    fn samples(body: &str) -> Outcome<BTreeMap<&str, f64>> {
        let (mut samples, mut family, mut helped) = (BTreeMap::new(), ("", ""), "");
        is(body.ends_with('\n'), "the last line has no end")?;
        for line in body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped = help.split_once(' ').ok_or(line)?.0;
            } else if let Some(of) = line.strip_prefix("# TYPE ") {
                family = of.split_once(' ').ok_or(line)?;
                is(helped == family.0 && ["counter", "gauge", "histogram"].contains(&family.1), line)?;
            } else {
                let (sample, value) = line.rsplit_once(' ').ok_or(line)?;
                let name = sample.split('{').next().unwrap_or_default();
                let of_family = match family.1 {
                    "histogram" => ["_bucket", "_sum", "_count"]
                        .map(|end| format!("{}{end}", family.0))
                        .contains(&name.to_owned()),
                    "counter" => name == family.0 && name.ends_with("_total"),
                    _ => name == family.0,
                };
                is(of_family, line)?;
                let value = value.parse().map_err(|error| format!("{line}: {error}"))?;
                is(samples.insert(sample, value).is_none(), line)?;
            }
        }
        Ok(samples)
    }

    /// Returns the bounds and counts of the buckets whose sample begins this way, in ascending order.
    fn buckets(samples: &BTreeMap<&str, f64>, begin: &str) -> Outcome<Vec<(f64, f64)>> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (sample, &count) in samples {
            if let Some(bound) = sample.strip_prefix(begin) {
                let bound = bound.trim_end_matches('}').trim_matches('"');
                buckets.push((bound.parse().map_err(|error| format!("{sample}: {error}"))?, count));
            }
        }
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        Ok(buckets)
    }

    fn is(right: bool, what: &str) -> Outcome<()> {
        if right { Ok(()) } else { Err(what.to_owned()) }
    }
}
