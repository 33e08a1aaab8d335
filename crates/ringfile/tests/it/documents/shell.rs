//! Each command of a shell passage is run here, is run by a step of `.ci/run`, or is listed with the reason why not.

use std::collections::BTreeSet;
use std::process::Command;

use super::commands::{commands, passages, without_variables};
use super::{documents, root};
use crate::support::Folder;

/// How a command is known to work.
enum Proof {
    /// This test runs it, in an empty package and without a network.
    Runs,
    /// This step of `.ci/run` runs it, or a script that does the same.
    Step(&'static str),
    /// The document says `Not published yet`, and what to do until then.
    OncePublished,
    /// Nothing runs it, for this reason.
    Not(&'static str),
}
use Proof::{Not, OncePublished, Runs, Step};

const C: &[&str] = &["crates/ringfile-capi/", "c++ $flags", "cc $(pkg-config", "./first", "target/fibers"];
const ROCKSDB: &[&str] = &["cmake -S integrations/rocksdb", "cmake --build", "db_bench", "c++ program.cc"];
const FIO: &[&str] =
    &["integrations/fio/test", "integrations/fio/try", "make -C integrations/fio", "fio --ioengine"];
const GO: &[&str] = &["source integrations/go/environment", "go test", "go run", "integrations/go/test"];
const COMPARISONS: &[&str] = &["compare", "c/run", "./study.sh", "./instructions.sh", "./aio.sh", "./log.sh"];
const MEASURING: &[&str] = &["cargo run --release -- perf", "ringfile perf", "benchmarks/reproduce"];

/// The beginnings of commands, after `VARIABLE=value`. If several fit a command, the longest counts.
const PROOFS: [(Proof, &[&str]); 26] = [
    (Runs, &["export", "cargo add --path", "cargo add --dev --path"]),
    (Step("tests"), &["cargo build", "cargo test", "ringfile doctor"]),
    (Step("loom models"), &["cargo test --release -p ringfile-buffer -p ringfile -p ringfile-cache"]),
    (Step("documentation"), &["cargo doc"]),
    (Step("dependencies"), &["cargo deny"]),
    (Step("other runtimes"), &["cargo test --manifest-path integrations/runtimes/Cargo.toml"]),
    (Step("C and C++"), C),
    (Step("RocksDB"), ROCKSDB),
    (Step("fio engine"), FIO),
    (Step("Go"), GO),
    (Step("Python"), &["pip install", "python -m ringfile.compare"]),
    (Step("SlateDB"), &["cargo run --release --manifest-path integrations/slatedb/Cargo.toml"]),
    (Step("Haskell"), &["integrations/haskell/test", "runghc Setup"]),
    (Step("kernels"), &["kernels/guest"]),
    (OncePublished, &["cargo install ringfile-cli"]),
    (Not("needs the registry"), &["cargo add datafusion@55"]),
    (
        Not("needs a folder of Parquet files"),
        &["cargo run --release --manifest-path integrations/datafusion"],
    ),
    (Not("compiles for minutes, and .ci/run has it another way"), &["cargo install --locked cargo-deny"]),
    (Not("needs cargo-c"), &["cargo cinstall"]),
    (Not("runs this test"), &[".ci/run"]),
    (Not("changes the machine, as root"), &["apt-get install", "ldconfig"]),
    (Not("makes devices and file systems, as root"), &["./devices.sh", "./places.sh"]),
    (Not("needs several machines; several-nodes does it on one"), &["ringfile-ballista"]),
    (Not("measures for minutes, on a quiet machine"), MEASURING),
    (Not("measures for minutes, on a quiet machine"), COMPARISONS),
    (Not("measures for minutes"), &["integrations/fio/compare", "integrations/haskell/compare"]),
];
const UNKNOWN: &str = "not in PROOFS of tests/it/documents/shell.rs: say there whether this test can run it, which \
    step of .ci/run does, or why nothing can";
const UNPUBLISHED: &str = "use `path`, or say that it is not published yet, and what to do until then";

/// Returns why a step of `.ci/run` does not run anything, if so.
fn lacks(step: &str) -> Option<String> {
    let ci = std::fs::read_to_string(root()?.join(".ci/run")).unwrap();
    let begin = format!("step \"{step}\" ");
    let Some(command) = ci.lines().find_map(|line| line.trim().strip_prefix(&begin)) else {
        return Some(format!(".ci/run has no step {step:?}"));
    };
    let mut scripts = command.split(' ').filter(|word| word.contains('/'));
    let missing = scripts.find(|script| !root().unwrap().join(script).is_file());
    missing.map(|script| format!("{script} is not there"))
}

#[test]
fn every_shell_command_has_a_proof() {
    let Some(root) = root() else { return };
    let package = Folder::new();
    package.file("Cargo.toml", b"[package]\nname = \"program\"\nedition = \"2024\"\n[workspace]\n");
    std::fs::create_dir(package.path().join("src")).unwrap();
    package.file("src/lib.rs", b"");
    let bash = |how: &str, text: &str| {
        let output = Command::new("bash").args([how, text]).current_dir(package.path()).output().unwrap();
        (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let proofs: Vec<(&Proof, &str)> =
        PROOFS.iter().flat_map(|(proof, begins)| begins.iter().map(move |begin| (proof, *begin))).collect();
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for (document, text) in documents(root) {
        let is_announced = text.contains("Not published yet");
        let mut fault =
            |what: &str, why: String| faults.push(format!("{}: `{what}`: {why}", document.display()));
        for other in ["```bash", "```console", "```shell"].iter().filter(|other| text.contains(**other)) {
            fault(other, "write ```sh, and no prompts".to_owned());
        }
        let manifest = passages(&text, "toml").join("");
        for line in manifest.lines().filter(|line| line.starts_with("ringfile") && !line.contains("path = "))
        {
            if !is_announced {
                fault(line, UNPUBLISHED.to_owned());
            }
        }
        for passage in passages(&text, "sh") {
            if let Some(said) = bash("-nc", passage) {
                fault(passage, said);
            }
            for command in commands(passage) {
                let words = without_variables(&command);
                if words.is_empty() || words.starts_with("cd ") {
                    continue;
                }
                let fitting = proofs.iter().filter(|(_, begin)| words.starts_with(*begin));
                let Some((proof, begin)) = fitting.max_by_key(|(_, begin)| begin.len()) else {
                    fault(&command, UNKNOWN.to_owned());
                    continue;
                };
                used.insert(*begin);
                let failed = match proof {
                    Runs if words.starts_with("cargo add") => {
                        let command = command.replace("PATH/TO/RINGFILE", root.to_str().unwrap());
                        bash("-ec", &format!("{command} --dry-run --offline"))
                    }
                    Runs => bash("-ec", &command),
                    Step(step) => lacks(step),
                    OncePublished => (!is_announced).then(|| UNPUBLISHED.to_owned()),
                    Not(why) => {
                        println!("not run: `{command}`: {why}");
                        None
                    }
                };
                if let Some(why) = failed {
                    fault(&command, why);
                }
            }
        }
    }
    let unused = proofs.iter().filter(|(_, begin)| !used.contains(begin));
    faults.extend(unused.map(|(_, begin)| format!("PROOFS: no passage has `{begin}`")));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
