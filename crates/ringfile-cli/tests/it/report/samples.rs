//! Invented results in the form of the perf commands: what a disk might give, with noise from a fixed seed.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Invented noise, the same in every test run.
pub struct Noise(u64);

impl Noise {
    /// From a seed.
    pub fn new(seed: u64) -> Noise {
        Noise(seed)
    }

    /// Returns a factor that differs from 1 by at most `size`.
    fn factor(&mut self, size: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        1.0 + size * ((self.0 >> 33) as f64 / f64::from(1_u32 << 31) * 2.0 - 1.0)
    }
}

/// Returns a session without runs.
pub fn session(kind: &str, runs: Vec<Value>) -> Value {
    json!({
        "schema": 1, "kind": kind, "command": format!("ringfile perf {kind} --quick --file /var/tmp/data.bin"),
        "interrupted": false,
        "machine": {
            "kernel": "6.18.2", "cpu_model": "AMD EPYC 7B13", "cpus": 2, "filesystem": "ext4",
            "ring_features": ["SINGLE_ISSUER", "DEFER_TASKRUN", "NO_SQARRAY", "SUBMIT_ALL", "READV_FIXED", "CLONE_BUFFERS"],
            "fio": null
        },
        "params": {
            "file": "/var/tmp/data.bin", "file_created": true, "size_bytes": 1_u64 << 30, "block_size_bytes": 4096,
            "block_sizes_bytes": [4096, 131_072], "processes": [1, 2], "rate_limit_bytes": null, "duration_s": 0.25,
            "warmup_s": 0.05, "numjobs": [1], "iodepth": [1, 16, 64], "batch": [], "inflight": [],
            "rw": ["randread", "randwrite"], "buffers": ["normal", "fixed", "vectored", "vectored-fixed"], "direct": true,
            "cache": ["keep"], "route": ["ring"], "against": [], "rounds": 5, "verify": false
        },
        "runs": runs,
        "notes": [
            "/var/tmp/data.bin on ext4: 1 GiB, direct, made for this run and removed",
            "latencies in µs from submission to completion; CPU µs per operation, kernel workers included"
        ]
    })
}

/// Returns a run with all its fields; the caller sets those in which samples differ.
pub fn run(round: u32, role: &str, block: u64, depth: usize, iops: f64, cpu: f64) -> Value {
    let latency = (depth as f64 * 1e9 / iops) as u64;
    let ops = (iops / 4.0) as u64;
    json!({
        "engine": "ringfile", "round": round, "role": role, "numjobs": 1, "processes": 1, "iodepth": depth,
        "batch": null, "inflight": null, "rw": "randread", "buffers": "normal", "parts": null, "side": null,
        "memory": null, "direct": true, "cache": "keep", "route": "ring",
        "block_size_bytes": block, "ops": ops, "errors": 0, "duration_s": 0.25, "iops": iops,
        "bw_bytes": iops * block as f64,
        "latency_ns": {
            "mean": latency, "stddev": latency / 3, "p50": latency * 9 / 10, "p90": latency * 13 / 10,
            "p95": latency * 3 / 2, "p99": latency * 2, "p999": latency * 4, "p9999": latency * 9, "max": latency * 20
        },
        "cpu_us_per_io": cpu, "user_us_per_io": cpu * 0.3, "system_us_per_io": cpu * 0.7,
        "user_percent": cpu * 0.3 * iops / 1e4, "system_percent": cpu * 0.7 * iops / 1e4,
        "context_switches": ops / 10, "system_calls": ops / 3,
        "enters": ops / 3, "fixed_ops": 0, "route_ops": { "ring": ops, "inline": 0, "workers": 0, "aio": 0 },
        "cached_before": 0.0, "cached_after": 0.0
    })
}

/// Adds adaptive files and fio to a sample of `perf buffers`, as it measures them at depth 16.
pub fn with_others(mut session: Value) -> Value {
    let others = [
        ("ringfile", false, "cold", Some("auto"), 139_000.0),
        ("ringfile", false, "warm", Some("auto"), 880_000.0),
        ("fio", true, "keep", None, 137_000.0),
        ("fio", false, "cold", None, 9_100.0),
        ("fio", false, "warm", None, 390_000.0),
    ];
    for (engine, direct, cache, route, iops) in others {
        for round in 1..=5 {
            let mut run = run(round, "measure", 4096, 16, iops * (1.0 + f64::from(round) / 100.0), 1.2);
            run["engine"] = json!(engine);
            run["adaptive"] = json!(engine == "ringfile");
            run["direct"] = json!(direct);
            run["cache"] = json!(cache);
            run["route"] = json!(route);
            session["runs"].as_array_mut().expect("a list").push(run);
        }
    }
    session
}

/// Returns `perf buffers --quick` on a disk: a grid with A/A runs, and the runs for advice on direct I/O and route.
/// `fixed` is the gain from fixed buffers.
pub fn buffers(seed: u64, speed: f64, fixed: f64) -> Value {
    let mut noise = Noise::new(seed);
    let mut runs = Vec::new();
    let kinds = [("normal", 1.0), ("fixed", fixed), ("vectored", 0.8), ("vectored-fixed", 0.95)];
    for processes in [1, 2] {
        for rw in ["randread", "randwrite"] {
            for (block, base) in [(4096, 11_000.0), (131_072, 3_000.0)] {
                for depth in [1, 16, 64] {
                    for round in 1..=5 {
                        let mut add = |role: &str, kind: &str, factor: f64| {
                            let most = 150_000.0 * speed * 4096.0 / block as f64
                                * 12.0_f64.min(block as f64 / 4096.0);
                            let write = if rw == "randwrite" { 0.8 } else { 1.0 };
                            let iops =
                                (base * speed * depth as f64).min(most) * factor * write * noise.factor(0.03);
                            let cpu = (4.0 + block as f64 / 40_000.0) / factor * noise.factor(0.02);
                            let mut run = run(round, role, block, depth, iops, cpu);
                            run["buffers"] = json!(kind);
                            run["rw"] = json!(rw);
                            run["processes"] = json!(processes);
                            runs.push(run);
                        };
                        for (kind, factor) in kinds {
                            add("measure", kind, factor);
                        }
                        add("aa", "normal", 1.0);
                    }
                }
            }
        }
    }
    let ways = [
        (true, "keep", "inline", 9_000.0),
        (false, "cold", "auto", 9_500.0),
        (false, "cold", "ring", 10_000.0),
        (false, "warm", "auto", 900_000.0),
        (false, "warm", "ring", 400_000.0),
        (false, "warm", "inline", 920_000.0),
    ];
    for depth in [1, 16] {
        for round in 1..=5 {
            for (direct, cache, route, iops) in ways {
                let mut run = run(round, "measure", 4096, depth, iops * speed * noise.factor(0.04), 1.2);
                run["direct"] = json!(direct);
                run["cache"] = json!(cache);
                run["route"] = json!(route);
                runs.push(run);
            }
        }
    }
    let mut session = session("buffers", runs);
    let flame = r##"<svg version="1.1" width="1200" height="60" viewBox="0 0 1200 60" xmlns="http://www.w3.org/2000/svg"><script type="text/ecmascript">alert(1)</script><rect x="0" y="10" width="900" height="20" fill="rgb(227,90,40)"/><text x="4" y="24">io_issue_sqe</text></svg>"##;
    session["profile"] = kinds
        .map(|(kind, _)| {
            json!({
                "buffers": kind, "rw": "randread", "block_size_bytes": 4096, "iodepth": 64, "event": "cpu-clock",
                "samples": 1234, "kernel_percent": 71.5, "flame_graph": flame,
                "kernel": [{"function": "io_issue_sqe", "percent": 12.5}, {"function": "iov_iter_get_pages2", "percent": 3.25}],
                "user": [{"function": format!("ringfile::driver::{}", "turn_".repeat(30)), "percent": 4.0}]
            })
        })
        .to_vec()
        .into();
    session["advice"] = json!([
        {"name": "direct", "value": true, "because": "141k IOPS at depth 16 with direct I/O, 14.1 times the IOPS of cold buffered reads", "sure": "outside-noise"},
        {"name": "buffers", "value": "fixed", "because": "no difference beyond the noise: fixed 1.01 [0.98..1.03] times the IOPS of normal, 0.92 times its CPU time", "sure": "inside-noise"},
        {"name": "depth", "value": 16, "because": "141k IOPS; depth 64: 1.03 times that, with 4 times the p99", "sure": "outside-noise"},
        {"name": "capacity", "value": "64m", "because": "16 operations of 128 KiB in flight use 2 MiB; a pool below 64 MiB would save little", "sure": "not-compared"}
    ]);
    session
}

/// Returns results of `perf pool` at a fixed rate.
pub fn pool() -> Value {
    let mut noise = Noise::new(3);
    let mut runs = Vec::new();
    for round in 1..=3 {
        for (memory, slower, role) in [
            ("pool", 1.0, "measure"),
            ("malloc", 1.1, "measure"),
            ("vec", 2.5, "measure"),
            ("pool", 1.0, "aa"),
        ] {
            for side in ["producer", "consumer"] {
                let mut run = run(round, role, 65_536, 4, 7_600.0 * noise.factor(0.01), 20.0 * slower);
                let factor = slower * if side == "producer" { 1.0 } else { 0.6 } * noise.factor(0.1);
                for value in run["latency_ns"].as_object_mut().expect("latencies").values_mut() {
                    *value = json!((value.as_u64().expect("a count") as f64 * factor) as u64);
                }
                run["side"] = json!(side);
                run["memory"] = json!(memory);
                run["direct"] = json!(memory != "vec");
                run["rw"] = json!(if side == "producer" { "write" } else { "read" });
                run["buffers"] = json!(if memory == "pool" { "fixed" } else { "normal" });
                runs.push(run);
            }
        }
    }
    let mut session = session("pool", runs);
    session["params"]["rate_limit_bytes"] = json!(500_000_000);
    session["params"]["rounds"] = json!(3);
    session
}

/// Returns results of `perf batch` with fio.
pub fn batch() -> Value {
    let mut noise = Noise::new(4);
    let mut runs = Vec::new();
    for jobs in [1, 2] {
        for round in 1..=3 {
            for (engine, factor, role) in [
                ("ringfile-blocking", 1.0, "measure"),
                ("ringfile-tokio", 0.93, "measure"),
                ("fio", 1.04, "measure"),
                ("ringfile-blocking", 1.0, "aa"),
            ] {
                let mut run =
                    run(round, role, 4096, 256, 130_000.0 * factor * noise.factor(0.03), 5.0 / factor);
                run["engine"] = json!(engine);
                run["numjobs"] = json!(jobs);
                run["batch"] = json!(64);
                run["inflight"] = json!(4);
                run["route"] = if engine == "fio" { Value::Null } else { json!("auto") };
                run["processes"] = Value::Null;
                runs.push(run);
            }
        }
    }
    session("batch", runs)
}

/// Writes a sample into a folder.
pub fn write(folder: &Path, name: &str, sample: &Value) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, serde_json::to_vec(sample).expect("JSON")).expect("write");
    path
}
